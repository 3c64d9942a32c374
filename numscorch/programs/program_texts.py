"""The texts of calls in programs that torch compiles, such as ``A: CSR of 6x6; float32 A = softmax(A, 1)``: writing and reading.

A text describes the operands, then the result, and then the call. Letters are operands.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..errors import FormatError, UnsupportedError
from ..frontend.requests import NAMES
from ..ir.format import Format, as_format
from ..tensors.graph_breaks import TRACED
from ..tensors.pattern import Pattern

OPERAND, FORMAT, NUMBER = "\0operand", "\0format", "\0number"  # marks of arguments, in pairs with their number
LITERALS = {"inf": float("inf"), "nan": float("nan")}


def printed(value: Any) -> str:
    """An argument as text that :func:`parsed` reads; operands are pairs of a mark and a number.

    >>> printed(((OPERAND, 1), 0.5, [torch.float32, slice(1, None)]))
    '(B, 0.5, [torch.float32, slice(1, None, None)])'
    """
    if isinstance(value, tuple) and len(value) == 2 and value[0] == OPERAND:
        return NAMES[value[1]]
    if isinstance(value, list):
        return f"[{', '.join(map(printed, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(printed, value))}{',' * (len(value) == 1)})"
    if isinstance(value, np.generic):
        value = value.item()
    return f"Format({str(value)!r})" if isinstance(value, Format) else "..." if value is Ellipsis else repr(value)


def parsed(node: ast.expr) -> Any:
    """The argument that a part of a text denotes: an :class:`Place` for a letter.

    Raises:
        UnsupportedError: the text has another expression.
    """
    match node:
        case ast.Name(id=name) if name in LITERALS:
            return LITERALS[name]
        case ast.Name(id=name):
            return Place(NAMES.index(name))
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return getattr(torch, name)
        case ast.List(elts=members):
            return list(map(parsed, members))
        case ast.Tuple(elts=members):
            return tuple(map(parsed, members))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id=name)) if name in LITERALS:
            return -LITERALS[name]
        case ast.Call(func=ast.Name(id="slice"), args=members):
            return slice(*map(parsed, members))
        case ast.Call(func=ast.Name(id="Format"), args=[ast.Constant(value=str(text))]):
            return as_format(text)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        shown = ast.unparse(node)
        raise UnsupportedError(
            f"a program has the argument {shown}, which numscorch cannot read: call the function outside of it"
        ) from error


class Place(int):
    """The number of an operand in the arguments of a call."""


def read_call(text: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """The name of a traced function, and its arguments.

    Raises:
        UnsupportedError: the text has another function, or an argument that cannot be read.
    """
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        node = None
    if not isinstance(node, ast.Call) or (name := ast.unparse(node.func)) not in TRACED:
        raise UnsupportedError(f"a program has the call {text!r}, which this version of numscorch does not have: compile it again")
    return name, tuple(map(parsed, node.args)), {str(keyword.arg): parsed(keyword.value) for keyword in node.keywords}


def filled(value: Any, operands: Sequence[Any]) -> Any:
    """The argument with its operands."""
    if type(value) is Place:
        return operands[value]
    return type(value)([filled(member, operands) for member in value]) if type(value) in (list, tuple) else value


@lru_cache(maxsize=1024)
def text_of_shape(format: Format, shape: tuple[int, ...]) -> str:
    """A format and a shape as text.

    >>> import numscorch as ns
    >>> text_of_shape(ns.CSR, (3, 4))
    'CSR of 3x4'
    """
    try:
        is_named = as_format(format.name) == format
    except FormatError:
        is_named = False
    return f"{format.name if is_named else format} of {'x'.join(map(str, shape)) or 'scalar'}"


def described(pattern: Pattern) -> str:
    """A pattern's format and shape as text."""
    return text_of_shape(pattern.format, pattern.shape)


@lru_cache(maxsize=1024)
def described_as(text: str) -> tuple[Format, tuple[int, ...]] | None:
    """The format and shape of :func:`text_of_shape`; None for dense operands.

    >>> described_as("CSR of 3x4")[1], described_as("dense")
    ((3, 4), None)
    """
    format, _, shape = text.rpartition(" of ")
    return (as_format(format), shape_of(shape)) if format else None


def shape_of(text: str) -> tuple[int, ...]:
    """The shape in a text.

    >>> shape_of("3x4"), shape_of("scalar")
    ((3, 4), ())
    """
    return tuple(map(int, text.split("x"))) if text != "scalar" else ()


@lru_cache(maxsize=1024)
def array_count(format: Format) -> int:
    """The number of index arrays of a format."""
    return sum(len(level.arrays) for level in format.levels)
