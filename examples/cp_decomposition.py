"""CP decomposition of a sparse tensor into rank-one terms

Alternating least squares approximates ``T[i, j, k]`` by the sum over r of ``A[i, r] * B[j, r] * C[k, r]``, for tensors of any order.
The example shows how one ``einsum`` per mode computes the MTTKRP of a tensor in CSF format, in one pass over its nonzeros. Run it with
a random tensor or with a file:

    python examples/cp_decomposition.py                                   # a tensor of rank 8 with noise
    python examples/cp_decomposition.py --data tensor.tns --rank 16       # FROSTT text format, also .tns.gz

The method solves for one factor at a time, with the others fixed. Each solve needs

* an MTTKRP, ``ijk,jr,kr->ir``: the product of the tensor and all other factors,
* and a linear system of size r for each row. Its matrix is the element-wise product of ``B.T @ B`` of all other factors.

Kolda, Bader, "Tensor Decompositions and Applications", SIAM Review 2009, section 3.4.

torch has no MTTKRP: the twin gathers a row of each factor for every nonzero, and adds the products up by index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm

import numscorch as ns

Product = Callable[[int, Sequence[torch.Tensor]], torch.Tensor]  # MTTKRP of the tensor and all factors except one


def low_rank_tensor(rank: int, shape: tuple[int, ...] = (400, 300, 200)) -> ns.SparseTensor:
    """A sum of sparse rank-one tensors, with noise on the nonzeros."""
    factors = [torch.rand(size, rank, dtype=torch.float64) + 0.5 for size in shape]
    sparse = [ns.from_torch(torch.where(torch.rand_like(factor) < 0.08, factor, 0.0)) for factor in factors]
    T = ns.einsum("ir,jr,kr->ijk", *sparse, format=ns.CSF(3))
    return T.with_values(T.values * (1 + 0.2 * torch.randn_like(T.values)))


def with_numscorch(T: ns.SparseTensor) -> Product:
    """MTTKRP with one einsum per mode, such as ``ijk,ir,kr->jr`` for the second of three modes."""
    names = "ijklmn"[: T.ndim]

    def product(mode: int, factors: Sequence[torch.Tensor]) -> torch.Tensor:
        modes = [at for at in range(T.ndim) if at != mode]
        terms = [names, *(f"{names[at]}r" for at in modes)]
        return ns.einsum(f"{','.join(terms)}->{names[mode]}r", T, *(factors[at] for at in modes))

    return product


def with_torch(T: ns.SparseTensor) -> Product:
    """MTTKRP in torch with a row of length r for every nonzero."""
    indices, values = T.indices(), T.values[:, None]

    def product(mode: int, factors: Sequence[torch.Tensor]) -> torch.Tensor:
        rows = values
        for at, factor in enumerate(factors):
            rows = rows if at == mode else rows * factor[indices[at]]
        return torch.zeros_like(factors[mode]).index_add_(0, indices[mode], rows)

    return product


def decompose(T: ns.SparseTensor, start: Sequence[torch.Tensor], product: Product, times: list[float]) -> Iterator[float]:
    """Yield the fit after each step; append the time of the products of each step to ``times``."""
    factors, norm = list(start), T.values.square().sum()
    while True:
        durations: list[float] = []
        for mode in range(T.ndim):
            grams = [factor.T @ factor for at, factor in enumerate(factors) if at != mode]
            collected = timed(durations, product, mode, factors)
            factors[mode] = collected @ torch.linalg.pinv(torch.stack(grams).prod(0), hermitian=True)
        times.append(sum(durations))
        # |T - S|² = |T|² - 2 <T, S> + |S|²; <T, S> follows from the last MTTKRP and the last factor
        inner = (collected * factors[-1]).sum()
        size = torch.stack([factor.T @ factor for factor in factors]).prod(0).sum()
        yield 1 - ((norm - 2 * inner + size).clamp(min=0) / norm).sqrt().item()


def main() -> None:
    chosen = options(__doc__, data="a tensor as FROSTT's text (.tns, .tns.gz)", rank=8, steps=25)
    if chosen.data is None:
        T = low_rank_tensor(chosen.rank)
    else:
        T = ns.load(chosen.data, dtype=torch.float64)
        T = T.to(ns.CSF(T.ndim))
    print(T)
    start = [torch.rand(size, chosen.rank, dtype=torch.float64) for size in T.shape]
    times: tuple[list[float], list[float]] = ([], [])
    runs = [decompose(T, start, product, durations) for product, durations in zip((with_numscorch(T), with_torch(T)), times, strict=True)]
    fits, expected = zip(*([next(run) for run in runs] for _ in tqdm(range(chosen.steps), desc="steps")), strict=True)
    agree("fits", max(abs(ours - theirs) for ours, theirs in zip(fits, expected, strict=True)), 1e-6)
    table(
        ("", "numscorch", "torch", ""),
        ("fit", f"{fits[-1]:.4f}", f"{expected[-1]:.4f}"),
        ("MTTKRP of all modes", *times_as_fast(*times)),
    )
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, chosen.steps + 1), fits, label="numscorch")
    axes.plot(range(1, chosen.steps + 1), expected, "o", fillstyle="none", label="torch")
    axes.set(
        xlabel="step", ylabel="fit: 1 - |T - S| / |T|", title=f"rank {chosen.rank}, {' x '.join(map(str, T.shape))}, {T.nnz:,} nonzeros"
    )
    axes.legend()
    figure.savefig(chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
