"""How much memory a call needs in a fresh process: run as ``python -m benchmarks.peak PRODUCT THREADS``.

Prints the bytes that the process grew by at most during a warm call, and those of its result. The system counts them, so
that torch's, numpy's and our own are among them; only Linux lets the largest count be reset.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import numscorch as ns

from .generated import uniform

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SIZES = {"spmm": (200_000, 20), "sddmm": (200_000, 100)}  # rows and columns, nonzeros in a row: results of 50 and 80 MB


def resident(which: str) -> int:
    """Bytes of memory: ``VmRSS`` now, ``VmHWM`` at most since the last reset."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024


def main(product: str, threads: int) -> None:
    """Call once to compile, then measure."""
    torch.set_num_threads(threads)
    rows, in_row = SIZES[product]
    A, X, Y = uniform(rows, rows, in_row), torch.rand(rows, 64), torch.rand(rows, 64)
    expression, operands = {"spmm": ("ij,jk->ik", (A, X)), "sddmm": ("ij,ik,jk->ij", (A, X, Y))}[product]
    ns.einsum(expression, *operands)
    RESET.write_text("5")
    before = resident("VmRSS")
    result = ns.einsum(expression, *operands)
    print(resident("VmHWM") - before, (result.values if isinstance(result, ns.SparseTensor) else result).nbytes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
