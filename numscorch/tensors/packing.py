"""Pack coordinates into the index arrays of any format, and unpack them again.

All functions work on whole NumPy arrays, level by level. The arrays of a level depend on each entry's parent
position, and on whether the entry is the first with its coordinates in the levels down to this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import torch
from numpy.typing import DTypeLike

from ..errors import FormatError, SizeError
from ..ir.format import COO, CSR, Format
from ..ir.level import INT32_MAX, INT64_MAX, Arrays, Entries, Level, Parents, starts_of_runs
from ..ir.levels import Compressed, Dense, Singleton
from ..machine import memory
from ..schedule import tuning
from .coordinate_order import are_new, sorting
from .dynamo import constant
from .modes import as_numpy, in_transform, made_outside
from .pattern import Pattern

EACH = 4  # smallest size of a value or a coordinate, in bytes
GAPLESS = (Dense, Compressed, Singleton)


def pack(
    indices: Sequence[np.ndarray] | np.ndarray, shape: Sequence[int], format: Format, index_dtype: DTypeLike | None = None
) -> tuple[Pattern, np.ndarray, np.ndarray]:
    """Build the pattern that stores the given coordinates.

    Entries are sorted by the coordinates of the levels, except those of dense levels below all others. Equal coordinates share a
    position. The caller checks that coordinates are in range, and sums or rejects duplicates. O(n log n), or O(n) for sorted
    entries, plus the positions that dense levels add.

    Args:
        indices: coordinates of integers, as an array of shape (ndim, n) or as one array for each dimension.
        shape: size of every dimension.
        format: storage format.
        index_dtype: int32 or int64; int64 replaces int32 where it overflows. By default the smallest that fits.

    Returns:
        The pattern, ``slots`` (the leaf position of the k-th sorted entry), and ``order`` (the sorting
        permutation): ``values[slots] = entries[order]``.

    Raises:
        FormatError: the format has another number of dimensions, or a level cannot store these entries.
        SizeError: the number of positions exceeds int64 or the memory limit.

    >>> pattern, slots, order = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds"))
    >>> [a.tolist() for a in pattern.arrays[1]], order.tolist()
    ([[0, 1, 2], [2, 0]], [1, 0])
    """
    shape = tuple(int(size) for size in shape)
    check_order(format, shape)
    is_gapless = all(isinstance(level, GAPLESS) for level in format.levels)
    columns = [column.astype(summing_dtype(shape), copy=False) for column in indices]
    count = indices.shape[1] if isinstance(indices, np.ndarray) else len(columns[0])
    sizes, columns = format.sizes(shape), [part.of(columns, shape) for part in format.parts]
    depth = len(columns) - next((at for at, level in enumerate(reversed(format.levels)) if not isinstance(level, Dense)), 0)
    order, keys = sorting(columns[:depth], sizes[:depth], count)  # coordinates in dense levels below are offsets
    columns = keys + [column.take(order) for column in columns[depth:]]
    columns = columns if is_gapless else [column.astype(np.int64, copy=False) for column in columns]  # levels multiply coordinates
    levels, arrays, positions, count, order = _pack_levels(format, columns, sizes, order, depth)
    dtype = index_dtype_for(sizes, count, index_dtype)
    tensors = tuple(
        tuple(torch.from_numpy(array.astype(level.array_dtype(name) or dtype)) for name, array in zip(level.arrays, stored, strict=True))
        for level, stored in zip(levels, arrays, strict=True)
    )
    packed = format if tuple(levels) == format.levels else Format(levels, format.parts)
    return Pattern(packed, shape, tensors), positions, order


def _pack_levels(
    format: Format, columns: list[np.ndarray], sizes: tuple[int, ...], order: np.ndarray, depth: int
) -> tuple[list[Level], list[Arrays], np.ndarray, int, np.ndarray]:
    """Pack entries level by level; they are sorted by the first ``depth`` columns, and the levels below are dense.

    Returns:
        The levels, their arrays, the entries' positions, the number of positions, and the order of the entries. Entries
        below an unordered level are sorted by their positions in that level.
    """
    firsts = _firsts(columns[:depth])
    firsts += firsts[-1:] * (len(columns) - depth)
    levels: list[Level] = []
    arrays: list[Arrays] = []
    positions, count = np.zeros(len(order), dtype=np.int64), 1
    for at, level in enumerate(format.levels):
        if at and not format.levels[at - 1].is_ordered:
            reordering = np.argsort(positions, kind="stable")
            positions, order = positions[reordering], order[reordering]
            columns, firsts = [column[reordering] for column in columns], [first[reordering] for first in firsts]
        unique = next(below for below in range(at, len(format.levels)) if format.levels[below].is_unique)  # it determines the positions
        entries = Entries(columns[at], firsts[unique], positions, count, at, sizes, tuple(columns[:at]), tuple(columns[at + 1 :]))
        try:
            check_room(level.room(entries), level, format)
            level.check_entries(entries)
            packed, stored, positions, count = level.pack(entries)
            check_room(count, level, format)
            level.tell(count, len(entries.coordinates))
        except FormatError as error:
            name = format.name
            hint = f"; sparsify.{name.replace('NM', 'n_m')} keeps what {name} stores" if name.startswith("NM(") else ""
            raise FormatError(f"level {at + 1} ({level}) of {format} {error}{hint}") from error
        except MemoryError as error:
            raise SizeError(f"level {at + 1} ({level}) of {format.name} does not fit in memory: use compressed levels") from error
        except SizeError as error:
            raise SizeError(f"level {at + 1} ({level}) of {format.name}: {error}") from error
        levels.append(packed)
        arrays.append(stored)
    return levels, arrays, positions, count, order


def check_room(positions: int, level: Level, format: Format) -> None:
    """Check the size of a level's values and coordinates against the memory limit.

    Raises:
        SizeError: the size exceeds the limit.
    """
    size = positions * (EACH if "crd" not in level.arrays else 2 * EACH)
    if size > memory.ASK_FROM:  # spelling the format for the error takes longer than packing a few entries
        memory.check_bytes(size, f"storing {positions} positions", str(format), memory.compressed_instead(format.order))


def check_order(format: Format, shape: Sequence[int]) -> None:
    """Check that a format has the shape's number of dimensions.

    Raises:
        FormatError: the numbers differ.
    """
    if format.order != len(shape):
        raise FormatError(
            f"format {format.name} has {format.order} dimensions, but shape {tuple(shape)} has {len(shape)}: "
            f"use a format of {len(shape)} dimensions, such as {Format('d' * (len(shape) - 1) + 's' if len(shape) else '')!r}"
        )


def of_rows(counts: np.ndarray, columns: np.ndarray, shape: tuple[int, ...]) -> Pattern:
    """The CSR pattern with ``counts[i]`` entries in row i; the columns are not checked."""
    dtype = index_dtype_for(shape, len(columns))
    pos = starts_of_runs(counts, dtype)
    return Pattern(CSR, shape, ((), (torch.from_numpy(pos), torch.from_numpy(columns.astype(dtype)))), dtype.name)


def counted_entries(indices: np.ndarray, shape: tuple[int, ...], *, diagonal: bool = False) -> tuple[Pattern, torch.Tensor] | None:
    """The CSR pattern of a matrix's entries, and how often each one is given; None if most rows are empty or there are too many places.

    Sorting entries without values takes a third of the time of packing them. O(n log n).

    Args:
        indices: coordinates, int32 or int64 of shape (2, n); the caller checks that they are in range.
        shape: numbers of rows and columns.
        diagonal: whether each entry of the diagonal is stored and counted once, however often it is given.

    >>> pattern, counts = counted_entries(np.array([[1, 1, 1, 1], [0, 0, 1, 1]]), (2, 2), diagonal=True)
    >>> [array.tolist() for array in pattern.arrays[1]], counts.tolist()
    ([[0, 1, 3], [0, 0, 1]], [1, 2, 1])
    """
    count, added = indices.shape[1], min(shape) if diagonal else 0
    width = max(shape[1] - 1, 0).bit_length()
    if shape[0] << width > INT64_MAX or shape[0] >= tuning.COUNTED_COORDINATES * count:
        return None
    keys = np.empty(count + added, dtype=np.int64)
    np.left_shift(indices[0], width, out=keys[:count], dtype=np.int64)
    keys[:count] |= indices[1]
    keys[count:] = np.arange(added) * ((1 << width) + 1)
    keys.sort()
    is_first = are_new(keys)
    repeated = np.flatnonzero(~is_first)
    keys = keys[is_first]
    counts = np.ones(len(keys), dtype=np.int32)
    np.add.at(counts, repeated - np.arange(1, len(repeated) + 1), 1)
    rows = keys >> width
    columns = np.bitwise_and(keys, (1 << width) - 1, out=keys)
    if diagonal:
        counts[rows == columns] = 1
    return made_outside(lambda: (of_rows(np.bincount(rows, minlength=shape[0]), columns, shape), torch.from_numpy(counts)))


def index_dtype_for(shape: Sequence[int], nnz: int, wanted: DTypeLike | None = None) -> np.dtype:
    """int32 if sizes and positions fit and int64 is not requested, else int64.

    >>> index_dtype_for((3, 4), 5), index_dtype_for((2**40,), 5, np.int32), index_dtype_for((3,), 1, "int64")
    (dtype('int32'), dtype('int64'), dtype('int64'))
    """
    fits = max((nnz, *shape)) <= INT32_MAX
    return np.dtype(np.int32 if fits and (wanted is None or np.dtype(wanted) == np.int32) else np.int64)


def summing_dtype(shape: Sequence[int]) -> np.dtype:
    """The index type in which sums of two coordinates do not overflow.

    >>> summing_dtype((3, 4)), summing_dtype((2**30, 4))
    (dtype('int32'), dtype('int64'))
    """
    return index_dtype_for([2 * size for size in shape], 0)


def _firsts(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """firsts[l][k]: whether entry k is the first with its coordinates in levels 0 to l."""
    firsts: list[np.ndarray] = []
    for column in columns:
        first = are_new(column)
        firsts.append(first | firsts[-1] if firsts else first)
    return firsts


def coordinates(pattern: Pattern) -> torch.Tensor:
    """Coordinates of the stored values: (ndim, n) int64, in storage order.

    Includes entries that dense levels add; excludes positions outside the tensor, in blocks that extend past its edge.
    Cached with the pattern; O(ndim * nnz).

    >>> coordinates(pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds"))[0]).tolist()
    [[0, 1], [2, 0]]
    """
    return _unpacked(pattern)[0]


def check_countable(shape: Sequence[int]) -> None:
    """Refuse shapes with more entries than int64 linear indices can number.

    Raises:
        SizeError: the number of entries exceeds int64.
    """
    if prod(shape) > INT64_MAX:
        raise SizeError(
            f"cannot look up entries of shape {tuple(shape)}: it has more elements than int64 can count; select part of a dimension "
            "first, as in A[rows], or read the coordinates with A.indices()"
        )


def numbered(indices: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """Row-major linear indices of coordinates.

    Raises:
        SizeError: the number of entries of the shape exceeds int64.
    """
    check_countable(shape)
    numbers = torch.zeros(1 if indices else (), dtype=torch.int64)  # without a dimension, int32 coordinates would stay int32
    for coords, size in zip(indices, shape, strict=True):
        numbers = torch.add(coords, numbers, alpha=size)
    return numbers


def positions_of(pattern: Pattern, entries: np.ndarray) -> np.ndarray:
    """Convert column numbers of ``coordinates(pattern)`` to the positions of the entries' values."""
    positions = _positions(pattern)
    return entries if positions is None else positions[entries]


def of_entries(pattern: Pattern, values: torch.Tensor) -> torch.Tensor:
    """Select the values of entries, in the order of ``coordinates``; returns ``values`` itself if each position holds an entry.

    >>> bitmap = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("(i, j) -> (i: dense, j: bitmap)"))[0]
    >>> of_entries(bitmap, torch.arange(6))
    tensor([2, 3])
    """
    positions = _positions(pattern)
    return values if positions is None else values.index_select(0, torch.from_numpy(positions))


def at_positions(pattern: Pattern, entries: torch.Tensor) -> torch.Tensor:
    """Scatter one value per entry, in the order of ``coordinates``, to all positions; 0 at positions without an entry.

    >>> bitmap = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("(i, j) -> (i: dense, j: bitmap)"))[0]
    >>> at_positions(bitmap, torch.tensor([5, 7]))
    tensor([0, 0, 5, 7, 0, 0])
    """
    positions = _positions(pattern)
    return entries if positions is None else placed(entries, torch.from_numpy(positions), pattern.nnz)


def placed(values: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """A tensor with ``count`` elements: the values at these places, and zeros elsewhere.

    >>> placed(torch.tensor([5, 7]), torch.tensor([2, 0]), 4)
    tensor([7, 0, 5, 0])
    """
    zeros = values.new_zeros(count)
    return zeros.index_copy(0, places, values) if in_transform() else zeros.index_copy_(0, places, values)  # vmap would loop


def at_entries(pattern: Pattern, function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise function to the entries of value tensors; the result is 0 at positions without an entry.

    Each argument has one value per position, or no dimensions.
    """
    if not has_gaps(pattern):
        return function(*values)
    return at_positions(pattern, function(*(of_entries(pattern, value) if value.ndim else value for value in values)))


@constant
def entry_count(pattern: Pattern) -> int:
    """The number of stored entries: positions that hold an entry inside the tensor.

    Cached with the pattern; O(1) if every position holds an entry, else O(positions).

    >>> bitmap = pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("(i, j) -> (i: dense, j: bitmap)"))[0]
    >>> bitmap.nnz, entry_count(bitmap)
    (6, 2)
    """
    if not has_gaps(pattern):
        return pattern.nnz
    return pattern.remember("entry count", lambda: int(_unpack(pattern)[0].shape[1]))


def has_gaps(pattern: Pattern) -> bool:
    """Whether positions may hold no entry, or lie outside the tensor."""
    if pattern.format.has_gaps:
        return True
    return not pattern.format.is_plain and prod(pattern.format.sizes(pattern.shape)) != prod(pattern.shape)


def _positions(pattern: Pattern) -> np.ndarray | None:
    """The positions of the entries; None if each position holds an entry."""
    return _unpacked(pattern)[1] if has_gaps(pattern) else None


def _unpacked(pattern: Pattern) -> tuple[torch.Tensor, np.ndarray | None]:
    return pattern.remember("coordinates", lambda: _unpack(pattern))


def _unpack(pattern: Pattern) -> tuple[torch.Tensor, np.ndarray | None]:
    shared = _shared_rows(pattern)
    if shared is not None:
        return shared, None
    if _is_gapless(pattern):
        columns = entry_columns(pattern)
        table = np.empty((len(columns), pattern.nnz), dtype=np.int64)
        for row, column in zip(table, columns, strict=True):
            row[:] = column
        return torch.from_numpy(table), None
    _check_listed(pattern)
    table, positions = dimension_table(pattern, *level_coordinates(pattern))
    return torch.from_numpy(table), None if is_identity(positions, pattern.nnz) else positions


def _is_gapless(pattern: Pattern) -> bool:
    """Whether each position holds an entry, and index arrays contain all coordinates but those of dense levels."""
    return not has_gaps(pattern) and all(isinstance(level, GAPLESS) for level in pattern.format.levels)


def _check_listed(pattern: Pattern) -> None:
    if pattern.format.has_gaps or any(level.full or not level.arrays for level in pattern.format.levels):  # the list may be larger
        where, suggestion = pattern.format.name, "a kernel reads the levels without a list of coordinates: use einsum or evaluate"
        memory.check_entries(pattern.nnz, len(pattern.shape), EACH, "a list of coordinates", where, suggestion)


def entry_columns(pattern: Pattern) -> list[np.ndarray]:
    """The coordinates of the stored values like :func:`coordinates`, as one array for each dimension: int32 or int64.

    They share the memory of the index arrays where these hold a whole dimension, so do not write to them or keep them. Sums of two
    coordinates of a dimension do not overflow. O(ndim * nnz).

    >>> [column.tolist() for column in entry_columns(pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds"))[0])]
    [[0, 1], [2, 0]]
    """
    if not _is_gapless(pattern) or "coordinates" in pattern.derived:
        return list(as_numpy(coordinates(pattern)))
    _check_listed(pattern)
    levels, sizes = pattern.format.levels, pattern.format.sizes(pattern.shape)
    dtype, columns, parents = summing_dtype((*pattern.shape, *sizes)), dict[int, np.ndarray](), 1
    for at, (level, part, size) in enumerate(zip(levels, pattern.format.parts, sizes, strict=True)):
        *starts, column = pattern.level_arrays(at) or (np.arange(size, dtype=dtype)[None].repeat(parents, 0).ravel(),)
        if not isinstance(level, Singleton):
            counts = starts[0][1:] - starts[0][:-1] if starts else size
            columns = {d: above.repeat(counts) for d, above in columns.items()}
        column, parents = column.astype(dtype, copy=False), len(column)
        if part.minus is None:
            scaled = column * part.divisor if part.divisor > 1 else column
            columns[part.dimension] = columns[part.dimension] + scaled if part.dimension in columns else scaled
    return [columns[d] for d in range(len(pattern.shape))]


def dimension_table(pattern: Pattern, columns: Sequence[np.ndarray], positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert coordinates in each level to coordinates in each dimension; drop positions outside the tensor."""
    table = np.zeros((len(pattern.shape), len(positions)), dtype=np.int64)
    for part, column in zip(pattern.format.parts, columns, strict=True):
        if part.is_whole:
            table[part.dimension] = column
        elif part.minus is None:
            table[part.dimension] += column * part.divisor
    if not pattern.format.is_plain:
        inside = (table < np.array(pattern.shape)[:, None]).all(axis=0)
        table, positions = table[:, inside], positions[inside]
    return table, positions


def level_coordinates(pattern: Pattern) -> tuple[list[np.ndarray], np.ndarray]:
    """The coordinate of every stored value in each level, and the positions of the values. O(nnz).

    For blocked formats, these are block indices and indices inside blocks.

    >>> columns, positions = level_coordinates(pack(np.array([[1, 0], [0, 2]]), (2, 3), Format("ds", (1, 0)))[0])
    >>> [column.tolist() for column in columns]
    [[0, 2], [1, 0]]
    """
    sizes = pattern.format.sizes(pattern.shape)
    columns: list[np.ndarray] = []
    positions = np.zeros(1, dtype=np.int64)
    for at, level in enumerate(pattern.format.levels):
        children = level.unpack(pattern.level_arrays(at), Parents(positions, tuple(columns), at, sizes))
        if not (isinstance(children.counts, int) and children.counts == 1):
            columns = [np.repeat(column, children.counts) for column in columns]
        columns.append(children.coordinates.astype(np.int64, copy=False))  # narrow dtypes would overflow
        positions = children.positions
    return columns, positions.astype(np.int64, copy=False)


def _shared_rows(pattern: Pattern) -> torch.Tensor | None:
    """A view of a COO tensor's crd arrays as the rows of one index tensor; None if they are not adjacent in memory."""
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
    """Whether ``places`` is 0, 1, ..., n - 1."""
    return len(places) == n and (not n or places[-1] == n - 1) and bool((places == np.arange(n, dtype=places.dtype)).all())
