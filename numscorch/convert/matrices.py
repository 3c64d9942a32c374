"""Matrices: conversions that need no kernel, since NumPy does them in a few calls.

Formats that differ only in how the first index is stored share the second one's array, and the order of values: a row's entries
are found by its number (CSR), by its place among the rows that have some (DCSR), or each entry stores its row (COO); each follows from
another by counting or repeating rows. Where entries come in another order, both coordinates and the place of an entry make one integer,
and plain integers are what NumPy sorts fastest, however many rows there are and however few entries are in each.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from ..ir.format import COO, Format, sorted_format
from ..ir.level import INT64_MAX
from ..ir.levels import Compressed, Dense, Singleton
from ..schedule import tuning
from ..tensors.packing import index_dtype_for, sorting_numbers
from ..tensors.pattern import Pattern

BY_NUMBER = (Dense(), Compressed())
BY_PLACE = (Compressed(), Compressed())
EACH = (Compressed(unique=False), Singleton())
KINDS = (BY_NUMBER, BY_PLACE, EACH)


@lru_cache(maxsize=1024)
def can_regroup(source: Format, target: Format) -> bool:
    """Whether the target differs from the source only in how the first index is stored.

    >>> from numscorch.ir.format import COO, CSC, CSR
    >>> can_regroup(COO(2), CSR), can_regroup(CSR, CSC)
    (True, False)
    """
    return source.levels in KINDS and target.levels in KINDS and source.parts == target.parts


def regrouped(pattern: Pattern, target: Format) -> Pattern:
    """The same entries in a format as :func:`can_regroup` wants it. O(nnz + rows).

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [0.0, 0.0], [3.0, 4.0]]), ns.COO(2))
    >>> [array.tolist() for array in regrouped(A.pattern, ns.CSR).arrays[1]]
    [[0, 1, 1, 3], [1, 0, 1]]
    """
    dtype, crd = pattern.index_dtype, pattern.arrays[1][-1]
    if pattern.format.levels == EACH and target.levels == BY_NUMBER:
        starts = starts_of(pattern.arrays[0][1], target.parts[0].extent(pattern.shape), dtype)
        return Pattern.derived_from(target, pattern.shape, ((), (starts, crd)), dtype)
    if pattern.format.levels == BY_NUMBER and target.levels == BY_PLACE:
        return Pattern.derived_from(target, pattern.shape, _filled(pattern.level_arrays(1)[0], crd), dtype)
    rows, lengths = _rows_of(pattern)
    if target.levels == EACH:
        each = np.repeat(rows, lengths).astype(dtype, copy=False)
        first = (np.array([0, len(each)], dtype), each)
        return Pattern.derived_from(target, pattern.shape, (_tensors(*first), (crd,)), dtype)
    if target.levels == BY_NUMBER:
        counts = np.zeros(target.sizes(pattern.shape)[0], np.int64)
        counts[rows] = lengths
        return Pattern.derived_from(target, pattern.shape, ((), (*_tensors(_starts(counts, dtype)), crd)), dtype)
    kept = lengths > 0
    rows = rows[kept].astype(dtype, copy=False)
    listed = _tensors(np.array([0, len(rows)], dtype), rows)
    return Pattern.derived_from(target, pattern.shape, (listed, (*_tensors(_starts(lengths[kept], dtype)), crd)), dtype)


def _filled(starts: np.ndarray, crd: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], ...]:
    """The rows that have entries, where these start, and their columns: the others are passed over in one comparison."""
    rows = np.flatnonzero(starts[1:] != starts[:-1])
    listed = _tensors(np.array([0, len(rows)], starts.dtype), rows.astype(starts.dtype, copy=False))
    return listed, (torch.from_numpy(np.append(starts[rows], starts[-1])), crd)


def starts_of(each: torch.Tensor, rows: int, dtype: str) -> torch.Tensor:
    """Where each of so many rows starts, from the row of each entry, in order: few rows are searched for, else entries are counted."""
    count = each.numel()
    if rows * tuning.SEARCHED_ROWS < count:
        starts = np.searchsorted(each.numpy(), np.arange(rows + 1, dtype=dtype))
        return torch.from_numpy(starts.astype(dtype, copy=False))
    if dtype == "int32" and count <= max(tuning.NARROW_STARTS, rows):
        return torch._convert_indices_from_coo_to_csr(each, rows, out_int32=True)
    wide = torch._convert_indices_from_coo_to_csr(each, rows)
    return wide if dtype == "int64" else wide.int()


def _rows_of(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """The rows, and how many entries each has."""
    first, second = pattern.level_arrays(0), pattern.level_arrays(1)
    if pattern.format.levels == EACH:
        counts = np.bincount(first[1], minlength=0)
        return np.arange(len(counts)), counts
    lengths = np.diff(second[0])
    return (first[1] if first else np.arange(len(lengths))), lengths


def _starts(lengths: np.ndarray, dtype: str) -> np.ndarray:
    starts = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.from_numpy, arrays))


def sorts(pattern: Pattern, target: Format) -> bool:
    """Whether :func:`sorted_rows` makes the target: rows in order, or by columns, whose coordinates and places fit into 63 bits.

    >>> from numscorch.ir.format import CSC, CSR, DCSR
    >>> rows = Pattern(CSR, (2, 2), ((), (torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0]))))
    >>> sorts(rows, CSC), sorts(rows, DCSR)
    (True, False)
    """
    if not _can_sort(pattern.format, target):
        return False
    pos, crd = pattern.arrays[-1]
    return (len(pos) - 1) * pattern.format.sizes(pattern.shape)[-1] << len(crd).bit_length() <= INT64_MAX


@lru_cache(maxsize=1024)
def _can_sort(source: Format, target: Format) -> bool:
    """
    >>> from numscorch.ir.format import CSC, CSR
    >>> unordered = Format("(i, j) -> (i: dense, j: compressed(ordered=False))")
    >>> _can_sort(unordered, CSR), _can_sort(unordered, CSC), _can_sort(CSR, CSR)
    (True, True, False)
    """
    *above, last = source.levels
    is_unordered = isinstance(last, Compressed) and last.is_unique and not last.is_ordered
    if bool(above) and is_unordered and all(isinstance(level, Dense) for level in above) and target == sorted_format(source):
        return True
    is_matrix = source.is_plain and target.is_plain and sorted_format(source).levels == target.levels == BY_NUMBER
    return is_matrix and isinstance(source.levels[1], Compressed) and source.parts == target.parts[::-1]


def sorted_rows(pattern: Pattern, target: Format) -> tuple[Pattern, np.ndarray]:
    """The entries in a format that :func:`sorts` allows, and their order.

    That no coordinate of an unordered row is repeated is seen on the way, and remembered with the pattern as what ``disorder`` says of it.

    Complexity:
        O(nnz log nnz + rows), and the columns of a result that is stored by columns.

    >>> from numscorch.ir.format import CSC, CSR
    >>> by_columns, order = sorted_rows(Pattern(CSR, (2, 2), ((), (torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0])))), CSC)
    >>> [array.tolist() for array in by_columns.arrays[1]], order.tolist()
    ([[0, 2, 3], [0, 1, 0]], [0, 2, 1])

    Levels are counted, not dimensions: a vector in parts has rows, too.

    >>> unordered = Format("(i) -> (i // 2: dense, i % 2: compressed(ordered=False))")
    >>> arrays = (), (torch.tensor([0, 2, 2]), torch.tensor([1, 0]))
    >>> sorted_rows(Pattern(unordered, (4,), arrays), Format("(i) -> (i // 2: dense, i % 2: compressed)"))[1].tolist()
    [1, 0]
    """
    pos, crd = pattern.level_arrays(len(pattern.format.levels) - 1)
    rows, is_transposed = _row_of_each(pos), pattern.format.parts != target.parts
    extents = len(pos) - 1, pattern.format.sizes(pattern.shape)[-1]
    (first, second), size = ((crd, rows), extents[0]) if is_transposed else ((rows, crd), extents[1])
    keys, order = sorting_numbers(first * np.int64(size) + second)
    children = torch.from_numpy(second[order].astype(crd.dtype, copy=False))
    if is_transposed:
        arrays = ((), (starts_of(torch.from_numpy(first[order]), extents[1], pattern.index_dtype), children))
        return Pattern.derived_from(target, pattern.shape, arrays, pattern.index_dtype), order
    if not (keys[1:] == keys[:-1]).any():
        pattern.remember("disorder", lambda: None)
    return Pattern.derived_from(
        target, pattern.shape, (*pattern.arrays[:-1], (pattern.arrays[-1][0], children)), pattern.index_dtype
    ), order


def _row_of_each(pos: np.ndarray) -> np.ndarray:
    """The row of each entry; rows without any are passed over, of which there may be many more."""
    lengths = pos[1:] - pos[:-1]
    rows = np.flatnonzero(lengths != 0)
    return np.repeat(rows, lengths[rows])


def nonzeros_of_few(values: torch.Tensor, format: Format) -> tuple[Pattern, torch.Tensor] | None:
    """The pattern and the values of what isn't 0; None where NumPy can't read them, there are many, or the format takes more than rows.

    Values are read as they are: no derivative flows to them. O(size).

    >>> from numscorch.ir.format import CSR
    >>> pattern, stored = nonzeros_of_few(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), CSR)
    >>> [array.tolist() for array in pattern.arrays[1]], stored.tolist()
    ([[0, 1, 2], [1, 0]], [2.0, 3.0])
    """
    if not 0 < values.numel() <= tuning.LISTED_VALUES or values.dtype is torch.bfloat16 or not _is_list_or_rows(format):
        return None
    shape, flat = tuple(values.shape), values.numpy().reshape(-1)
    places = np.flatnonzero(flat != 0)
    dtype = index_dtype_for(shape, len(places))
    columns = _tensors(*(column.astype(dtype) for column in np.unravel_index(places, shape)))
    arrays = ((*_tensors(np.array([0, len(places)], dtype)), columns[0]), *((column,) for column in columns[1:]))
    pattern = Pattern.derived_from(COO(len(shape)), shape, arrays, dtype.name)
    return (pattern if format == pattern.format else regrouped(pattern, format)), torch.from_numpy(flat[places])


@lru_cache(maxsize=1024)
def _is_list_or_rows(format: Format) -> bool:
    return format.order > 0 and (format == COO(format.order) or can_regroup(COO(format.order), format))
