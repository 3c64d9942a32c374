"""Select rows with a kernel: the product with a matrix that has one entry in each row, and whose values are not read."""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile
from math import prod

import numpy as np
import torch

from ..frontend.requests import Request
from ..frontend.statements import parse_program
from ..ir.format import Format
from ..ir.levels import Dense
from ..runtime.plans import launch
from ..schedule import tuning
from ..tensors.modes import made_outside
from ..tensors.pattern import Pattern
from ..tensors.restriction import Numbers, has_fibres, is_increasing, positions_below
from ..tensors.sparse_tensor import SparseTensor
from .conversions import can_copy, converted_so_far, is_wide_enough

CHOICE = Format("(i, j) -> (i: dense, j: singleton)")
MOVED = {4: torch.float32, 8: torch.float64}  # by size: kernels only move values, so that they may read them as floats


@lru_cache(maxsize=64)
def selecting(order: int) -> Request:
    """The request that selects rows of a tensor with this many dimensions.

    >>> str(selecting(3))
    'stored(A[i,j]) * B[j,k0,k1] over ij,jk0k1->ik0k1'
    """
    below = ",".join(f"k{at}" for at in range(order - 1))
    return parse_program(f"R[i,{below}] = stored(S[i,j]) * A[j,{below}]")[0].request


def with_rows(A: SparseTensor, selected: list[Numbers]) -> tuple[SparseTensor, list[Numbers]]:
    """Select the coordinates that arrays list in leading dense levels, if a kernel pays.

    Gradients flow. O(rows + result).

    Returns:
        The tensor of the selected rows, and the selections that remain; both unchanged if a kernel does not pay.
    """
    format, sizes = A.format, A.format.sizes(A.shape)
    depth = len(list(takewhile(lambda level: isinstance(level, Dense), format.levels)))
    leading = format.mode_order[:depth]
    has_rows = has_fibres(format) and format.is_ordered and depth < format.order
    if not (has_rows and any(isinstance(selected[d], np.ndarray) for d in leading)):
        return A, selected
    parents, source = prod(sizes[:depth]), Format.flat((Dense(), *format.levels[depth:]))
    entries = A.nnz * prod(len(selected[d]) for d in leading) // max(parents, 1)
    if not max(tuning.SELECTED_ENTRIES, 1) <= entries <= A.nnz or not is_wide_enough(format, A.shape):
        return A, selected
    rows, pos = positions_below(sizes[:depth], [selected[d] for d in leading]), A.pattern.level_arrays(depth)[0]
    repeated = 0 if is_increasing(rows) else int((pos.take(rows + 1) - pos.take(rows)).sum())
    if repeated > pos[-1]:  # the result may exceed the index type
        return A, selected
    if converted_so_far(source, CHOICE, entries) < tuning.COMPILE_ENTRIES:
        return A, selected
    flat = Pattern(source, (parents, *sizes[depth:]), ((), *A.pattern.arrays[depth:]), A.pattern.index_dtype)
    is_moved = can_copy(A.values) and A.values.itemsize in MOVED
    moved = made_outside(lambda: _moved(flat, A.values if is_moved else None, rows))
    values = moved.values if is_moved else A.values.index_select(0, moved.values)
    shape = tuple(len(selected[d]) if d in leading else size for d, size in enumerate(A.shape))
    pattern = Pattern(format, shape, (*((),) * depth, *moved.pattern.arrays[1:]), A.pattern.index_dtype)
    return SparseTensor.trusted(pattern, values), [range(size) if d in leading else selected[d] for d, size in enumerate(shape)]


def _moved(pattern: Pattern, values: torch.Tensor | None, rows: np.ndarray) -> SparseTensor:
    """These rows of a tensor with one dense level, and their values; by default the numbers of the entries."""
    source = torch.from_numpy(np.arange(pattern.nnz, dtype=pattern.index_dtype)) if values is None else values
    crd = torch.from_numpy(rows.astype(pattern.index_dtype, copy=False))
    choice = Pattern(CHOICE, (len(rows), pattern.shape[0]), ((), (crd,)), pattern.index_dtype)
    operands = (
        SparseTensor.trusted(choice.unmeasured(), torch.empty(1).expand(len(rows))),
        SparseTensor.trusted(pattern.unmeasured(), source.view(MOVED[source.itemsize])),
    )
    result = launch(selecting(len(pattern.shape)), operands, pattern.format)
    return SparseTensor.trusted(result.pattern, result.values.view(source.dtype))
