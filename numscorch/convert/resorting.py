"""Resorting: entries of rows are put in order, within the rows or by columns, by the numbers that their coordinates make.

Both coordinates and the place of an entry make one integer, and plain integers are what NumPy sorts fastest, however many
rows there are and however few entries are in each.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from ..ir.format import Format, sorted_format
from ..ir.level import INT64_MAX
from ..ir.levels import Compressed, Dense
from ..machine.threads import must_run_serial
from ..tensors.packing import sorting_numbers
from ..tensors.pattern import Pattern
from .matrices import BY_NUMBER, starts_of


@lru_cache(maxsize=1024)
def can_resort(source: Format, target: Format) -> bool:
    """Whether the target differs from the source in nothing but the order in rows, which stand at each coordinate of dense levels.

    >>> from numscorch.ir.format import CSC, CSR
    >>> unordered = Format("(i, j) -> (i: dense, j: compressed(ordered=False))")
    >>> can_resort(unordered, CSR), can_resort(unordered, CSC), can_resort(CSR, CSR)
    (True, False, False)
    """
    *above, last = source.levels
    is_unordered = isinstance(last, Compressed) and last.is_unique and not last.is_ordered
    return bool(above) and is_unordered and all(isinstance(level, Dense) for level in above) and target == sorted_format(source)


def resorts(pattern: Pattern, target: Format) -> bool:
    """Whether only the order in rows differs; torch, which gathers the values, must not start threads in a forked child."""
    return can_resort(pattern.format, target) and not must_run_serial()


def resorted(pattern: Pattern, target: Format) -> tuple[Pattern, np.ndarray] | None:
    """The pattern with its rows sorted, and the order of the entries; None where a row, a coordinate and a place don't fit into 63 bits.

    O(nnz log nnz + rows); where rows start is shared. That no coordinate is repeated is seen on the way, and remembered with the
    pattern as what ``disorder`` says of it.

    >>> unordered = Format("(i, j) -> (i: dense, j: compressed(ordered=False))")
    >>> arrays = torch.tensor([0, 3, 3]), torch.tensor([2, 0, 1])
    >>> found, order = resorted(Pattern(unordered, (2, 3), ((), arrays)), sorted_format(unordered))
    >>> found.arrays[1][1].tolist(), order.tolist()
    ([0, 1, 2], [1, 2, 0])
    """
    pos, crd = pattern.level_arrays(len(target.levels) - 1)
    size = target.sizes(pattern.shape)[-1]
    if (len(pos) - 1) * size << len(crd).bit_length() > INT64_MAX:
        return None
    keys, order = sorting_numbers(_rows(pos) * size + crd)
    if not (keys[1:] == keys[:-1]).any():
        pattern.remember("disorder", lambda: None)
    arrays = (*pattern.arrays[:-1], (pattern.arrays[-1][0], torch.from_numpy(crd[order])))
    return Pattern.derived_from(target, pattern.shape, arrays, pattern.index_dtype), order


@lru_cache(maxsize=1024)
def can_turn(source: Format, target: Format) -> bool:
    """Whether the target stores by columns what the source stores by rows, or the other way around.

    >>> from numscorch.ir.format import CSC, CSR, DCSR
    >>> can_turn(CSR, CSC), can_turn(CSC, CSR), can_turn(CSR, DCSR)
    (True, True, False)
    """
    is_matrix = source.is_plain and target.is_plain and sorted_format(source).levels == target.levels == BY_NUMBER
    return is_matrix and isinstance(source.levels[1], Compressed) and source.parts == target.parts[::-1]


def turned(pattern: Pattern, target: Format) -> tuple[Pattern, np.ndarray] | None:
    """The same entries by columns, and their order; None where both coordinates and a place don't fit into 63 bits.

    O(nnz log nnz + rows + columns).

    >>> from numscorch.ir.format import CSC, CSR
    >>> found, order = turned(Pattern(CSR, (2, 2), ((), (torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0])))), CSC)
    >>> [array.tolist() for array in found.arrays[1]], order.tolist()
    ([[0, 2, 3], [0, 1, 0]], [0, 2, 1])
    """
    (pos, crd), columns = pattern.level_arrays(1), target.sizes(pattern.shape)[0]
    if columns * (len(pos) - 1) << len(crd).bit_length() > INT64_MAX:
        return None
    rows = _rows(pos)
    order = sorting_numbers(crd * np.int64(len(pos) - 1) + rows)[1]
    starts = starts_of(torch.from_numpy(crd[order]), columns, pattern.index_dtype)
    children = torch.from_numpy(rows[order].astype(crd.dtype, copy=False))
    return Pattern.derived_from(target, pattern.shape, ((), (starts, children)), pattern.index_dtype), order


def _rows(pos: np.ndarray) -> np.ndarray:
    """The row of each entry; rows without any are passed over, of which there may be many more."""
    lengths = pos[1:] - pos[:-1]
    rows = np.flatnonzero(lengths != 0)
    return np.repeat(rows, lengths[rows])
