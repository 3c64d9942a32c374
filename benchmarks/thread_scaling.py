"""How kernels scale with threads: ``python -m benchmarks.thread_scaling [--threads 1 2 4 8 16] [--sizes 1000000 10000000]``.

The kernels are those of :mod:`benchmarks.growth`. Thread counts take turns, and the median time of a call counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from numscorch.measuring.this_machine import cores

from .growth import KERNELS, measured
from .report import table

SIZES = (10**6, 10**7)  # about these numbers of nonzeros


def powers(most: int) -> list[int]:
    """The powers of two up to a number, and the number.

    >>> powers(6)
    [1, 2, 4, 6]
    """
    return [*(1 << at for at in range(most.bit_length()) if 1 << at < most), most]


def scaling_table(threads: Sequence[int], sizes: Sequence[int]) -> str:
    """Milliseconds with the first thread count, and the speed-up with each further one."""
    rows = []
    for name, kernel in KERNELS.items():
        points = list(measured(kernel, threads, sizes))
        for nnz in sorted({point.nnz for point in points}):
            seconds = {point.threads: point.seconds for point in points if point.nnz == nnz}
            gains = (f"{seconds[threads[0]] / seconds[count]:.2f}" for count in threads[1:])
            rows.append((name, f"{nnz:,}", f"{seconds[threads[0]] * 1e3:.3g}", *gains))
    return table(("kernel", "nonzeros", f"ms, {threads[0]} thread{'s' * (threads[0] > 1)}", *(f"{n} threads" for n in threads[1:])), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", nargs="+", type=int, default=powers(cores()), help="thread counts (default: %(default)s)")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="numbers of nonzeros (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    print(scaling_table(chosen.threads, chosen.sizes))


if __name__ == "__main__":
    main()
