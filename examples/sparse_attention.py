"""Sliding window attention

Each position attends to its neighbours instead of the whole sequence. The example shows how ``scaled_dot_product_attention`` of
``numscorch.nn.functional`` takes the pattern as a sparse tensor and computes only the scores of its entries. It compares results,
gradients and times with torch. Run it for increasing lengths, or with a pattern from a file:

    python examples/sparse_attention.py                       # windows of 32 on each side, for increasing lengths
    python examples/sparse_attention.py --data pattern.mtx    # the entries of a Matrix Market file as pattern

``softmax(Q @ K.T / √d) @ V`` computes a score for every pair of positions. Longformer (Beltagy, Peters, Cohan, 2020) and BigBird
(Zaheer et al., NeurIPS 2020) keep only the pairs of a pattern. One kernel computes these pairs, and holds one row of scores at a time.

The dense twin is torch's ``scaled_dot_product_attention`` with the pattern as a boolean mask.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm

import numscorch as ns
from numscorch.nn import patterns
from numscorch.nn.functional import scaled_dot_product_attention

WIDTH, DEPTH = 32, 64


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Masked attention in torch; the fastest kernel needs batch and head dimensions."""
    return torch.nn.functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], attn_mask=mask)[0, 0]


def windows(longest: int) -> Iterator[ns.SparseTensor]:
    """Sliding window patterns of doubling lengths."""
    length = min(256, longest)
    while length <= longest:
        yield patterns.sliding_window(length, WIDTH)
        length *= 2


def gradients(result: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Concatenated gradients of the sum of squares of the result."""
    return torch.cat(torch.autograd.grad(result.square().sum(), inputs))


def main() -> None:
    chosen = options(__doc__, data="a Matrix Market file of a square matrix (.mtx, .mtx.gz)", longest=2048, repeat=50)
    compared = list(windows(chosen.longest)) if chosen.data is None else [ns.load(chosen.data).to(torch.float32)]
    rows, measured, apart = [], [], []
    for pattern in tqdm(compared, desc="lengths"):
        inputs = [torch.randn(pattern.shape[0], DEPTH, requires_grad=True) for _ in range(3)]
        mask = pattern.with_values(torch.ones_like(pattern.values)).to_dense().bool()
        ours, theirs = scaled_dot_product_attention(*inputs, pattern), dense_attention(*inputs, mask)
        apart.append((ours - theirs.nan_to_num()).abs().max().item())  # rows without entries: NaN in torch, 0 in numscorch
        if mask.any(1).all():
            apart.append((gradients(ours, inputs) - gradients(theirs, inputs)).abs().max().item())
        times: tuple[list[float], list[float]] = ([], [])
        with torch.no_grad():
            for _ in range(chosen.repeat):
                timed(times[0], scaled_dot_product_attention, *inputs, pattern)
                timed(times[1], dense_attention, *inputs, mask)
        rows.append((f"{pattern.shape[0]:,}", f"{pattern.density:.1%}", *times_as_fast(*times)))
        measured.append((pattern.shape[0], *(min(durations) * 1e3 for durations in times)))
    agree("results and gradients", max(apart), 1e-4)
    table(("length", "density", "numscorch", "dense with a mask", ""), *rows)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    lengths, ours, theirs = zip(*measured, strict=True)
    axes.loglog(lengths, ours, ".-", label="numscorch")
    axes.loglog(lengths, theirs, ".-", label="dense with a mask")
    axes.set(
        xlabel="length",
        ylabel="ms, the least of several",
        title="attention" if chosen.data else f"attention to {WIDTH} places on each side",
    )
    axes.legend()
    figure.savefig(chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
