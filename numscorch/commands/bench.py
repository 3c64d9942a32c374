"""``python -m numscorch bench``: compare one expression with other libraries, on the user's own data.

The arguments that describe a request are on the command line, or one request per line of a file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from ..errors import ExpressionError, NumscorchError
from ..machine.atomic_files import replacing
from ..measuring.specifications import SEED, SPECS, BoundRequest, read_request

SECONDS = 2.0  # default total time of the measurement
MOST_THREADS = 4096  # upper bound of --threads


def add_bench(commands: Any) -> None:
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
    from ..measuring.table import measure  # deferred: other commands do not need it

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


def add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("expression", metavar="EXPR", help='an einsum such as "ij,jk->ik", or statements such as "y[i] = A[i,j] * x[j]"')
    parser.add_argument("--operand", action="append", type=_named_value, default=[], metavar="NAME=WHAT", help=f"one per operand: {SPECS}")
    parser.add_argument(
        "--format", action="append", type=_named_value, default=[], metavar="NAME=FORMAT", help="the format of an operand, such as A=CSC"
    )
    parser.add_argument("--result", metavar="FORMAT", help="the format of the result")
    parser.add_argument("--dtype", default="float32", help="the data type of the values (default: float32)")
    parser.add_argument("--seed", type=_seed, default=SEED, help="the seed of random numbers")


def request_of(arguments: argparse.Namespace) -> BoundRequest:
    """The request that the arguments describe, with its operands.

    Raises:
        ExpressionError: an operand is given twice; or as for :func:`~numscorch.measuring.specifications.read_request`.
    """
    specs, formats = _unique_names(arguments.operand), _unique_names(arguments.format)
    return read_request(arguments.expression, specs, formats=formats, dtype=arguments.dtype, result=arguments.result, seed=arguments.seed)


def requests_in(lines: Sequence[str], where: str) -> Iterator[tuple[int, argparse.Namespace]]:
    """The requests in lines of text, with their line numbers. Empty lines and comments, which start with #, are skipped.

    Raises:
        ExpressionError: a line isn't a request.

    >>> [(number, request.expression) for number, request in requests_in(["# sums", "ij-> --operand A=dense:2x2"], "sums.txt")]
    [(2, 'ij->')]
    """
    parser = _LineParser(prog="", add_help=False)
    add_request(parser)
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                yield number, parser.parse_args(words)
        except ValueError as error:
            raise ExpressionError(f"{where}, line {number}: {error}\n  {line.strip()}") from error


def error_text(error: Exception) -> str:
    """The text of an error for a terminal. Errors of the operating system show the file first, without the error number.

    >>> error_text(FileNotFoundError(2, "No such file or directory", "a.mtx"))
    'a.mtx: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class _LineParser(argparse.ArgumentParser):
    """Parses the lines of a file. A malformed line raises an error instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ExpressionError(f"{message}: a line holds the arguments of python -m numscorch bench")


def _named_value(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier() or not value:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form A=WHAT")
    return name, value


def _seed(text: str) -> int:
    seed = int(text)  # argparse reports a ValueError
    if not -(1 << 63) <= seed < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text} does not fit in 64 bits")
    return seed


def _unique_names(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise ExpressionError(f"{name} is given twice, as {values[name]!r} and as {value!r}: give each operand once")
        values[name] = value
    return values
