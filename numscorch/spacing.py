"""Spacing: entries below the same parents, in a level that gives each parent its own room: padded to a width, or in a hash table."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from .copies import copying
from .errors import FormatError
from .ir.format import CSR, Format
from .ir.implicit import Implicit
from .ir.level import Level, times
from .ir.levels import Compressed, Dense
from .packing import check_room
from .parser import Subscripts
from .pattern import Pattern
from .statements import Request

if TYPE_CHECKING:
    from .sparse_tensor import SparseTensor


def can_be_spaced(format: Format) -> bool:
    """Whether entries below each parent can be moved to its room with what is stored below them.

    >>> [can_be_spaced(Format(f"(i, j) -> (i: {i}, j: {j})")) for i, j in (("dense", "fixed"), ("hash", "hash"))]
    [True, True]
    """
    spaced = [at for at, level in enumerate(format.levels) if level.spaced]
    return not spaced or not any(isinstance(level, Implicit) for level in format.levels[spaced[0] + 1 :])


def respaced(A: SparseTensor, format: Format) -> SparseTensor:
    """A tensor with spaced levels in the place of compressed ones, by kernels that copy the entries of one parent after the other.

    Raises:
        FormatError: a level can't store these entries.
    """
    for at in (at for at, level in enumerate(format.levels) if level.spaced):
        A = _respaced(A, format, at)
    return A


def _respaced(A: SparseTensor, format: Format, at: int) -> SparseTensor:
    """The same with one level spaced, whose parents are the positions above."""
    level, below = _fitted(A, format, at), A.format.levels[at + 1 :]
    if all(lower == Dense() for lower in below):
        made = _moved(A, at, level, A.values, len(below))
        arrays, values = made.pattern.arrays[1:], made.values
    else:
        numbered = _moved(A, at, level, torch.arange(1, A.pattern.counts[at] + 1), 0)
        lower = _selected(A, at, numbered.values)
        arrays, values = (*numbered.pattern.arrays[1:], *lower.pattern.arrays[1:]), lower.values
    made_format = Format((*A.format.levels[:at], level, *below), format.parts)
    return type(A).trusted(Pattern(made_format, A.pattern.shape, (*A.pattern.arrays[:at], *arrays)), values)


def _fitted(A: SparseTensor, format: Format, at: int) -> Level:
    """The level with what it needs to know of the entries below each parent.

    Raises:
        FormatError: it can't store these entries.
    """
    sizes, children = format.sizes(A.shape), np.diff(A.pattern.level_arrays(at)[0])
    try:
        level = format.levels[at].fitted(children, sizes[at])
    except FormatError as error:
        raise FormatError(f"level {at + 1} ({format.levels[at]}) of {format} {error}") from error
    dense = [size for size, lower in zip(sizes[at + 1 :], A.format.levels[at + 1 :], strict=True) if lower == Dense()]
    check_room(times(level.places(children), prod(dense)), format)
    return level


def _moved(A: SparseTensor, at: int, level: Level, values: torch.Tensor, depth: int) -> SparseTensor:
    """What is below each parent, and so many dense levels below that, in the rooms of a level."""
    from .computing import compute  # late: kernels read operands in other formats, and so convert them

    arrays, below = A.pattern.arrays[at], (Dense(),) * depth
    rows, target = Format((Dense(), Compressed(), *below)), Format((Dense(), level, *below))
    shape = (len(arrays[0]) - 1, *A.format.sizes(A.shape)[at : at + 1 + depth])
    part = type(A).trusted(Pattern(rows, shape, ((), arrays, *((),) * depth)), values)
    made: SparseTensor = compute(copying(rows, target), (part,), target)
    return made


def _selected(A: SparseTensor, at: int, numbers: torch.Tensor) -> SparseTensor:
    """What is below each position of a level where positions are given other numbers, from 1; a place that has none stays empty."""
    from .computing import compute  # late, as above

    dtype = A.pattern.level_arrays(at)[0].dtype
    starts = np.concatenate([[0], np.cumsum(numbers.numpy() > 0)]).astype(dtype)
    old = (numbers[numbers > 0] - 1).numpy().astype(dtype)
    chosen = Pattern(CSR, (len(numbers), len(old)), ((), (torch.from_numpy(starts), torch.from_numpy(old))))
    rows = Format((Dense(), *A.format.levels[at + 1 :]))
    part = Pattern(rows, (len(old), *A.format.sizes(A.shape)[at + 1 :]), ((), *A.pattern.arrays[at + 1 :]))
    ones = torch.ones(len(old), dtype=A.dtype)
    made: SparseTensor = compute(_selecting(rows.order), (type(A).trusted(chosen, ones), type(A).trusted(part, A.values)), rows)
    return made


@lru_cache(maxsize=64)
def _selecting(order: int) -> Request:
    """Rows of a tensor by their numbers."""
    below = tuple(f"i{at}" for at in range(1, order))
    return Request(Subscripts((("new", "old"), ("old", *below)), ("new", *below)))
