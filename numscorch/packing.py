"""Packing: coordinates into the index arrays of any format, and back.

Everything here works on whole numpy arrays, one level after the other.  What a level stores follows
from two things: the parent position of each entry, and which entries are the first with their
coordinates so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import torch
from numpy.typing import DTypeLike

from .errors import FormatError, SizeError, UnsupportedError
from .ir.format import COO, Format
from .ir.levels import Level
from .pattern import Pattern
from .runtime.threads import must_run_serial

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def pack(
    indices: np.ndarray, shape: Sequence[int], format: Format, index_dtype: DTypeLike | None = None
) -> tuple[Pattern, np.ndarray, np.ndarray]:
    """Build the pattern that stores given coordinates.

    Entries are sorted by the format's mode order.  Equal coordinates get the same position: summing
    or refusing them is the caller's concern, as is their being in range.  O(n log n), O(n) when
    sorted, and O(positions) for what dense levels add.

    Args:
        indices: coordinates, int64 of shape (ndim, n).
        shape: size of every dimension.
        format: how to store them: dense, compressed and singleton levels in any order.
        index_dtype: int32 or int64; int64 is used where int32 does not fit. By default the smaller that fits.

    Returns:
        The pattern, ``slots`` (the leaf position of the k-th sorted entry), and ``order`` (the sorting
        permutation): ``values[slots] = entries[order]``.

    Raises:
        FormatError: the format has another number of levels, or a singleton level whose parents
            don't have exactly one child each.
        SizeError: the positions of dense levels can't be counted in int64.
        UnsupportedError: a level that stores no coordinates of its own.

    >>> pattern, slots, order = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds"))
    >>> [a.tolist() for a in pattern.arrays[1]], order.tolist()
    ([[0, 1, 2], [2, 0]], [1, 0])
    """
    shape = tuple(int(size) for size in shape)
    check_order(format, shape)
    order, is_sorted = sorting(indices, shape, format.mode_order)
    columns = [indices[d] if is_sorted else indices[d][order] for d in format.mode_order]
    firsts = _firsts(columns)
    positions, count = np.zeros(indices.shape[1], dtype=np.int64), 1
    arrays: list[tuple[np.ndarray, ...]] = []
    stored: tuple[np.ndarray, ...]
    for at, (level, column) in enumerate(zip(format.levels, columns, strict=True)):
        size, first = shape[format.mode_order[at]], firsts[_run_end(format.levels, at)]
        if level.full:
            count = _product(format, count, size)
            positions, stored = positions * size + column, ()
        elif level.branchless:
            stored = _pack_singleton(format, at, column, first, positions, count)
        else:
            stored, positions, count = _pack_compressed(column, first, positions, count)
        arrays.append(stored)
    dtype = index_dtype_for(shape, count, index_dtype)
    tensors = tuple(tuple(torch.from_numpy(a.astype(dtype)) for a in stored) for stored in arrays)
    return Pattern(format, shape, tensors), positions, order


def check_order(format: Format, shape: Sequence[int]) -> None:
    """Refuse a format whose number of levels differs from the number of dimensions."""
    if format.order != len(shape):
        raise FormatError(
            f"format {format.name} has {format.order} levels, but shape {tuple(shape)} has {len(shape)} dimensions: "
            f"use a format of {len(shape)} levels, as in {Format('d' * (len(shape) - 1) + 's' if len(shape) else '')!r}"
        )


def index_dtype_for(shape: Sequence[int], nnz: int, wanted: DTypeLike | None = None) -> np.dtype:
    """int32 where sizes and positions fit and nothing else is wanted, else int64.

    >>> index_dtype_for((3, 4), 5), index_dtype_for((2**40,), 5, np.int32), index_dtype_for((3,), 1, "int64")
    (dtype('int32'), dtype('int64'), dtype('int64'))
    """
    fits = max((nnz, *shape)) <= INT32_MAX
    return np.dtype(np.int32 if fits and (wanted is None or np.dtype(wanted) == np.int32) else np.int64)


def sorting(indices: np.ndarray, shape: Sequence[int], mode_order: Sequence[int]) -> tuple[np.ndarray, bool]:
    """The stable permutation that sorts entries by mode order, and whether they already were sorted."""
    n = indices.shape[1]
    if prod(shape) <= INT64_MAX:
        key = np.zeros(n, dtype=np.int64)
        for d in mode_order:
            key = key * shape[d] + indices[d]
        if n < 2 or bool((key[1:] >= key[:-1]).all()):
            return np.arange(n), True
        if must_run_serial():  # torch's threads hang in a forked child
            return np.argsort(key, kind="stable"), False
        # torch sorts integers by radix, in parallel: twice as fast as numpy's stable sort
        return torch.sort(torch.from_numpy(key), stable=True).indices.numpy(), False
    columns = [indices[d] for d in mode_order]
    if bool(in_order(columns, strict=False).all()):
        return np.arange(n), True
    return np.lexsort(columns[::-1]), False


def in_order(columns: Sequence[np.ndarray], *, strict: bool = True) -> np.ndarray:
    """For each entry but the first, whether its tuple of coordinates comes after the one before.

    >>> in_order([np.array([0, 0, 1, 1]), np.array([3, 5, 0, 0])]).tolist()
    [True, True, False]
    """
    n = len(columns[0]) if columns else 0
    after = np.full(max(n - 1, 0), not strict)
    for column in reversed(columns):
        after = (column[:-1] < column[1:]) | ((column[:-1] == column[1:]) & after)
    return after


def _firsts(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """firsts[l][k]: whether entry k is the first one with its coordinates of levels 0 to l."""
    firsts: list[np.ndarray] = []
    for column in columns:
        first = np.ones(len(column), dtype=bool)
        np.not_equal(column[1:], column[:-1], out=first[1:])
        firsts.append(first | firsts[-1] if firsts else first)
    return firsts


def _run_end(levels: Sequence[Level], at: int) -> int:
    """A level with repeated coordinates has the positions of the first unique level below it."""
    while not levels[at].is_unique:
        at += 1
    return at


def _product(format: Format, count: int, size: int) -> int:
    if count * size > INT64_MAX:
        raise SizeError(f"the dense levels of {format.name} have {count} x {size} positions: use compressed levels")
    return count * size


def _pack_compressed(
    column: np.ndarray, first: np.ndarray, parents: np.ndarray, count: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, int]:
    crd = column[first]
    try:
        pos = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(parents[first], minlength=count), out=pos[1:])
    except MemoryError as error:
        raise SizeError(f"a pos array for {count} parents does not fit in memory: use compressed levels above, as in DCSR") from error
    return (pos, crd), np.cumsum(first) - 1, len(crd)


def _pack_singleton(format: Format, at: int, column: np.ndarray, first: np.ndarray, parents: np.ndarray, count: int) -> tuple[np.ndarray]:
    level = format.levels[at]
    if "crd" not in level.arrays:
        raise UnsupportedError(f"level {at + 1} ({level}) of {format} stores no coordinates: pack them in a compressed level")
    children = np.bincount(parents[first], minlength=count)
    wrong = np.flatnonzero(children != 1)
    if wrong.size:
        raise FormatError(
            f"level {at + 1} ({level}) of {format} holds one coordinate for each position above it, "
            f"but position {wrong[0]} has {children[wrong[0]]}: use a compressed level"
        )
    return (column[first],)


def coordinates(pattern: Pattern) -> torch.Tensor:
    """Coordinates of the stored values: (ndim, nnz) int64, in storage order.

    Entries that dense levels add are included.  Remembered with the pattern; O(ndim * nnz).

    >>> coordinates(pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds"))[0]).tolist()
    [[0, 1], [2, 0]]
    """
    return pattern.remember("coordinates", lambda: _coordinates(pattern))


def _coordinates(pattern: Pattern) -> torch.Tensor:
    shared = _shared_rows(pattern)
    if shared is not None:
        return shared
    columns: list[np.ndarray] = []
    parents = 1
    for at, (level, dimension) in enumerate(zip(pattern.format.levels, pattern.format.mode_order, strict=True)):
        arrays, size = pattern.level_arrays(at), pattern.shape[dimension]
        if level.full:
            columns = [np.repeat(column, size) for column in columns]
            columns.append(np.tile(np.arange(size), parents))
        elif level.branchless:
            columns.append(arrays[0] if arrays else columns[-1])
        else:
            children = np.diff(arrays[0])
            columns = [np.repeat(column, children) for column in columns]
            columns.append(arrays[1])
        parents = pattern.counts[at]
    table = np.empty((len(columns), pattern.nnz), dtype=np.int64)
    for dimension, column in zip(pattern.format.mode_order, columns, strict=True):
        table[dimension] = column
    return torch.from_numpy(table)


def _shared_rows(pattern: Pattern) -> torch.Tensor | None:
    """The index tensor of a COO tensor whose crd arrays are its rows."""
    if not pattern.shape or pattern.format != COO(len(pattern.shape)):
        return None
    rows = [arrays[-1] for arrays in pattern.arrays]
    first, n = rows[0], rows[0].numel()
    storage = first.untyped_storage().data_ptr()
    if any(row.dtype != torch.int64 or row.untyped_storage().data_ptr() != storage for row in rows):
        return None
    if any(below.storage_offset() - above.storage_offset() != n for above, below in pairwise(rows)):
        return None
    return first.as_strided((len(rows), n), (n, 1))


@dataclass(frozen=True, eq=False)
class Conversion:
    """How values move from one pattern to another: ``target[slots] = source[order]``.

    ``slots`` is None when the target stores nothing but the source's entries.
    """

    pattern: Pattern
    order: np.ndarray
    slots: np.ndarray | None

    def values(self, values: np.ndarray) -> np.ndarray:
        """The target's values, from the source's. O(nnz)."""
        gathered: np.ndarray = values[self.order]
        if self.slots is None:
            return gathered
        target = np.zeros(self.pattern.nnz, dtype=values.dtype)
        target[self.slots] = gathered
        return target

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """The same for a torch tensor; gradients flow. O(nnz)."""
        gathered = values.index_select(0, torch.from_numpy(self.order))
        if self.slots is None:
            return gathered
        return values.new_zeros(self.pattern.nnz).index_copy(0, torch.from_numpy(self.slots), gathered)


def converted(pattern: Pattern, format: Format) -> Conversion:
    """How to store the same entries in another format; remembered with the pattern.

    Every stored entry stays stored, explicit zeros too.  O(nnz log nnz) at the first call.

    Raises:
        FormatError: the format has another number of levels.

    >>> csr = pack(np.array([[0, 0, 1], [0, 2, 0]]), (2, 3), Format("ds"))[0]
    >>> converted(csr, Format("ds", (1, 0))).values(np.array([1.0, 2.0, 3.0])).tolist()
    [1.0, 3.0, 2.0]
    """

    def compute() -> Conversion:
        target, slots, order = pack(coordinates(pattern).numpy(), pattern.shape, format, pattern.index_dtype)
        return Conversion(target, order, None if is_identity(slots, target.nnz) else slots)

    return pattern.remember(("converted", format), compute)


def is_identity(places: np.ndarray, n: int) -> bool:
    """Whether places are 0, 1, ... n - 1."""
    return len(places) == n and bool((places == np.arange(n)).all())
