"""Factorise a sparse tensor of order 3 (CP decomposition by alternating least squares).

Each step is one MTTKRP, ``ijk,jr,kr->ir``: torch has no sparse operator for it, and a dense one would
take the whole tensor.  Run it as ``python examples/tensor_factorisation.py [FILE.tns]``.
"""

from __future__ import annotations

import sys

import torch

import numscorch as ns

RANK = 8
TERMS = ("ijk,jr,kr->ir", "ijk,ir,kr->jr", "ijk,ir,jr->kr")


def low_rank_tensor(shape: tuple[int, int, int] = (300, 200, 100), block: int = 12) -> ns.SparseTensor:
    """A tensor whose nonzeros are a few dense blocks of rank 1, so that a factorisation finds them."""
    dense = torch.zeros(shape)
    for _ in range(RANK):
        rows = [torch.randperm(size)[:block] for size in shape]
        dense[torch.meshgrid(*rows, indexing="ij")] += torch.einsum("i,j,k->ijk", *(torch.rand(block) + 0.5 for _ in shape))
    return ns.from_torch(dense, format=ns.CSF(3))


def factorise(T: ns.SparseTensor, rank: int, steps: int) -> list[torch.Tensor]:
    """Factors, one for each dimension; prints how much of the tensor they explain."""
    factors = [torch.rand(size, rank) for size in T.shape]
    norm = T.values.square().sum()
    for step in range(1, steps + 1):
        for mode, expr in enumerate(TERMS):
            others = [factor for at, factor in enumerate(factors) if at != mode]
            gram = (others[0].T @ others[0]) * (others[1].T @ others[1])
            product = ns.einsum(expr, T, *others)
            factors[mode] = torch.linalg.lstsq(gram, product.T).solution.T.contiguous()
        grams = [factor.T @ factor for factor in factors]
        inner = (product * factors[-1]).sum()
        error = norm - 2 * inner + (grams[0] * grams[1] * grams[2]).sum()
        print(f"step {step:2d}   explained {1 - (error.clamp(min=0) / norm).item():.1%}")
    return factors


if __name__ == "__main__":
    torch.manual_seed(0)
    tensor = ns.load(sys.argv[1]) if len(sys.argv) > 1 else low_rank_tensor()
    print(tensor)
    factorise(tensor, RANK, 10)
