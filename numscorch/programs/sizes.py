"""Whether the operands of a program's part agree about the sizes of indices; errors name them as the program does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import SizeError
from ..ir.index import Access, mapped
from ..operand import Operand
from ..problem import reversed_hint
from ..runtime.dispatch import describe
from ..statements import NAMES, Part


def check_sizes(text: str, parts: Sequence[Part], part: Part, values: Mapping[str, Any]) -> None:
    """That an index has one size in all operands of a part, size 1 apart.

    Raises:
        SizeError: it has two.

    >>> import torch
    >>> from ..statements import parse_program
    >>> parts = parse_program("y[i] = A[i,j] * x[j]")
    >>> check_sizes("y[i] = A[i,j] * x[j]", parts, parts[0], {"A": torch.ones(2, 3), "x": torch.ones(4)})
    Traceback (most recent call last):
        ...
    numscorch.errors.SizeError: index j has size 3 in A but 4 in x
      y[i] = A[i,j] * x[j]     A: 2x3 (dense)     x: 4 (dense)
    """
    found: dict[str, tuple[int, int]] = {}
    for at, (name, indices) in enumerate(zip(part.operands, part.request.subscripts.operands, strict=True)):
        for index, size in zip(indices, values[name].shape, strict=True):
            known, first = found.get(index, (1, at))
            if known == 1:
                found[index] = (size, at)
            elif size not in (1, known) and first != at:
                raise _clash(text, parts, part, values, index, (first, known), (at, size))


def _clash(
    text: str, parts: Sequence[Part], part: Part, values: Mapping[str, Any], index: str, first: tuple[int, int], second: tuple[int, int]
) -> SizeError:
    operands = [values[name] if isinstance(values[name], Operand) else describe(values[name]) for name in part.operands]
    names = [_named(name, parts) for name in part.operands]
    listed = "     ".join(f"{name}: {own}" for name, own in zip(names, operands, strict=True))
    hint = reversed_hint(part.request.subscripts, operands, index, second[0], names)
    told = f"index {index} has size {first[1]} in {names[first[0]]} but {second[1]} in {names[second[0]]}"
    return SizeError(f"{told}\n  {text}     {listed}{hint}")


def _named(name: str, parts: Sequence[Part]) -> str:
    """An operand as the program has it: a temporary is the part of the text that it stands for."""
    made = next((own for own in parts if own.name == name and own.is_temporary), None)
    if made is None or made.request.value is None:
        return name
    operands = [_named(own, parts) for own in made.operands]

    def renamed(access: Access) -> Access:
        return replace(access, tensor=replace(access.tensor, name=operands[NAMES.index(access.tensor.name)]))

    return str(mapped(made.request.value, renamed))
