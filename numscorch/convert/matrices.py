"""Regrouping: matrices whose formats differ only in how the first index is stored share the second one's array, and the order of values.

A row's entries are found by its number (CSR), by its place among the rows that have some (DCSR), or each entry stores its
row (COO); each follows from another by counting or repeating rows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from ..ir.format import Format
from ..ir.levels import Compressed, Dense, Singleton
from ..machine.threads import must_run_serial
from ..schedule import tuning
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
        found = np.searchsorted(each.numpy(), np.arange(rows + 1, dtype=dtype))
        return torch.from_numpy(found.astype(dtype, copy=False))
    if must_run_serial():  # torch's threads hang in a forked child
        return torch.from_numpy(_starts(np.bincount(each.numpy(), minlength=rows), dtype))
    if dtype == "int32" and count <= max(tuning.NARROW_STARTS, rows):
        return torch._convert_indices_from_coo_to_csr(each, rows, out_int32=True)
    starts = torch._convert_indices_from_coo_to_csr(each, rows)
    return starts if dtype == "int64" else starts.int()


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
