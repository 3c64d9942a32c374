"""``python -m numscorch bench``: compare one expression with other libraries, on the user's own data."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from ..errors import NumscorchError
from ..machine.atomic_files import replacing
from .asking import add_request, request_of

SECONDS = 2.0  # default total time of the measurement
MOST_THREADS = 4096  # upper bound of --threads


def add_bench(commands: Any) -> None:
    """Add the command."""
    description = "compare the time of one expression with torch, SciPy and other libraries, on your own data"
    bench = commands.add_parser("bench", help=description, description=description)
    add_request(bench)
    bench.add_argument(
        "--threads", type=positive, metavar="N", help="the number of threads of torch, of kernels and of the other libraries"
    )
    bench.add_argument("--seconds", type=_seconds, default=SECONDS, metavar="S", help=f"the total time (default: {SECONDS:g})")
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements to this file")
    bench.set_defaults(command=_bench)


def positive(text: str) -> int:
    """Parse a number of threads."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MOST_THREADS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def _bench(arguments: argparse.Namespace) -> int:
    from ..measuring.table import measure

    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise NumscorchError(f"the folder of {arguments.json} does not exist: create it first, or name another file")
    before = torch.get_num_threads()
    torch.set_num_threads(arguments.threads or before)
    try:
        table = measure(request_of(arguments), arguments.seconds)
    except AssertionError as error:
        print(f"numscorch: {error}\n  {arguments.expression}     nothing was timed: please report it with these operands", file=sys.stderr)
        return 1
    finally:
        torch.set_num_threads(before)
    print(table)
    if arguments.json is not None:
        with replacing(arguments.json) as file:
            file.write((json.dumps(table.as_json(), indent=1) + "\n").encode())
    return 0
