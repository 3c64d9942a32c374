"""Requests in the words of a command line, alone or one a line in a file."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from typing import NoReturn

from ..errors import ExpressionError
from ..measuring.requests import SEED, SPECS, BoundRequest, read_request


def add_request(parser: argparse.ArgumentParser) -> None:
    """The arguments that make a request."""
    parser.add_argument("expression", metavar="EXPR", help='an einsum, as "ij,jk->ik", or statements, as "y[i] = A[i,j] * x[j]"')
    parser.add_argument(
        "--operand", action="append", type=_named_value, default=[], metavar="NAME=WHAT", help=f"one for each operand: {SPECS}"
    )
    parser.add_argument(
        "--format", action="append", type=_named_value, default=[], metavar="NAME=FORMAT", help="how an operand is stored, as A=CSC"
    )
    parser.add_argument("--result", metavar="FORMAT", help="how the result is stored")
    parser.add_argument("--dtype", default="float32", help="of the values (float32)")
    parser.add_argument("--seed", type=_seed, default=SEED, help="of random numbers")


def request_of(arguments: argparse.Namespace) -> BoundRequest:
    """The request that was asked for, with its operands.

    Raises:
        ExpressionError: an operand is given twice, or isn't one; or as for ``measuring.requests.asked``.
    """
    specs, formats = _unique_names(arguments.operand), _unique_names(arguments.format)
    return read_request(arguments.expression, specs, formats=formats, dtype=arguments.dtype, result=arguments.result, seed=arguments.seed)


def requests_in(lines: Sequence[str], where: str) -> Iterator[tuple[int, argparse.Namespace]]:
    """The requests in lines of text, with their line numbers; empty lines and comments, from # on, are skipped.

    Raises:
        ExpressionError: a line is no request.

    >>> [(number, request.expression) for number, request in requests_in(["# sums", "ij-> --operand A=dense:2x2"], "sums.txt")]
    [(2, 'ij->')]
    """
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                yield number, _CommandParser(prog="", add_help=False).read(words)
        except ValueError as error:
            raise ExpressionError(f"{where}, line {number}: {error}\n  {line.strip()}") from error


def error_text(error: Exception) -> str:
    """The text of an error for a terminal; of one of the operating system, the file comes first, and its number is left out.

    >>> error_text(FileNotFoundError(2, "No such file or directory", "a.mtx"))
    'a.mtx: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class _CommandParser(argparse.ArgumentParser):
    """Of one line: what is wrong with it is an error, not the end of the process."""

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        add_request(self)
        return self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        raise ExpressionError(f"{message}: a line holds the arguments of python -m numscorch bench")


def _named_value(text: str) -> tuple[str, str]:
    name, sign, what = text.partition("=")
    if not sign or not name.isidentifier() or not what:
        raise argparse.ArgumentTypeError(f"{text!r} is not as A=WHAT")
    return name, what


def _seed(text: str) -> int:
    seed = int(text)  # argparse tells of what is no number
    if not -(1 << 63) <= seed < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text} is no seed of 64 bits")
    return seed


def _unique_names(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, what in pairs:
        if name in named:
            raise ExpressionError(f"{name} is given twice, as {named[name]!r} and as {what!r}: give each operand once")
        named[name] = what
    return named
