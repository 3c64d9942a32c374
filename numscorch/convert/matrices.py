"""Conversions of matrices with a few NumPy calls instead of a kernel.

CSR, DCSR and COO differ only in how they store the first index. They share the array of the second index and the order of
the values, and are converted by counting or repeating rows. Conversions that reorder entries pack both coordinates and the
position of an entry into one integer key, because NumPy sorts plain integers fastest, also with many short rows. Dense matrices
become n:m:g without a list of entries: the mask of kept entries determines the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from ..errors import FormatError
from ..ir.format import COO, Format, sorted_format
from ..ir.level import INT32_MAX, starts_of_runs
from ..ir.levels import Compressed, Dense, Singleton
from ..ir.nmg import Combination, Grouped
from ..ir.nmg_combinations import kinds_at, table
from ..ir.parts import Part
from ..schedule import tuning
from ..tensors.coordinate_order import fit_into_keys, in_order, sorted_columns, sorting
from ..tensors.modes import as_numpy
from ..tensors.packing import index_dtype_for
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor

CSR_LEVELS = (Dense(), Compressed())
DCSR_LEVELS = (Compressed(), Compressed())
COO_LEVELS = (Compressed(unique=False), Singleton())
KINDS = (CSR_LEVELS, DCSR_LEVELS, COO_LEVELS)


@lru_cache(maxsize=1024)
def can_regroup(source: Format, target: Format) -> bool:
    """Whether the formats differ only in how they store the first index.

    >>> from numscorch.ir.format import COO, CSC, CSR
    >>> can_regroup(COO(2), CSR), can_regroup(CSR, CSC)
    (True, False)
    """
    return source.levels in KINDS and target.levels in KINDS and source.parts == target.parts


@lru_cache(maxsize=1024)
def list_format(format: Format) -> Format:
    """The list of entries in the order of a format whose levels store whole dimensions.

    >>> from numscorch.ir.format import CSC
    >>> print(list_format(CSC))
    (i, j) -> (j: compressed(unique=False), i: singleton)
    """
    return Format(COO(format.order).levels, format.parts)


def listing(columns: Sequence[torch.Tensor], shape: tuple[int, ...], format: Format) -> Pattern:
    """The list of entries whose coordinates, one array for each level, are sorted. Contiguous arrays are shared.

    >>> [[array.tolist() for array in level] for level in listing([torch.tensor([0, 1]), torch.tensor([2, 0])], (2, 3), COO(2)).arrays]
    [[[0, 2], [0, 1]], [[2, 0]]]
    """
    first, *others = (column.contiguous() for column in columns)
    pos = np.array([0, first.numel()], as_numpy(first).dtype)
    pattern = Pattern(format, shape, ((torch.from_numpy(pos), first), *((column,) for column in others)), pos.dtype.name)
    pattern.counts = (first.numel(),) * len(columns)
    return pattern


def regrouped(pattern: Pattern, target: Format) -> Pattern:
    """Convert a pattern to a format that :func:`can_regroup` accepts. O(nnz + rows).

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [0.0, 0.0], [3.0, 4.0]]), ns.COO(2))
    >>> [array.tolist() for array in regrouped(A.pattern, ns.CSR).arrays[1]]
    [[0, 1, 1, 3], [1, 0, 1]]
    """
    if pattern.format == target:
        return pattern
    first, second = pattern.arrays
    if isinstance(target.levels[1], Singleton):
        pos = as_numpy(second[0])
        rows = as_numpy(first[1]).repeat(pos[1:] - pos[:-1]) if first else _row_of_each(pos)
        arrays = (_list_of(rows, pattern.index_dtype), second[1:])
    else:
        starts = _row_starts(pattern, target.parts[0].extent(pattern.shape))
        arrays = ((), (starts, second[-1]))
        if not target.levels[0].full:
            pos = as_numpy(starts)
            rows = np.flatnonzero(pos[1:] != pos[:-1])
            arrays = (_list_of(rows, pattern.index_dtype), (*_tensors(np.append(pos[rows], pos[-1])), second[-1]))
    return Pattern(target, pattern.shape, arrays, pattern.index_dtype)


def _list_of(rows: np.ndarray, dtype: str) -> tuple[torch.Tensor, ...]:
    """The index arrays of a first level that lists these rows."""
    return _tensors(np.array([0, len(rows)], dtype), rows.astype(dtype, copy=False))


def _row_starts(pattern: Pattern, rows: int) -> torch.Tensor:
    """The starts of all rows of a CSR, DCSR or COO pattern."""
    first, second = pattern.arrays
    if len(second) == 1:
        return starts_of(first[1], rows, pattern.index_dtype)
    if not first:
        return second[0]
    counts = np.zeros(rows, np.int64)
    counts[as_numpy(first[1])] = np.diff(as_numpy(second[0]))
    return torch.from_numpy(starts_of_runs(counts, pattern.index_dtype))


def starts_of(row_of_each: torch.Tensor, rows: int, dtype: str) -> torch.Tensor:
    """The starts of ``rows`` rows from the sorted row of each entry; by binary search for few rows, else by counting entries."""
    count = row_of_each.numel()
    if rows * tuning.SEARCHED_ROWS < count:
        starts = np.searchsorted(as_numpy(row_of_each), np.arange(rows + 1, dtype=dtype))
        return torch.from_numpy(starts.astype(dtype, copy=False))
    return torch._convert_indices_from_coo_to_csr(row_of_each, rows, out_int32=dtype == "int32")


def _tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.from_numpy, arrays))


def sorts(pattern: Pattern, target: Format) -> bool:
    """Whether :func:`sorted_rows` supports a conversion: it sorts within rows, or by columns, and keys fit into 63 bits.

    >>> from numscorch.ir.format import CSC, CSR, DCSR
    >>> rows = Pattern(CSR, (2, 2), ((), (torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0]))))
    >>> sorts(rows, CSC), sorts(rows, DCSR)
    (True, False)
    """
    if not _can_sort(pattern.format, target):
        return False
    pos, crd = pattern.arrays[-1]
    return fit_into_keys((pos.numel() - 1, pattern.format.sizes(pattern.shape)[-1]), crd.numel())


@lru_cache(maxsize=1024)
def _can_sort(source: Format, target: Format) -> bool:
    """Whether the formats allow a conversion by :func:`sorted_rows`.

    >>> from numscorch.ir.format import CSC, CSR
    >>> unordered = Format("(i, j) -> (i: dense, j: compressed(ordered=False))")
    >>> _can_sort(unordered, CSR), _can_sort(unordered, CSC), _can_sort(CSR, CSR)
    (True, True, False)
    """
    *above, last = source.levels or (None,)
    is_unordered = isinstance(last, Compressed) and last.is_unique and not last.is_ordered
    if bool(above) and is_unordered and all(isinstance(level, Dense) for level in above) and target == sorted_format(source):
        return True
    is_matrix = source.is_plain and target.is_plain and sorted_format(source).levels == target.levels == CSR_LEVELS
    return is_matrix and isinstance(source.levels[1], Compressed) and source.parts == target.parts[::-1]


def sorted_rows(pattern: Pattern, target: Format) -> tuple[Pattern, np.ndarray]:
    """Convert a pattern to a format that :func:`sorts` accepts; returns the new pattern and the order of the entries.

    If no coordinate of an unordered row is repeated, the result is cached with the pattern for ``disorder``.

    Complexity:
        O(nnz log nnz + rows), plus the number of columns if the result is stored by columns.

    >>> from numscorch.ir.format import CSC, CSR
    >>> by_columns, order = sorted_rows(Pattern(CSR, (2, 2), ((), (torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0])))), CSC)
    >>> [array.tolist() for array in by_columns.arrays[1]], order.tolist()
    ([[0, 2, 3], [0, 1, 0]], [0, 2, 1])

    Rows and columns are levels, not dimensions; a split vector has both.

    >>> unordered = Format("(i) -> (i // 2: dense, i % 2: compressed(ordered=False))")
    >>> arrays = (), (torch.tensor([0, 2, 2]), torch.tensor([1, 0]))
    >>> sorted_rows(Pattern(unordered, (4,), arrays), Format("(i) -> (i // 2: dense, i % 2: compressed)"))[1].tolist()
    [1, 0]
    """
    pos, crd = map(as_numpy, pattern.arrays[-1])
    rows, extents = _row_of_each(pos), (len(pos) - 1, pattern.format.sizes(pattern.shape)[-1])
    if pattern.format.parts != target.parts:  # rows are in order already
        (first,), order = sorted_columns([crd], extents[1:])
        starts = starts_of(torch.from_numpy(first), extents[1], pattern.index_dtype)
        return Pattern(target, pattern.shape, ((), (starts, torch.from_numpy(rows.take(order)))), pattern.index_dtype), order
    (_, second), order = sorted_columns((rows, crd), extents)
    if in_order((rows, second)).all():
        pattern.remember("disorder", lambda: None)
    children = torch.from_numpy(second.astype(crd.dtype, copy=False))
    return Pattern(target, pattern.shape, (*pattern.arrays[:-1], (pattern.arrays[-1][0], children)), pattern.index_dtype), order


def sorted_list(
    indices: Sequence[np.ndarray] | np.ndarray, shape: tuple[int, ...], format: Format, dtype: np.dtype | None
) -> tuple[Pattern, np.ndarray | None, np.ndarray]:
    """Pack coordinates like :func:`~numscorch.tensors.packing.pack`, in a format that :func:`can_regroup` a list, or in a list.

    ``slots`` is None if no entry is repeated. The pattern shares no memory with the coordinates.
    """
    given = [indices[d] for d in format.mode_order]
    order, columns = sorting(given, [shape[d] for d in format.mode_order], len(given[0]))
    is_first = np.concatenate([[True], in_order(columns)])[: len(order)]
    slots = None if is_first.all() else np.cumsum(is_first) - 1
    columns = columns if slots is None else [column[is_first] for column in columns]
    wanted = index_dtype_for(shape, len(columns[0]), dtype)
    ordered = _tensors(*(column.astype(wanted, copy=columns is given) for column in columns))
    return regrouped(listing(ordered, shape, list_format(format)), format), slots, order


def _row_of_each(pos: np.ndarray) -> np.ndarray:
    """The row of each entry."""
    return np.arange(len(pos) - 1, dtype=pos.dtype).repeat(pos[1:] - pos[:-1])


def nonzeros_of_few(values: torch.Tensor, format: Format) -> tuple[Pattern, torch.Tensor] | None:
    """The pattern and the values of a small tensor's nonzeros; None for large tensors, bfloat16, or formats other than CSR, DCSR, COO.

    Gradients do not flow. O(size).

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
    return regrouped(listing(columns, shape, COO(len(shape))), format), torch.from_numpy(flat[places])


@lru_cache(maxsize=1024)
def _is_list_or_rows(format: Format) -> bool:
    return format.order > 0 and (format == COO(format.order) or can_regroup(COO(format.order), format))


# ---- n:m:g


def grouped(tensor: torch.Tensor, kept: torch.Tensor | None, format: Format) -> SparseTensor | None:
    """Convert the entries ``kept`` of a dense matrix (a mask; by default its nonzeros) to n:m:g; None for any other format.

    Gradients flow to the tensor.

    Raises:
        FormatError: a column keeps too many values in a block, or too many columns keep the same combination; names the block.

    Complexity:
        O(size of the matrix), plus a sort of the result's columns.

    >>> A = grouped(torch.eye(4), torch.eye(4) > 0, Format("NMG(1, 2, 1)"))
    >>> A, A.values
    (SparseTensor(NMG(1, 2, 1), shape=(4, 4), nnz=8, density=0.5, float32, int32 indices), tensor([1., 1., 0., 0., 0., 0., 1., 1.]))
    """
    level = format.levels[1] if len(format.levels) == 3 else None
    if not isinstance(level, Grouped) or format.parts != (Part(0, level.m), Part(1), Part(0, 1, level.m)) or tensor.numel() > INT32_MAX:
        return None
    kept = tensor != 0 if kept is None else kept
    (rows, columns), blocks = tensor.shape, -(-tensor.shape[0] // level.m)
    try:
        crd = torch.from_numpy(level.stored(_used(kept, blocks, level.m).numpy()))
    except FormatError as error:
        raise FormatError(f"level 2 ({level}) of {format} {error}") from error
    chosen = torch.from_numpy(table(level.n, level.m)[kinds_at(torch.arange(columns).numpy(), columns, level.kinds, level.g)])
    row = torch.arange(blocks)[:, None, None] * level.m + chosen
    places = (row * columns + crd[:, :, None]).reshape(-1)
    flat = torch.nn.functional.pad(torch.where(kept, tensor, torch.zeros((), dtype=tensor.dtype)).reshape(-1), (0, 1))
    values = flat.index_select(0, places.clamp_(max=rows * columns))
    dtype = getattr(torch, level.array_dtype("crd") or "int32")
    grouped_format = Format((format.levels[0], level, Combination(level.n, level.m, level.g)), format.parts)
    return SparseTensor(Pattern(grouped_format, (rows, columns), ((), (crd.reshape(-1).to(dtype),), ())), values)


def _used(kept: torch.Tensor, blocks: int, m: int) -> torch.Tensor:
    """The rows that each column keeps in each block, as a bit mask; int64, shape (blocks, columns)."""
    rows, columns = kept.shape
    inside = torch.nn.functional.pad(kept, (0, 0, 0, blocks * m - rows)).reshape(blocks, m, columns)
    used = torch.zeros((blocks, columns), dtype=torch.int64)
    for place in range(m):
        used |= inside[:, place].to(torch.int64) << place
    return used
