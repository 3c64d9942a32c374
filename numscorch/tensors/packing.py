"""Packing: coordinates into the index arrays of any format, and back.

Everything here works on whole numpy arrays, one level after the other.  What a level stores follows
from two things: the parent position of each entry, and which entries are the first with their
coordinates so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import torch
from numpy.typing import DTypeLike

from ..errors import FormatError, SizeError
from ..ir.format import COO, Format
from ..ir.level import INT32_MAX, INT64_MAX, Arrays, Entries, Level, Parents
from ..machine import memory
from .pattern import Pattern

EACH = 4  # bytes of a value, or of a coordinate, at the least


def pack(
    indices: np.ndarray, shape: Sequence[int], format: Format, index_dtype: DTypeLike | None = None
) -> tuple[Pattern, np.ndarray, np.ndarray]:
    """Build the pattern that stores given coordinates.

    Entries are sorted by the levels' coordinates.  Equal coordinates get the same position: summing
    or refusing them is the caller's concern, as is their being in range.  O(n log n), O(n) when
    sorted, and O(positions) for what dense levels add.

    Args:
        indices: coordinates, int64 of shape (ndim, n).
        shape: size of every dimension.
        format: how to store them.
        index_dtype: int32 or int64; int64 is used where int32 does not fit. By default the smaller that fits.

    Returns:
        The pattern, ``slots`` (the leaf position of the k-th sorted entry), and ``order`` (the sorting
        permutation): ``values[slots] = entries[order]``.

    Raises:
        FormatError: the format has another number of dimensions, or a level that can't store these entries.
        SizeError: the positions of dense levels can't be counted in int64.

    >>> pattern, slots, order = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds"))
    >>> [a.tolist() for a in pattern.arrays[1]], order.tolist()
    ([[0, 1, 2], [2, 0]], [1, 0])
    """
    shape = tuple(int(size) for size in shape)
    check_order(format, shape)
    sizes, columns = format.sizes(shape), [part.of(indices, shape) for part in format.parts]
    order, is_sorted = sorting(columns, sizes, indices.shape[1])
    columns = columns if is_sorted else [column[order] for column in columns]
    levels, arrays, positions, count, order = _pack_levels(format, columns, sizes, order)
    dtype = index_dtype_for(sizes, count, index_dtype)
    tensors = tuple(
        tuple(torch.from_numpy(array.astype(level.array_dtype(name) or dtype)) for name, array in zip(level.arrays, stored, strict=True))
        for level, stored in zip(levels, arrays, strict=True)
    )
    return Pattern(Format(levels, format.parts), shape, tensors), positions, order


def _pack_levels(
    format: Format, columns: list[np.ndarray], sizes: tuple[int, ...], order: np.ndarray
) -> tuple[list[Level], list[Arrays], np.ndarray, int, np.ndarray]:
    """Pack sorted entries level by level: levels, their arrays, the entries' positions, and how many positions there are.

    Below a level without order, entries come in the order of its positions; the last answer is theirs.
    """
    firsts = _firsts(columns)
    levels: list[Level] = []
    arrays: list[Arrays] = []
    positions, count = np.zeros(len(order), dtype=np.int64), 1
    for at, level in enumerate(format.levels):
        if at and not format.levels[at - 1].is_ordered:
            moved = np.argsort(positions, kind="stable")
            positions, order = positions[moved], order[moved]
            columns, firsts = [column[moved] for column in columns], [first[moved] for first in firsts]
        entries = Entries(
            columns[at], firsts[_run_end(format.levels, at)], positions, count, at, sizes, tuple(columns[:at]), tuple(columns[at + 1 :])
        )
        try:
            check_room(level.room(entries), level, format)
            arrays_, stored, positions, count = level.pack(entries)
            check_room(count, level, format)
        except FormatError as error:
            raise FormatError(f"level {at + 1} ({level}) of {format} {error}{_kept_by(format)}") from error
        except MemoryError as error:
            raise SizeError(f"level {at + 1} ({level}) of {format.name} does not fit in memory: use compressed levels") from error
        except SizeError as error:
            raise SizeError(f"level {at + 1} ({level}) of {format.name}: {error}") from error
        levels.append(arrays_)
        arrays.append(stored)
    return levels, arrays, positions, count, order


def _kept_by(format: Format) -> str:
    """Which sparsifier keeps what an n:m format stores; empty for any other format."""
    name = format.name
    return f"; sparsify.{name.replace('NM', 'n_m')} keeps what {name} stores" if name.startswith("NM(") else ""


def check_room(positions: int, level: Level, format: Format) -> None:
    """Hold what so many positions of a level take, values and coordinates, against the memory limit.

    Raises:
        SizeError: it is more.
    """
    if (
        size := positions * (EACH if "crd" not in level.arrays else 2 * EACH)
    ) > memory.ASK_FROM:  # the error's text is not for every call: it takes longer than packing a few entries
        memory.check_bytes(size, f"storing {positions} positions", str(format), memory.compressed_instead(format.order))


def check_order(format: Format, shape: Sequence[int]) -> None:
    """Refuse a format of another number of dimensions."""
    if format.order != len(shape):
        raise FormatError(
            f"format {format.name} has {format.order} dimensions, but shape {tuple(shape)} has {len(shape)}: "
            f"use a format of {len(shape)} dimensions, as in {Format('d' * (len(shape) - 1) + 's' if len(shape) else '')!r}"
        )


def index_dtype_for(shape: Sequence[int], nnz: int, wanted: DTypeLike | None = None) -> np.dtype:
    """int32 where sizes and positions fit and nothing else is wanted, else int64.

    >>> index_dtype_for((3, 4), 5), index_dtype_for((2**40,), 5, np.int32), index_dtype_for((3,), 1, "int64")
    (dtype('int32'), dtype('int64'), dtype('int64'))
    """
    fits = max((nnz, *shape)) <= INT32_MAX
    return np.dtype(np.int32 if fits and (wanted is None or np.dtype(wanted) == np.int32) else np.int64)


def sorting(columns: Sequence[np.ndarray], sizes: Sequence[int], n: int) -> tuple[np.ndarray, bool]:
    """The stable permutation that sorts n entries by these columns, the first one first, and whether they already were sorted."""
    if prod(sizes) <= INT64_MAX:
        key = np.zeros(n, dtype=np.int64)
        for column, size in zip(columns, sizes, strict=True):
            key = key * size + column
        if n < 2 or bool((key[1:] >= key[:-1]).all()):
            return np.arange(n), True
        if prod(sizes) << n.bit_length() <= INT64_MAX:
            return sorting_numbers(key)[1], False
        # torch sorts integers by radix, in parallel: twice as fast as numpy's stable sort
        return torch.sort(torch.from_numpy(key), stable=True).indices.numpy(), False
    if bool(in_order(columns, strict=False).all()):
        return np.arange(n), True
    return np.lexsort(columns[::-1]), False


def sorting_numbers(key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The keys in order, and the stable permutation that sorts them; a key and a place, one above the other, fit into 63 bits.

    NumPy sorts plain integers in SIMD registers: 2 to 12 times as fast as torch sorts them together with their places.

    >>> [part.tolist() for part in sorting_numbers(np.array([7, 5, 7, 0]))]
    [[0, 5, 7, 7], [3, 1, 0, 2]]
    """
    n = len(key)
    bits = n.bit_length()
    numbers = key << bits
    numbers |= np.arange(n)
    numbers.sort()
    places = numbers & ((1 << bits) - 1)
    numbers >>= bits
    return numbers, places


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


def coordinates(pattern: Pattern) -> torch.Tensor:
    """Coordinates of the stored values: (ndim, n) int64, in storage order.

    Entries that dense levels add are included, positions outside the tensor (of blocks that reach over its
    edge) are not.  Remembered with the pattern; O(ndim * nnz).

    >>> coordinates(pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds"))[0]).tolist()
    [[0, 1], [2, 0]]
    """
    return _unpacked(pattern)[0]


def positions_of(pattern: Pattern, entries: np.ndarray) -> np.ndarray:
    """Where the values of entries lie, which are given by their places among the coordinates."""
    positions = _unpacked(pattern)[1]
    return entries if positions is None else positions[entries]


def of_entries(pattern: Pattern, values: torch.Tensor) -> torch.Tensor:
    """Of a value for each position those of entries, in the order of their coordinates: the same tensor where each has one.

    >>> bitmap = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("(i, j) -> (i: dense, j: bitmap)"))[0]
    >>> of_entries(bitmap, torch.arange(6))
    tensor([2, 3])
    """
    positions = _unpacked(pattern)[1]
    return values if positions is None else values.index_select(0, torch.from_numpy(positions))


def at_positions(pattern: Pattern, entries: torch.Tensor) -> torch.Tensor:
    """Of a value for each entry, in the order of their coordinates, one for each position: 0 at those that hold none.

    >>> bitmap = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("(i, j) -> (i: dense, j: bitmap)"))[0]
    >>> at_positions(bitmap, torch.tensor([5, 7]))
    tensor([0, 0, 5, 7, 0, 0])
    """
    positions = _unpacked(pattern)[1]
    return entries if positions is None else entries.new_zeros(pattern.nnz).index_copy_(0, torch.from_numpy(positions), entries)


def at_entries(pattern: Pattern, function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
    """A function of values that lie in a pattern's order: of entries alone, 0 at positions that hold none.

    Other tensors among them have no dimensions.
    """
    if not has_gaps(pattern):
        return function(*values)
    return at_positions(pattern, function(*(of_entries(pattern, value) if value.ndim else value for value in values)))


def entry_count(pattern: Pattern) -> int:
    """How many entries are stored: the positions, less those that hold none and those outside of the tensor.

    Remembered with the pattern; O(1) where every position holds an entry, else O(positions).

    >>> bitmap = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("(i, j) -> (i: dense, j: bitmap)"))[0]
    >>> bitmap.nnz, entry_count(bitmap)
    (6, 2)
    """
    if not has_gaps(pattern):
        return pattern.nnz
    return pattern.remember("entry count", lambda: int(_unpack(pattern)[0].shape[1]))


def has_gaps(pattern: Pattern) -> bool:
    """Whether there may be positions that hold no entry, or lie outside of the tensor."""
    if any(level.gaps for level in pattern.format.levels):
        return True
    return not pattern.format.is_plain and prod(pattern.format.sizes(pattern.shape)) != prod(pattern.shape)


def _unpacked(pattern: Pattern) -> tuple[torch.Tensor, np.ndarray | None]:
    return pattern.remember("coordinates", lambda: _unpack(pattern))


def _unpack(pattern: Pattern) -> tuple[torch.Tensor, np.ndarray | None]:
    shared = _shared_rows(pattern)
    if shared is not None:
        return shared, None
    if any(level.gaps or level.full or not level.arrays for level in pattern.format.levels):  # the arrays need not list every entry
        where, way_out = pattern.format.name, "a kernel reads the levels without a list of coordinates: use einsum or evaluate"
        memory.check_entries(pattern.nnz, len(pattern.shape), EACH, "a list of coordinates", where, way_out)
    columns, positions = _unpack_levels(pattern)
    table = np.empty((len(pattern.shape), len(positions)), dtype=np.int64)
    table[:] = 0
    for part, column in zip(pattern.format.parts, columns, strict=True):
        if part.minus is None:
            table[part.dimension] += column * part.divisor
    if not pattern.format.is_plain:
        inside = (table < np.array(pattern.shape)[:, None]).all(axis=0)
        table, positions = table[:, inside], positions[inside]
    return torch.from_numpy(table), None if is_identity(positions, pattern.nnz) else positions


def level_coordinates(pattern: Pattern) -> list[np.ndarray]:
    """The coordinates of the stored values in each level: of a block's number and of the place in it where a format has both. O(nnz).

    >>> [column.tolist() for column in level_coordinates(pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds", (1, 0)))[0])]
    [[0, 2], [1, 0]]
    """
    return _unpack_levels(pattern)[0]


def _unpack_levels(pattern: Pattern) -> tuple[list[np.ndarray], np.ndarray]:
    """For every stored entry its coordinate in each level, and its position."""
    sizes, columns = pattern.format.sizes(pattern.shape), list[np.ndarray]()
    positions = np.zeros(1, dtype=np.int64)
    for at, level in enumerate(pattern.format.levels):
        children = level.unpack(pattern.level_arrays(at), Parents(positions, tuple(columns), at, sizes))
        if not (isinstance(children.counts, int) and children.counts == 1):
            columns = [np.repeat(column, children.counts) for column in columns]
        columns.append(children.coordinates.astype(np.int64, copy=False))  # narrow ones would wrap around
        positions = children.positions
    return columns, positions


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


def is_identity(places: np.ndarray, n: int) -> bool:
    """Whether places are 0, 1, ... n - 1."""
    return len(places) == n and bool((places == np.arange(n)).all())
