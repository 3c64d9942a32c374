"""Peak memory of a call in a fresh process: ``python -m benchmarks.peak PRODUCT THREADS``.

Prints the maximum growth of the process during a warm call, and the size of the result, both in bytes.
"""

from __future__ import annotations

import sys

import torch

import numscorch as ns
from numscorch.measuring.peak_memory import growth

from .generated import uniform

SIZES = {"spmm": (200_000, 20), "sddmm": (200_000, 100)}  # rows and columns, nonzeros per row; results of 50 and 80 MB


def main(product: str, threads: int) -> None:
    """Call once to compile, then measure a second call."""
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
