"""Coalescing: entries in any order, some at the same coordinates, become a tensor whose coordinates are in order and there once.

Each kernel is a copy: entries are sorted by all their coordinates but the last, a coordinate at a time, and then each fibre is
collected, where what is inserted twice is summed, and appended in order (for matrices, Gustavson,
"Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted Transposition", 1978).
"""

from __future__ import annotations

import numpy as np
import torch

from ..frontend.copy_statements import copying
from ..ir.format import Format
from ..runtime.plans import launch
from ..schedule import tuning
from ..tensors.packing import in_order, index_dtype_for
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .conversion_plan import steps_collecting
from .conversions import can_copy, pays


def coalesced(
    indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...], format: Format, dtype: np.dtype | None
) -> SparseTensor | None:
    """The entries, sorted and summed; None where kernels can't, or there are too few, or they are sorted already. O(nnz).

    Args:
        indices: coordinates, int64 of shape (ndim, n).
        values: theirs, of shape (n,).
        shape, format: the tensor's.
        dtype: of its index arrays; by default the smaller that fits.
    """
    if not shape or not can_copy(values):
        return None
    dimensions = tuple(dict.fromkeys(part.dimension for part in format.parts if part.minus is None))
    listed, *steps = steps_collecting(dimensions)
    n = len(values)
    if max((shape[d] for d in dimensions[:-1]), default=0) > tuning.COUNTED_COORDINATES * n or not pays(
        listed, format, n, tuning.COMPILE_ENTRIES * len(shape) ** 2
    ):
        return None
    if bool(in_order([indices[d] for d in dimensions], strict=False).all()):
        return None
    A = _as_listed(indices, values, shape, listed, index_dtype_for(shape, n, dtype))
    for step in steps:
        A = launch(copying(A.format, step), (A,), step)
    return A.to(format)


def _as_listed(indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...], listed: Format, dtype: np.dtype) -> SparseTensor:
    """Entries in a format that takes them as they are."""
    first, *others = (torch.from_numpy(indices[d].astype(dtype)) for d in listed.mode_order)
    pos = torch.from_numpy(np.array([0, len(values)], dtype))
    return SparseTensor.trusted(Pattern(listed, shape, ((pos, first), *((crd,) for crd in others))), values.contiguous())
