"""The command: ``python -m benchmarks.families [FAMILY ...] [--threads N] [--data FOLDER] [--cases N] [--seconds S]``.

Threads are set before any library is loaded, because most OpenMP libraries read their settings once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

BLOCK_TIME = "1"  # milliseconds for which idle threads of LLVM's OpenMP spin; its default, 200, would disturb the next turns


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.families", description="Families of kernels beside the best libraries and plain loops in C++."
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="only rows whose names contain one of these texts, in any case")
    parser.add_argument("--threads", type=int, default=1, help="threads of all libraries (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="folder of matrices and tensors; by default they are generated")
    parser.add_argument("--cases", type=int, help="most matrices of a row, evenly spaced by entries; by default all")
    parser.add_argument("--seconds", type=float, default=0.2, help="time for which the functions of a case take turns")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    options = parsed(arguments)
    threads = str(options.threads)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "AOCLSPARSE_NUM_THREADS", "BLIS_NUM_THREADS"), threads)
    os.environ |= {"KMP_BLOCKTIME": BLOCK_TIME, "OMP_PROC_BIND": "false", "NUMSCORCH_PROGRESS": "0"}
    if options.data is not None:
        os.environ["NUMSCORCH_BENCH_DATA"] = str(options.data.resolve())
    from .measurement import measure  # the settings above come first

    print(measure(options.families, options.threads, options.cases, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
