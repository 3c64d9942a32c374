"""Checks of index sizes in a program; errors use the names in the program's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import SizeError
from ..frontend.operand import Operand
from ..frontend.parser import Subscripts
from ..frontend.problem import reversed_hint
from ..frontend.statements import NAMES, ProgramPart, index_names
from ..ir.index import Access, IndexVar, mapped
from ..runtime.plans import describe


def check_sizes(text: str, parts: Sequence[ProgramPart], part: ProgramPart, values: Mapping[str, Any]) -> None:
    """Check that the operands of a part agree on the size of each index; size 1 broadcasts, except on a diagonal.

    Raises:
        SizeError: an index has two sizes.

    >>> import torch
    >>> from ..frontend.statements import parse_program
    >>> text = "y[row] = A[row,col] * x[col]"
    >>> parts = parse_program(text)
    >>> check_sizes(text, parts, parts[0], {"A": torch.ones(2, 3), "x": torch.ones(4)})
    Traceback (most recent call last):
        ...
    numscorch.SizeError: index col has size 3 in A but 4 in x
      y[row] = A[row,col] * x[col]     A: 2x3 (dense)     x: 4 (dense)
    """
    sizes: dict[str, tuple[int, int]] = {}
    for at, (name, indices) in enumerate(zip(part.operands, part.request.subscripts.operands, strict=True)):
        shape = values[name].shape
        for index, size in zip(indices, shape, strict=True):
            if (first_size := shape[indices.index(index)]) != size:
                raise _clash(text, parts, part, values, index, (at, first_size), (at, size))
            first, expected = sizes.get(index, (at, 1))
            if expected == 1:
                sizes[index] = (at, size)
            elif size not in (1, expected):
                raise _clash(text, parts, part, values, index, (first, expected), (at, size))


def _clash(
    text: str,
    parts: Sequence[ProgramPart],
    part: ProgramPart,
    values: Mapping[str, Any],
    index: str,
    first: tuple[int, int],
    second: tuple[int, int],
) -> SizeError:
    """Return the error for an index with two sizes; ``first`` and ``second`` are pairs of an operand's position and its size."""
    operands = [values[name] if isinstance(values[name], Operand) else describe(values[name]) for name in part.operands]
    written = index_names(text)
    names = [_named(name, parts, written) for name in part.operands]
    listed = "     ".join(f"{name}: {indices}" for name, indices in zip(names, operands, strict=True))
    (at, size), (other, other_size) = first, second
    if at == other:
        message, hint = f"takes the diagonal of {names[at]}, whose sizes differ there: {size} and {other_size}", ""
    else:
        message = f"has size {size} in {names[at]} but {other_size} in {names[other]}"
        hint = reversed_hint(_renamed(part.request.subscripts, written), operands, written.get(index, index), other, names)
    return SizeError(f"index {written.get(index, index)} {message}\n  {text}     {listed}{hint}")


def _renamed(subscripts: Subscripts, written: Mapping[str, str]) -> Subscripts:
    operands = tuple(tuple(written.get(name, name) for name in term) for term in subscripts.operands)
    return replace(subscripts, operands=operands, result=tuple(written.get(name, name) for name in subscripts.result))


def _named(name: str, parts: Sequence[ProgramPart], written: Mapping[str, str]) -> str:
    """Return an operand's name in the program's text; for a temporary, its expression."""
    part = next((other for other in parts if other.name == name and other.is_temporary), None)
    if part is None or part.request.value is None:
        return name
    operands = [_named(other, parts, written) for other in part.operands]

    def renamed(access: Access) -> Access:
        indices = tuple(IndexVar(written.get(var.name, var.name)) for var in access.indices)
        return Access(replace(access.tensor, name=operands[NAMES.index(access.tensor.name)]), indices)

    return str(mapped(part.request.value, renamed))
