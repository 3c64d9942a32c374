"""How much memory a call needs in a fresh process: run as ``python -m benchmarks.peak PRODUCT THREADS``.

Prints the bytes that the process grew by at most during a warm call, and those of its result.
"""

from __future__ import annotations

import sys

import torch

import numscorch as ns
from numscorch.measuring.memory import growth

from .generated import uniform

SIZES = {"spmm": (200_000, 20), "sddmm": (200_000, 100)}  # rows and columns, nonzeros in a row: results of 50 and 80 MB


def main(product: str, threads: int) -> None:
    """Call once to compile, then measure."""
    torch.set_num_threads(threads)
    rows, in_row = SIZES[product]
    A, X, Y = uniform(rows, rows, in_row), torch.rand(rows, 64), torch.rand(rows, 64)
    expression, operands = {"spmm": ("ij,jk->ik", (A, X)), "sddmm": ("ij,ik,jk->ij", (A, X, Y))}[product]
    result = ns.einsum(expression, *operands)
    size = (result.values if isinstance(result, ns.SparseTensor) else result).nbytes
    del result
    print(growth(lambda: ns.einsum(expression, *operands)), size)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
