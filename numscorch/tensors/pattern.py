"""Patterns: the index arrays of a sparse tensor, and data derived from them.

A pattern is immutable. Derived data, such as its transpose, conversions and statistics, is computed once and cached with
the pattern. Results that keep an operand's pattern share it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from itertools import chain, count, islice
from math import log2
from typing import Any, TypeVar

import numpy as np
import torch

from ..errors import FormatError
from ..ir.format import Format
from ..ir.level import INT32_MAX
from ..ir.levels import Compressed, Dense, Singleton
from ..ir.padded import Bitmap
from ..schedule import tuning
from ..schedule.facts import EVEN, Crossings, rounded
from .modes import as_numpy, in_transform, lasting, made_outside

T = TypeVar("T")
BY_ROWS = (Dense(), Compressed())
LEAST_SPREAD = 1 / 64  # rows that are chosen may also be shorter than the average
INDEX_DTYPES = {torch.int32: "int32", torch.int64: "int64"}


class Successors:
    """Patterns as attributes, which torch's guards check one by one; Dynamo would read a dictionary only once."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # of attributes, by the texts of calls

    def add(self, text: str, pattern: Pattern) -> str:
        """Keep the pattern of the call with this text; return the name of its attribute."""
        name = self.names.setdefault(text, f"pattern{len(self.names)}")
        setattr(self, name, pattern)
        return name


class Pattern:
    """Format, shape and index arrays of a sparse tensor.

    The constructor checks nothing; see ``validate``.

    Args:
        format: storage format.
        shape: size of every dimension.
        arrays: for each level, its index tensors in the order of ``level.arrays``: (pos, crd) for compressed, (crd,) for
            singleton, () for dense. All int32 or all int64, except arrays for which the level fixes the dtype.
        index_dtype: int32 or int64, if known.

    Attributes:
        counts: number of positions in each level; the last one is the number of values.
        kind: a number, valid in this process. Patterns with equal numbers differ, for the compiler, in their shapes only.
        signature: a number like ``kind`` that also distinguishes shapes.
        successors: patterns of results of calls in compiled programs.
    """

    __slots__ = (
        "__weakref__",
        "arrays",
        "counts",
        "derived",
        "format",
        "index_dtype",
        "is_dense",
        "kind",
        "shape",
        "signature",
        "successors",
        "taken",
        "watched",
    )

    def __init__(
        self, format: Format, shape: tuple[int, ...], arrays: tuple[tuple[torch.Tensor, ...], ...], index_dtype: str | None = None
    ):
        self.format = format
        self.is_dense = format.is_dense
        self.shape = tuple(map(int, shape))
        self.arrays = tuple(map(tuple, arrays))
        if in_transform() or any(map(torch.is_inference, chain.from_iterable(self.arrays))):
            self.arrays = tuple([tuple(map(lasting, level)) for level in self.arrays])
        self.index_dtype = self._index_dtype() if index_dtype is None else index_dtype
        self.derived: dict[Hashable, Any] = {}
        self.successors = Successors()

    counts: tuple[int, ...]
    kind: int
    signature: int

    def __getattr__(self, name: str) -> Any:
        """Compute the attributes in ``LAZY`` at first use: most results are never operands."""
        if name not in LAZY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        setattr(self, name, LAZY[name](self))
        return getattr(self, name)

    @property
    def spreads(self) -> tuple[int, ...]:
        """Row imbalance of each level: the mean row length over stored values divided by the mean over rows.

        Rounded to a power of two; 1 for balanced rows and for few values. It estimates how many more values a loop reads
        if another sparse operand selects the rows.
        """
        return self.remember("spreads", lambda: tuple(map(self._spread, range(len(self.format.levels)))))

    @property
    def has_long_rows(self) -> bool:
        """Whether one row of a matrix holds more than ``1 / tuning.LONG_ROW_SHARE`` of its entries, which unbalances threads."""
        if self.format.levels != BY_ROWS or self.nnz < tuning.LONG_ROW_ENTRIES:
            return False
        return self.remember("long", lambda: int(self.sampled_rows(1).max()) * tuning.LONG_ROW_SHARE > self.nnz)

    def unmeasured(self, peak: int = 0) -> Pattern:
        """A pattern of the same arrays with even statistics, for kernels that do not depend on them: measuring takes time.

        ``peak`` is the peak of each level but the last one.
        """
        levels, pattern = len(self.format.levels), Pattern(self.format, self.shape, self.arrays, self.index_dtype)
        pattern.derived |= {"spreads": (1,) * levels, "samples": ((peak,) * (levels - 1) + (0,), EVEN), "long": False}
        pattern.counts = self.counts
        return pattern

    @property
    def peaks(self) -> tuple[int, ...]:
        """Estimated number of values with the most frequent coordinate of each level, see ``_sampled_statistics``."""
        return self.samples[0]

    @property
    def crossings(self) -> Crossings:
        """The mean length of the rows or columns that the entries of a matrix select, over the mean length of all.

        Three numbers: of rows selected by row coordinates, of rows selected by column coordinates (or columns by row coordinates), and of
        columns selected by column coordinates. Rounded to powers of 4; 1 for other formats and for few values. They tell how many
        values a loop reads in a product of a matrix with itself.
        """
        return self.samples[1]

    @property
    def samples(self) -> tuple[tuple[int, ...], Crossings]:
        """The peaks and the crossings, which are estimated from the same sample of positions."""
        return self.remember("samples", lambda: _sampled_statistics(self))

    def sampled_rows(self, at: int) -> np.ndarray:
        """The lengths of the rows of a level that hold sampled positions, so a row is sampled the more often the longer it is."""
        pos, step = self.level_arrays(at)[0], max(self.counts[at] // tuning.ROW_SAMPLES, 1)
        ends = self.remember(("ends", at), lambda: pos.searchsorted(sampled(self.counts[at], step).astype(pos.dtype), "right"))
        return pos[ends] - pos[ends - 1]

    def _spread(self, at: int) -> int:
        if "pos" not in self.format.levels[at].arrays or self.counts[at] < tuning.MEASURED_ENTRIES:
            return 1
        parents = self.counts[at - 1] if at else 1
        lengths = self.sampled_rows(at)
        return int(2 ** round(log2(int(lengths.sum()) / len(lengths) * parents / self.counts[at])))

    @property
    def views(self) -> tuple[np.ndarray, ...]:
        """The index arrays as NumPy views; refreshed if torch moved the memory, for example into shared memory."""
        for array, address in self.watched:
            if array.data_ptr() != address:
                return self.take_views()
        return self.taken

    def take_views(self) -> tuple[np.ndarray, ...]:
        """Refresh ``taken`` (the NumPy views) and ``watched`` (each array with its address)."""
        self.watched = tuple([(array, array.data_ptr()) for level in self.arrays for array in level])
        self.taken = tuple([as_numpy(array) for array, _ in self.watched])
        return self.taken

    def __copy__(self) -> Pattern:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        """Copy the index arrays, because a module's buffers may be written to.

        Derived data is dropped: a transpose, for example, shares the original arrays.
        """
        arrays = tuple([tuple([copy.deepcopy(array, memo) for array in level]) for level in self.arrays])
        return Pattern(self.format, self.shape, arrays, self.index_dtype)

    def _count(self) -> tuple[int, ...]:
        counts, parents, views = [], 1, iter(self.taken)
        for level, level_arrays, size in zip(self.format.levels, self.arrays, self.format.sizes(self.shape), strict=True):
            parents = level.count(tuple(islice(views, len(level_arrays))), parents, size)
            counts.append(parents)
        return tuple(counts)

    def _index_dtype(self) -> str:
        """The dtype of the first array whose level does not fix it; without such arrays, the smallest that fits all counts.

        Raises:
            FormatError: the array is neither int32 nor int64.
        """
        for level, level_arrays in zip(self.format.levels, self.arrays, strict=True):
            for name, array in zip(level.arrays, level_arrays, strict=False):
                if level.array_dtype(name) is None:
                    if array.dtype not in INDEX_DTYPES:
                        raise FormatError(f"index arrays of {self.format.name} are int32 or int64, not {array.dtype}: convert them first")
                    return INDEX_DTYPES[array.dtype]
        return "int32" if max((*self.shape, *self.counts), default=0) <= INT32_MAX else "int64"

    @property
    def nnz(self) -> int:
        """Number of positions, which is the number of values; in some formats, some positions hold no entry."""
        return self.counts[-1] if self.counts else 1

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the cached value of a key; call ``compute`` at the first use."""
        derived = self.derived
        return derived[key] if key in derived else derived.setdefault(key, made_outside(compute))

    def permuted(self, permutation: tuple[int, ...]) -> Pattern:
        """The pattern of the transposed tensor; it shares the index arrays."""
        return self.remember(
            ("permuted", permutation),
            lambda: Pattern(self.format.permuted(permutation), tuple(self.shape[d] for d in permutation), self.arrays),
        )

    def stores_as(self, other: Pattern) -> bool:
        """Whether another pattern has the same format, shape and index arrays. O(nnz)."""
        if other is self:
            return True
        if (other.format, other.shape, other.counts) != (self.format, self.shape, self.counts):
            return False
        pairs = zip(self.views, other.views, strict=True)
        return all(len(array) == len(theirs) and bool((array == theirs).all()) for array, theirs in pairs)

    def level_arrays(self, level: int) -> tuple[np.ndarray, ...]:
        """The index arrays of one level, as NumPy views."""
        first = sum(map(len, self.arrays[:level]))
        return self.views[first : first + len(self.arrays[level])]


def named_arrays(pattern: Pattern, first: int = 0) -> list[tuple[str, torch.Tensor]]:
    """A pattern's index arrays with their names, such as ``level1_pos``; ``first`` is the number of the first level."""
    levels = enumerate(zip(pattern.format.levels, pattern.arrays, strict=True), first)
    return [(f"level{at}_{name}", array) for at, (level, arrays) in levels for name, array in zip(level.arrays, arrays, strict=True)]


_signatures: dict[Hashable, int] = {}
_numbers = count()  # next() is atomic, so numbers are unique across threads
MOST_SIGNATURES = 1 << 16  # cached signatures


LAZY: dict[str, Callable[[Pattern], Any]] = {
    "kind": lambda p: _number((p.format, p.index_dtype, tuple(map(rounded, p.counts)), p.spreads, p.has_long_rows, *p.samples)),
    "signature": lambda p: _number((p.kind, p.shape)),
    "counts": Pattern._count,
    "taken": Pattern.take_views,
    "watched": lambda p: tuple([(array, array.data_ptr()) for level in p.arrays for array in level]),
}


def _number(key: Hashable) -> int:
    """The number of a key: equal for equal keys, so that similar patterns share plans."""
    while len(_signatures) >= MOST_SIGNATURES:
        _signatures.pop(next(iter(_signatures)), None)
    return _signatures.setdefault(key, next(_numbers))


# ---- statistics


def sampled(count: int, step: int) -> np.ndarray:
    """One position of each ``step`` consecutive ones; a pseudorandom offset avoids aliasing with regular patterns.

    >>> sampled(50, 10).tolist()
    [0, 14, 29, 34, 49]
    """
    first = np.arange(0, count - step + 1, step, dtype=np.int64)
    return first + (first * 0x9E3779B1 >> 16) % step


def _sampled_statistics(pattern: Pattern) -> tuple[tuple[int, ...], Crossings]:
    """Estimate, for each level, the number of values with its most frequent coordinate; and the crossings of a matrix.

    Peaks are estimated from about ``tuning.PEAK_SAMPLES`` positions, or in large patterns one in ``tuning.MOST_PEAK_STEP``. An estimate
    is a power of 4, or 0 if a coordinate has fewer than about 16 samples (512 to 4096 values). Rows of the first level are measured at
    fewer positions, because finding the row of a position is a search. The estimate is 0 for levels without coordinates, and for levels
    above a level with neither ``pos`` nor a fixed size.

    >>> from numscorch import from_torch
    >>> import torch
    >>> square = torch.eye(3000)
    >>> square[0] = 1
    >>> from_torch(square, "CSR").pattern.peaks
    (1024, 0)
    """
    levels, sizes, count = pattern.format.levels, pattern.format.sizes(pattern.shape), pattern.nnz
    peaks, crossings = [0] * len(levels), EVEN
    if count < tuning.MEASURED_ENTRIES:
        return tuple(peaks), crossings
    step = min(max(tuning.PEAK_STEP, count // tuning.PEAK_SAMPLES), tuning.MOST_PEAK_STEP)
    positions = sampled(count, step)
    for at, level in reversed(list(enumerate(levels))):
        arrays = pattern.level_arrays(at)
        if isinstance(level, Dense | Bitmap):
            positions, coordinates = np.divmod(positions, max(sizes[at], 1))
        elif "crd" in level.arrays:
            coordinates = arrays[-1][positions]
        else:
            break
        runs = _runs(coordinates[coordinates >= 0])
        peaks[at] = _frequent(int(runs.max()), step)
        crossings = _crossings_of(pattern, runs, step) if levels == BY_ROWS and at else crossings
        if "pos" in level.arrays and at == 1 and levels[0].is_unique:
            peaks[0] = _frequent(int(pattern.sampled_rows(1).max()) * count // pattern.counts[1] // tuning.PEAK_STEP, tuning.PEAK_STEP)
            break
        if "pos" in level.arrays:
            positions = np.searchsorted(arrays[0], positions.astype(arrays[0].dtype), "right") - 1
        elif not isinstance(level, Dense | Bitmap | Singleton):
            break
    return tuple(peaks), crossings


def _runs(coordinates: np.ndarray) -> np.ndarray:
    """How often each sampled coordinate was sampled."""
    coordinates.sort()
    starts = np.concatenate(([0], (coordinates[1:] != coordinates[:-1]).nonzero()[0] + 1, [len(coordinates)]))
    return starts[1:] - starts[:-1]  # np.diff takes three times as long for few samples


def _crossings_of(pattern: Pattern, runs: np.ndarray, step: int) -> Crossings:
    """Estimate the crossings of a matrix stored by rows; ``runs`` tells how often columns were found in one of ``step`` positions.

    Pairs of sampled positions with one column tell how long columns are. The rows that sampled columns choose are looked up.
    """
    (pos, crd), count, (rows, columns) = pattern.level_arrays(1), pattern.nnz, pattern.format.sizes(pattern.shape)
    chosen = crd[sampled(count, max(count // tuning.ROW_SAMPLES, 1))]
    inside = chosen[chosen < rows]
    length_of_row = float((pos[inside + 1] - pos[inside]).sum()) / len(chosen)
    length_of_column = step * float((runs * (runs - 1)).sum()) / float(runs.sum()) + 1
    uneven = pattern.spreads[1], length_of_row * rows / count, length_of_column * columns / count
    of_rows, of_both, of_columns = (4.0 ** round(log2(max(spread, LEAST_SPREAD)) / 2) for spread in uneven)
    return of_rows, of_both, of_columns


def _frequent(hits: int, step: int) -> int:
    """The number of values of which one in ``step`` was seen, rounded down to a power of 4; 0 if they are few."""
    return 1 << ((hits * step).bit_length() - 1) // 2 * 2 if hits >= tuning.PEAK_HITS else 0
