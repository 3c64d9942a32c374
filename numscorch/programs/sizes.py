"""Checks of index sizes in a program; errors use the names in the program's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..frontend.parser import Subscripts
from ..frontend.problem import clash_error, size_clash
from ..frontend.requests import NAMES, Operand
from ..frontend.statements import ProgramPart, index_names
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
    subscripts = part.request.subscripts
    clash = size_clash(subscripts, [values[name].shape for name in part.operands])
    if clash is not None:
        index, first, second = clash
        written = index_names(text)
        operands = [values[name] if isinstance(values[name], Operand) else describe(values[name]) for name in part.operands]
        names = [_named(name, parts, written) for name in part.operands]
        terms = tuple(tuple(written.get(index, index) for index in term) for term in (*subscripts.operands, subscripts.result))
        raise clash_error((written.get(index, index), first, second), Subscripts(terms[:-1], terms[-1]), operands, names, text)


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
