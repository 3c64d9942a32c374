"""Restrict index arrays to selected coordinates and entries, level by level, without lists of all coordinates.

The levels are dense ones, followed by compressed and singleton ones. A *fibre level* is a compressed or singleton level. Positions
stay a range as long as contiguous coordinates of dense levels are selected, so that their children are slices of the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import dropwhile
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from ..ir.format import COO, Format
from ..ir.level import INT32_MAX, Level, ranges, starts_of_runs
from ..ir.levels import Compressed, Dense, Singleton
from ..machine.memory import COORDINATE, check_entries
from ..schedule import tuning
from .coordinate_order import sorting
from .modes import as_numpy
from .packing import entry_columns, index_dtype_for, pack, positions_of
from .pattern import Pattern

Numbers = range | np.ndarray  # selected coordinates in their new order, or positions; a range of coordinates may exceed the extent
FEWER = "index in parts, each of fewer numbers"


class Fibres(NamedTuple):
    """The children that a restriction keeps in one fibre level.

    Args:
        pos: the starts of all children of each parent; None if each parent has one child.
        coordinates: the new coordinate of each kept child.
        kept: the kept children, below one parent after another, repeated if they are selected repeatedly; None for all.
        is_kept: for each child whether it is kept, unless children may be repeated.
    """

    pos: Any
    coordinates: np.ndarray
    kept: np.ndarray | None = None
    is_kept: np.ndarray | None = None

    def of(self, children: np.ndarray, is_kept: np.ndarray | None = None) -> Fibres:
        """Keep only some of the kept children."""
        coordinates = take(self.coordinates, children)
        if self.kept is None:
            return Fibres(self.pos, coordinates, children, is_kept)
        return Fibres(self.pos, coordinates, self.kept.take(children))

    def starts(self) -> Any:
        """The starts of the kept children of each parent; None if each parent has one child."""
        if self.pos is None or self.kept is None:
            return self.pos
        if self.is_kept is None:
            return starts_of_runs(np.bincount(self.kept, minlength=self.pos[-1])).take(self.pos)
        return counted_before(self.is_kept, self.pos)

    def owners(self) -> np.ndarray:
        """The parent of each kept child."""
        if self.pos is None:
            return np.arange(len(self.coordinates)) if self.kept is None else self.kept
        if self.kept is not None and len(self.kept) * tuning.SEARCHED_ROWS < len(self.pos):
            return np.searchsorted(self.pos, self.kept, "right") - 1
        return np.repeat(np.arange(len(self.pos) - 1, dtype=self.pos.dtype), np.diff(self.starts()))


def counted_before(mask: np.ndarray, places: np.ndarray) -> np.ndarray:
    """How many elements of a mask before each place are True.

    Bits are counted by bytes: a cumulative sum of all elements would take twice the time.

    >>> counted_before(np.array([True, False, True]), np.array([0, 1, 3])).tolist()
    [0, 1, 2]
    """
    bits = np.append(np.packbits(mask, bitorder="little"), np.uint8(0))  # a place may be behind the last byte
    byte, below = places >> 3, (1 << (places & 7)) - 1
    return starts_of_runs(np.bitwise_count(bits), places.dtype).take(byte) + np.bitwise_count(bits.take(byte) & below.astype(np.uint8))


def take(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """``array.take(places)`` by torch, which is faster than NumPy, in particular with int32 places."""
    if places.dtype not in (np.int32, np.int64):
        places = places.astype(np.int64)
    signed = torch.from_numpy(array.view(f"i{array.itemsize}"))  # torch does not support unsigned integers
    return signed.index_select(0, torch.from_numpy(places)).numpy().view(array.dtype)


@lru_cache(maxsize=1024)
def has_fibres(format: Format) -> bool:
    """Whether this file supports a format: each level stores a dimension, dense levels come first, then a compressed one.

    >>> from numscorch.ir.format import BCSR, COO, CSR
    >>> has_fibres(CSR), has_fibres(COO(3)), has_fibres(Format("sd")), has_fibres(BCSR(2, 2))
    (True, True, False, False)
    """
    first, *others = list(dropwhile(lambda level: isinstance(level, Dense), format.levels)) or (Compressed(),)
    return format.is_plain and isinstance(first, Compressed) and all(isinstance(level, Compressed | Singleton) for level in others)


def run_of(pattern: Pattern, selected: Sequence[int | Numbers]) -> tuple[int, int, np.ndarray | None] | None:
    """The run of values with integer coordinates in the leading levels, and their coordinates in the last level if all of it is selected.

    None if something else is selected, if nothing but whole dimensions is, or if levels other than dense ones do not store their
    coordinates in order.

    Complexity:
        O(log nnz), and no copy.

    >>> by_rows = pack(np.array([[0, 0, 1], [0, 2, 1]]), (2, 3), Format("ds"))[0]
    >>> run_of(by_rows, (0, 2)), run_of(by_rows, (1, range(3))), run_of(by_rows, (range(2), 1))
    ((1, 2, None), (2, 3, array([1], dtype=int32)), None)
    """
    format = pattern.format
    if not (format.levels and format.is_ordered and has_fibres(format)):
        return None
    start, stop, last = 0, 1, len(pattern.shape) - 1
    for at, (arrays, d) in enumerate(zip(pattern.arrays, format.mode_order, strict=True)):
        number = selected[d]
        if not arrays:
            if not isinstance(number, int):
                return None
            start = start * pattern.shape[d] + number
            stop = start + 1
            continue
        *starts, crd = map(as_numpy, arrays)
        if starts:
            start, stop = int(starts[0][start]), int(starts[0][stop])
        crd = crd[start:stop]
        if not isinstance(number, int):
            return (start, stop, crd) if 0 < at == last and is_whole(number, pattern.shape[d]) else None
        wanted = crd.dtype.type(number)  # of another type, NumPy would convert the coordinates
        start, stop = start + int(crd.searchsorted(wanted)), start + int(crd.searchsorted(wanted, "right"))
    return start, stop, None


def select(
    pattern: Pattern, selected: Sequence[Numbers], remaining: Sequence[int], target: Format
) -> tuple[Pattern, np.ndarray | None, np.ndarray]:
    """Restrict a pattern to the selected coordinates of each dimension, and drop the dimensions that are not among ``remaining``.

    The arrays are restricted level by level if the target has the levels that remain. Otherwise the remaining entries are packed.

    Returns:
        The pattern, the slots of its entries (None if they are 0, 1, 2, ...), and the positions of their values, as of :func:`pack`.
    """
    shape = tuple(len(selected[d]) for d in remaining)
    ends = [(numbers[0], numbers[-1], size) for numbers, size in zip(selected, pattern.shape, strict=True) if len(numbers)]
    is_inside = all(0 <= first < size and 0 <= last < size for first, last, size in ends)
    source, is_list = pattern, not has_fibres(pattern.format) or not is_inside
    if is_list:
        first, *others = map(torch.from_numpy, entry_columns(pattern))
        pos = torch.tensor([0, len(first)], dtype=first.dtype if len(first) <= INT32_MAX else torch.int64)
        source = Pattern(COO(len(pattern.shape)), pattern.shape, ((pos, first), *((column,) for column in others)))
    fibres, places = restricted(source, selected)
    positions = positions_of(pattern, as_array(places)) if is_list else as_array(places)
    if not shape:
        return pattern, None, positions
    by_level = [(level, d, selected[d]) for level, d in zip(source.format.levels, source.format.mode_order, strict=True)]
    kept = [(level, d) for level, d, _ in by_level if d in remaining or not isinstance(level, Dense)]
    has_levels = kept == [(level, remaining[d]) for level, d in zip(target.levels, target.mode_order, strict=True)]
    if has_levels and not is_list and all(_can_keep(level, numbers) for level, _, numbers in by_level):
        return pattern_of(target, shape, fibres, len(positions), pattern.index_dtype), None, positions
    columns = columns_of([len(numbers) for level, _, numbers in by_level if isinstance(level, Dense)], fibres)
    by_dimension = dict(zip(source.format.mode_order, columns, strict=True))
    result, slots, order = pack([by_dimension[d] for d in remaining], shape, target, pattern.index_dtype)
    return result, slots, positions.take(order)


def _can_keep(level: Level, numbers: Numbers) -> bool:
    """Whether a level can store the children that :func:`restricted` selects: in order, and in its data type."""
    return len(numbers) <= 1 << (getattr(level, "bits", 0) or 63) and (not isinstance(level, Singleton) or is_increasing(numbers))


def restricted(pattern: Pattern, selected: Sequence[Numbers]) -> tuple[list[Fibres], Numbers]:
    """Select coordinates of each dimension; return the fibre levels, and the positions of the kept values.

    The children of a compressed level are in the order of the selection. Those of a singleton level keep their order.

    Complexity:
        O(arrays below the selected rows of dense levels + result), plus a sort of the result if a selection does not increase.

    Raises:
        SizeError: the result exceeds the memory limit.

    >>> by_rows = pack(np.array([[0, 0, 1], [0, 2, 1]]), (2, 3), Format("ds"))[0]
    >>> (fibres,), positions = restricted(by_rows, [range(1), np.array([2])])
    >>> fibres.pos.tolist(), fibres.coordinates.tolist(), fibres.kept.tolist(), positions.tolist()
    ([0, 2], [0], [1], [1])
    """
    places: Any = range(1)
    fibres: list[Fibres] = []
    for at, (level, d) in enumerate(zip(pattern.format.levels, pattern.format.mode_order, strict=True)):
        numbers, size = selected[d], pattern.shape[d]
        if isinstance(level, Dense):
            places = _below_dense(places, size, numbers)
            continue
        *starts, crd = pattern.level_arrays(at)
        pos, places = _below(starts[0], places) if starts else (None, places)
        if isinstance(places, np.ndarray):
            crd = take(crd, places)
        elif len(places) < len(crd):
            crd = crd[places.start : places.stop].copy()  # a view would keep the memory of all coordinates
        fibre = Fibres(pos, crd)
        if not is_whole(numbers, size):
            kept, crd, is_kept = _matches(crd, numbers, size)
            fibre = Fibres(pos, crd, kept, is_kept)
            if pos is not None and not is_increasing(numbers):
                pos = fibre.starts()
                order, (_, crd) = sorting([fibre.owners(), crd], [len(pos) - 1, len(numbers)], len(kept))
                kept, fibre = kept.take(order), Fibres(pos, crd)
            places = take(places, kept) if isinstance(places, np.ndarray) else kept + places.start
        fibres.append(fibre)
    return fibres, places


def positions_below(sizes: Sequence[int], selected: Sequence[Numbers]) -> np.ndarray:
    """The positions of the selected coordinates in the last of several dense levels.

    >>> positions_below((2, 3), (range(2), np.array([2, 0]))).tolist()
    [2, 0, 5, 3]
    """
    places: Numbers = range(1)
    for size, numbers in zip(sizes, selected, strict=True):
        places = _below_dense(places, size, numbers)
    return as_array(places)


def _below_dense(places: Numbers, size: int, numbers: Numbers) -> Numbers:
    """The positions of the selected coordinates of a dense level, whose parents are at ``places``."""
    if isinstance(places, range) and isinstance(numbers, range) and (numbers == range(size) or (numbers.step == 1 and len(places) == 1)):
        start = places.start * size + max(numbers.start, 0)  # an empty reversed range starts at -1
        return range(start, start + len(places) * len(numbers))
    check_entries(len(places) * len(numbers), 1, 0, "the result", f"{len(numbers)} indices", FEWER)
    return np.add.outer(as_array(places) * size, as_array(numbers)).reshape(-1)


def _below(pos: np.ndarray, places: Numbers) -> tuple[np.ndarray, Numbers]:
    """The starts of the children of each parent at ``places``, and the positions of the children."""
    if isinstance(places, range):
        pos = pos[places.start : places.stop + 1]
        return pos - pos[0], range(int(pos[0]), int(pos[-1]))
    starts = pos.take(places)
    counts = pos.take(places + 1) - starts
    ends = starts_of_runs(counts)
    check_entries(int(ends[-1]), 2, COORDINATE, "the result", f"{len(places)} indices", FEWER)
    return ends, ranges(starts, counts)


def is_whole(numbers: Numbers, size: int) -> bool:
    """Whether all coordinates of an extent are selected in order, as a range."""
    return isinstance(numbers, range) and numbers == range(size)


def is_increasing(numbers: Numbers) -> bool:
    return numbers.step > 0 if isinstance(numbers, range) else bool((numbers[1:] > numbers[:-1]).all())


def as_array(numbers: Numbers) -> np.ndarray:
    return np.arange(numbers.start, numbers.stop, numbers.step) if isinstance(numbers, range) else numbers


def _matches(coordinates: np.ndarray, numbers: Numbers, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Find coordinates among the selected numbers.

    Returns:
        The indices of the coordinates found, their positions in ``numbers``, and for each coordinate whether it is found. If ``numbers``
        repeats some, their coordinates are found several times, and the last result is None.

    >>> [part.tolist() for part in _matches(np.array([4, 0, 2]), np.array([2, 4]), 5)]
    [[0, 2], [1, 0], [True, False, True]]
    >>> [part.tolist() for part in _matches(np.array([4, 0, 2]), np.array([2, 4, 2]), 5)[:2]]
    [[0, 2, 2], [1, 0, 2]]
    """
    if isinstance(numbers, range) and numbers.step == 1:
        first, last = max(numbers.start, 0), min(numbers.stop, size)
        is_kept = coordinates == first if last - first == 1 else (coordinates >= first) & (coordinates < last)
        kept = np.flatnonzero(is_kept)
        farthest = max(abs(numbers.start), abs(size - numbers.start))
        dtype = np.promote_types(coordinates.dtype, np.min_scalar_type(-farthest))
        return kept, take(coordinates, kept).astype(dtype, copy=False) - dtype.type(numbers.start), is_kept
    if isinstance(numbers, range):
        low, high = sorted((numbers[0], numbers[-1])) if numbers else (0, -1)
        is_kept = (coordinates >= low) & (coordinates <= high)
        kept = np.flatnonzero(is_kept)
        offsets = take(coordinates, kept).astype(np.int64) - numbers.start
        is_selected = offsets % numbers.step == 0
        is_kept[kept] = is_selected
        return kept[is_selected], offsets[is_selected] // numbers.step, is_kept
    if size > tuning.COUNTED_COORDINATES * max(len(coordinates), 1 << 10):  # number the coordinates that occur
        occurring, ranks = np.unique(np.concatenate([numbers, coordinates]), return_inverse=True)
        numbers, coordinates, size = ranks[: len(numbers)], ranks[len(numbers) :], len(occurring)
    counts = np.bincount(numbers, minlength=size)
    is_kept = take(counts != 0, coordinates)
    kept = np.flatnonzero(is_kept)
    coordinates = take(coordinates, kept)
    if counts.max(initial=0) <= 1:
        ranks = np.zeros(size, np.int32 if size <= INT32_MAX else np.int64)
        ranks[numbers] = np.arange(len(numbers))
        return kept, take(ranks, coordinates), is_kept
    repeats = counts.take(coordinates)
    check_entries(int(repeats.sum()), 2, COORDINATE, "the result", f"{len(numbers)} indices", FEWER)
    places = ranges((np.cumsum(counts) - counts).take(coordinates), repeats)
    return np.repeat(kept, repeats), np.argsort(numbers, kind="stable").take(places), None


def entries_of(pattern: Pattern, is_kept: np.ndarray, kept: np.ndarray) -> Pattern:
    """The pattern of some values of a pattern with fibres, given as a mask and as positions. O(nnz).

    >>> by_rows = pack(np.array([[0, 0, 1], [0, 2, 1]]), (2, 3), Format("ds"))[0]
    >>> [array.tolist() for array in entries_of(by_rows, np.array([False, True, False]), np.array([1])).arrays[1]]
    [[0, 1, 1], [2]]
    """
    (*above, last), _ = restricted(pattern, list(map(range, pattern.shape)))
    return pattern_of(pattern.format, pattern.shape, [*above, last.of(kept, is_kept)], len(kept), pattern.index_dtype)


def columns_of(sizes: Sequence[int], fibres: Sequence[Fibres]) -> list[np.ndarray]:
    """The coordinates of every kept entry in dense levels of these sizes, and in the fibre levels below.

    >>> fibres = Fibres(np.array([0, 2, 3]), np.array([5, 6]), np.array([1, 2]))
    >>> [column.tolist() for column in columns_of((2,), [fibres])]
    [[0, 1], [5, 6]]
    """
    columns: list[np.ndarray] = []
    above = np.arange(len(fibres[-1].coordinates) if fibres else prod(sizes))  # the position of each entry in the level above
    for fibre in reversed(fibres):
        columns.append(fibre.coordinates.take(above))
        above = fibre.owners().take(above)
    return [*np.unravel_index(above, (1, *sizes))[1:], *reversed(columns)]


def pattern_of(format: Format, shape: tuple[int, ...], fibres: Sequence[Fibres], count: int, index_dtype: str | None = None) -> Pattern:
    """The pattern of fibre levels below dense levels, with ``count`` values.

    Positions without children are dropped, except those of dense levels.

    >>> rows, columns = Fibres(np.array([0, 2]), np.array([3, 7])), Fibres(np.array([0, 2, 3]), np.array([5]), np.array([2]))
    >>> [[array.tolist() for array in arrays] for arrays in pattern_of(Format("ss"), (8, 8), [rows, columns], 1).arrays]
    [[[0, 1], [7]], [[0, 1], [5]]]
    """
    dtype = index_dtype_for(format.sizes(shape), count, index_dtype)
    levels = format.levels[len(format.levels) - len(fibres) :]
    arrays: list[tuple[torch.Tensor, ...]] = []
    used, is_used = None, None  # the positions that have children in the level below; None for all
    for at, (level, fibre) in reversed(list(enumerate(zip(levels, fibres, strict=True)))):
        fibre = fibre if used is None else fibre.of(used, is_used)
        pos, coordinates, used, is_used = fibre._replace(pos=fibre.starts())
        if pos is not None:
            is_used = pos[1:] != pos[:-1]
            used = None if at == 0 or is_used.all() else np.flatnonzero(is_used)
            pos = pos if used is None else np.append(pos.take(used), pos[-1])
        stored = (coordinates,) if pos is None else (pos, coordinates)
        named = zip(level.arrays[-len(stored) :], stored, strict=True)
        arrays.insert(0, tuple(torch.from_numpy(array.astype(level.array_dtype(name) or dtype, copy=False)) for name, array in named))
    return Pattern(format, shape, (*((),) * (len(format.levels) - len(fibres)), *arrays), dtype.name)
