"""Validate index arrays against their levels.

Kernels access memory through index arrays without bounds checks, so arrays from users and files are validated first.
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch

from ..errors import FormatError
from ..ir.format import Format
from ..ir.level import Children, Level, Parents
from .coordinate_order import are_within, in_order, sorting
from .pattern import INDEX_DTYPES, Pattern

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32}  # torch cannot pickle tensors of these data types
CHUNK = 1 << 22  # entries that are compared at a time
WAY_OUT = "without assume_sorted=True, from_coo and from_csr sort and sum"


def validate(pattern: Pattern, *, order: bool = True) -> None:
    """Check the index arrays of a pattern against its levels. O(nnz).

    Args:
        pattern: the pattern.
        order: also check that coordinates are sorted and unique in levels that require it.

    Raises:
        FormatError: names the level, the position and the invalid values.

    >>> import torch
    >>> from numscorch.ir.format import CSR
    >>> validate(Pattern(CSR, (2, 3), ((), (torch.tensor([0, 1, 2]), torch.tensor([2, 3])))))
    Traceback (most recent call last):
    ...
    numscorch.FormatError: level 2 (compressed) of CSR: crd[1] = 3 is outside dimension 1 of size 3: coordinates lie in 0 to 2
    """
    for at in range(len(pattern.format.levels)):
        _check_arrays(pattern, at)
        _check_pos(pattern, at)
        _check_range(pattern, at)
    problem = disorder(pattern) if order else None
    if problem is not None:
        raise FormatError(problem)


def disorder(pattern: Pattern) -> str | None:
    """Describe the first unsorted or repeated coordinate of an otherwise valid pattern; None if there is none. O(nnz)."""
    for at, level in enumerate(pattern.format.levels):
        if "crd" in level.arrays and not level.branchless and (problem := _disordered(pattern, at)) is not None:
            return problem
    return None


def _where(pattern: Pattern, at: int) -> str:
    return f"level {at + 1} ({pattern.format.levels[at]}) of {pattern.format.name}"


def _check_arrays(pattern: Pattern, at: int) -> None:
    level, arrays = pattern.format.levels[at], pattern.arrays[at]
    if (problem := level.fits(at, pattern.format.sizes(pattern.shape))) is not None:
        raise FormatError(f"{_where(pattern, at)} {problem}")
    if len(arrays) != len(level.arrays):
        raise FormatError(f"{_where(pattern, at)} takes {len(level.arrays)} index arrays {level.arrays}, not {len(arrays)}")
    for name, array in zip(level.arrays, arrays, strict=True):
        if array.ndim != 1 or not array.is_contiguous():
            raise FormatError(f"{_where(pattern, at)}: {name} has shape {tuple(array.shape)}: pass a contiguous 1-D tensor")
        wanted = level.array_dtype(name)
        if wanted is not None and array.dtype != getattr(torch, wanted):
            raise FormatError(f"{_where(pattern, at)}: {name} has dtype {array.dtype}, but the level stores {wanted}: convert it")
        if wanted is None and INDEX_DTYPES.get(array.dtype) != pattern.index_dtype:
            raise FormatError(
                f"{_where(pattern, at)}: {name} has dtype {array.dtype}, but the first index array has {pattern.index_dtype}: "
                "pass all of them as int32 or all as int64"
            )


def _check_pos(pattern: Pattern, at: int) -> None:
    level = pattern.format.levels[at]
    if not level.arrays:
        return
    parents, count = pattern.counts[at - 1] if at else 1, pattern.counts[at]
    if "pos" not in level.arrays:
        if pattern.arrays[at][-1].numel() != level.length(parents, count):
            above = f"the level above has {count} positions" if level.branchless else f"its {parents} parents have {count} positions"
            raise FormatError(f"{_where(pattern, at)}: {level.arrays[-1]} has {pattern.arrays[at][-1].numel()} entries, but {above}")
        return
    pos = pattern.level_arrays(at)[0]
    if len(pos) != parents + 1:
        raise FormatError(f"{_where(pattern, at)}: pos has {len(pos)} entries, but its {parents} parents need {parents + 1}")
    if pos[0] != 0:
        raise FormatError(f"{_where(pattern, at)}: pos[0] = {pos[0]}, but positions start at 0")
    decreases = pos[1:] < pos[:-1]
    if decreases.any():
        k = int(np.argmax(decreases))
        raise FormatError(f"{_where(pattern, at)}: pos[{k + 1}] = {pos[k + 1]} is less than pos[{k}] = {pos[k]}: pos may not decrease")
    if pos[-1] != count:
        raise FormatError(
            f"{_where(pattern, at)}: pos ends at {pos[-1]}, but crd has {count} entries: the last entry of pos is the length of crd"
        )


def _check_range(pattern: Pattern, at: int) -> None:
    arrays, part = pattern.level_arrays(at), pattern.format.parts[at]
    size, dimension = part.extent(pattern.shape), part.dimension if part.is_whole else str(part)
    if "crd" not in pattern.format.levels[at].arrays or are_within(arrays[-1], size):
        return
    crd, stored = arrays[-1], _children(pattern, at)  # excludes the free slots of a hash table
    wrong = np.flatnonzero((stored.coordinates < 0) | (stored.coordinates >= size))
    if not wrong.size:
        return
    k = int(stored.positions[wrong[0]])
    allowed = f"coordinates lie in 0 to {size - 1}" if size else "it can't store anything"
    raise FormatError(f"{_where(pattern, at)}: crd[{k}] = {crd[k]} is outside dimension {dimension} of size {size}: {allowed}")


def _children(pattern: Pattern, at: int) -> Children:
    """Unpack the children of all parents in a level."""
    parents = np.arange(pattern.counts[at - 1] if at else 1)
    return pattern.format.levels[at].unpack(pattern.level_arrays(at), Parents(parents, (), at, pattern.format.sizes(pattern.shape)))


def _disordered(pattern: Pattern, at: int) -> str | None:
    """Describe the first coordinate of a level that is out of order, or repeated, below its parent; None if there is none."""
    run, ends, positions = _run(pattern, at)
    levels = pattern.format.levels[at : at + len(run)]
    ordered = next((depth for depth, level in enumerate(levels) if not level.is_ordered), len(run))
    pair = _unsorted(run[:ordered], ends, strict=ordered == len(run)) if ordered else None
    if pair is None and ordered < len(run):
        pair = _repeated(run, ends, pattern.format.sizes(pattern.shape)[at : at + len(run)])
    if pair is None:
        return None
    before, here = (str(tuple(int(crd[entry]) for crd in run)) if len(run) > 1 else str(run[0][entry]) for entry in pair)
    clash = f"repeats the coordinate {here}" if before == here else f"has coordinate {here} after {before}"
    place = f"position {positions[pair[1]]}, below parent {np.searchsorted(ends, pair[1], side='right')}"
    rule = f"coordinates must increase; {WAY_OUT}" if levels[0].is_ordered else "each is stored once"
    return f"{_where(pattern, at)}: {place}, {clash}: {rule}"


def _run(pattern: Pattern, at: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray | range]:
    """The stored coordinates of a level (a list of columns), the end of each parent's coordinates, and their positions.

    A non-unique level has further columns: the coordinates of the singleton levels below it, down to the first unique level.
    """
    levels = pattern.format.levels[at:]
    if "pos" not in levels[0].arrays:
        children = _children(pattern, at)
        ends = np.cumsum(np.broadcast_to(children.counts, pattern.counts[at - 1] if at else 1))
        return [children.coordinates], ends, children.positions
    length = next(depth for depth, level in enumerate(levels, 1) if level.is_unique)
    run = [pattern.level_arrays(below)[-1] for below in range(at, at + length)]
    return run, pattern.level_arrays(at)[0][1:], range(len(run[0]))


def _unsorted(columns: Sequence[np.ndarray], ends: np.ndarray, strict: bool) -> tuple[int, int] | None:
    """The first two consecutive entries of one parent that are out of order."""
    count = len(columns[0])
    for start in range(0, count - 1, CHUNK):
        follows = in_order([column[start : start + CHUNK + 1] for column in columns], strict=strict)
        inside = ends[np.searchsorted(ends, start, "right") : np.searchsorted(ends, start + len(follows), "right")]
        follows[inside - start - 1] = True
        if not follows.all():
            wrong = start + int(np.argmin(follows))
            return wrong, wrong + 1
    return None


def _repeated(columns: Sequence[np.ndarray], ends: np.ndarray, sizes: Sequence[int]) -> tuple[int, int] | None:
    """Two entries of one parent with the same coordinates."""
    owner = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    stored = np.flatnonzero(columns[0] >= 0)  # the free slots of a hash table hold -1
    keys = [column[stored] for column in (owner, *columns)]
    order = sorting(keys, (len(ends), *sizes), len(stored))[0]
    repeats = np.flatnonzero(~in_order([key[order] for key in keys]))
    return (stored[order[repeats[0]]], stored[order[repeats[0] + 1]]) if repeats.size else None


def _parts_of(pattern: Pattern) -> tuple[Any, ...]:
    """Pickle the format, shape and arrays of a pattern; derived data and the signature are local to the process."""
    # arrays that torch can pickle are not copied, because modules may refer to them, too
    arrays = tuple(
        tuple([array.view(SIGNED[array.dtype]) if array.dtype in SIGNED else array for array in level]) for level in pattern.arrays
    )
    return _rebuild_pattern, (pattern.format, pattern.shape, arrays)


def checked_pattern(format: Format, shape: tuple[int, ...], arrays: tuple[tuple[torch.Tensor, ...], ...]) -> Pattern:
    """A validated pattern of index arrays from a file.

    Raises:
        FormatError: the arrays violate the format.
    """
    pattern = Pattern(format, shape, arrays)
    validate(pattern)
    return pattern


def _rebuild_pattern(format: Format, shape: tuple[int, ...], arrays: tuple[tuple[torch.Tensor, ...], ...]) -> Pattern:
    """Unpickle a pattern; pickles refer to this function as ``numscorch._rebuild_pattern``."""
    stored = tuple(
        tuple(map(_as_stored, level.arrays, level_arrays, repeat(level))) for level, level_arrays in zip(format.levels, arrays, strict=True)
    )
    return checked_pattern(format, shape, stored)


def _as_stored(name: str, array: torch.Tensor, level: Level) -> torch.Tensor:
    """An unpickled index array in the data type that its level stores."""
    dtype = level.array_dtype(name)
    return array if dtype is None or array.dtype == getattr(torch, dtype) else array.view(getattr(torch, dtype))


copyreg.pickle(Pattern, _parts_of)
