"""``python -m numscorch explain``: show every stage between an expression and its kernel, as text or as a page."""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path
from typing import Any

import torch

from ..errors import ExpressionError, SizeError, UnsupportedError
from ..explanation.explanation import ROW, SIZE, read_formats
from ..interface.api import explain
from ..ir.format import Format
from ..machine.memory import available
from ..operators.creation import rand
from ..sparsifiers.patterned import structured
from ..sparsifiers.sparsify import sparsify

EACH = 4  # bytes of a float32


def add_explain(commands: Any) -> None:
    text = "print every stage between an expression and its kernel"
    command = commands.add_parser("explain", help=text, description=text)
    command.add_argument("expression", metavar="EXPR", help='an einsum such as "ij,jk->ik", or a statement such as "y[i] = A[i,j] * x[j]"')
    formats = 'one per operand: CSR, COO, dense, ds, or "(i, j) -> (j: dense, i: compressed)"; for statements with names: A=CSR x=dense'
    command.add_argument("formats", metavar="FORMAT", nargs="+", help=formats)
    command.add_argument("--html", type=Path, metavar="FILE.html", help="write an HTML page instead")
    timed = f"also time it on random operands of size {SIZE} in each dimension; sparse operands have {ROW} entries per row"
    command.add_argument("--timed", action="store_true", help=timed)
    command.set_defaults(command=_explain)


def _explain(arguments: argparse.Namespace) -> None:
    named: dict[str, Any] = _named(arguments.expression, arguments.formats) if "=" in arguments.expression else {}
    operands: list[Any] = [] if named else arguments.formats
    if arguments.timed and named:
        raise UnsupportedError("--timed takes an einsum: numscorch bench times statements, on your own operands")
    if arguments.timed:
        operands = [_example(format) for format in read_formats(arguments.expression, operands)]
    explained = explain(arguments.expression, *operands, timed=arguments.timed, **named)
    if arguments.html is None:
        print(explained)
    else:
        explained.save(arguments.html)
        print(f"{arguments.html}: {arguments.html.stat().st_size / 1e3:.0f} kB")


def _named(text: str, formats: list[str]) -> dict[str, Any]:
    """The formats of a statement's operands, by name.

    Raises:
        ExpressionError: a format has no name.

    >>> _named("y[i] = A[i,j] * x[j]", ["A=CSR", "x=dense"])
    {'A': 'CSR', 'x': 'dense'}
    """
    named = {}
    for argument in formats:
        name, _, format = argument.partition("=")
        if not name.isidentifier() or not format:
            raise ExpressionError(f"{argument!r} needs an operand's name: write A=CSR x=dense for a statement\n  {text}")
        named[name] = format
    return named


def _example(format: Format) -> Any:
    """A random tensor in a format.

    Raises:
        SizeError: a dense tensor would not fit in memory.
    """
    shape = (SIZE,) * format.order
    if format.is_dense:
        size, free = EACH * prod(shape), available()
        if size > free / 2:
            raise SizeError(f"--timed: a dense operand of shape {shape} takes {size:.2g} bytes, and {free:.2g} are free: use bench instead")
        return torch.rand(shape)
    if (keep := structured(format)) is not None:
        return sparsify(torch.rand(shape), keep, format)
    count = ROW * SIZE if format.order > 1 else ROW
    return rand(*shape, density=count / prod(shape), format=format)
