"""What a fresh process pays for its first call: run as ``python -m benchmarks.fresh PRODUCT THREADS [numba]``.

Prints the seconds of the call, which don't include the imports of torch and numscorch; with ``numba``,
not that of Numba either.
"""

from __future__ import annotations

import sys
import time

import torch

import numscorch as ns

from .generated import uniform


def main(product: str, threads: int, numba_first: bool) -> None:
    """Make the operands, call once, and print how long that took."""
    torch.set_num_threads(threads)
    A = uniform(2000, 2000, 20)
    X, Y = torch.rand(2000, 64), torch.rand(2000, 64)
    expression, operands = {"spmm": ("ij,jk->ik", (A, X)), "sddmm": ("ij,ik,jk->ij", (A, X, Y))}[product]
    if numba_first:
        import numscorch.codegen.intrinsics  # noqa: F401  (Numba, and what generated files import)
    start = time.perf_counter()
    ns.einsum(expression, *operands)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "numba" in sys.argv[3:])
