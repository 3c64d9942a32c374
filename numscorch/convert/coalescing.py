"""Coalescing: sort entries, and sum duplicates, with generated kernels.

Each kernel copies the entries once. The first kernels are stable bucket sorts, one for each coordinate except the last. The
last kernel collects each fibre in a workspace, which sums duplicates, and appends it in order. For matrices, this is the
algorithm of Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted Transposition", 1978.
"""

from __future__ import annotations

import numpy as np
import torch

from ..frontend.copy_statements import copying
from ..ir.format import Format
from ..machine.progress import Progress
from ..runtime.plans import launch
from ..schedule import tuning
from ..tensors.packing import are_in_order, index_dtype_for
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .conversion_plan import steps_collecting
from .conversions import can_copy, converted_so_far, copy_steps, with_format

COPIES_PER_STEP = 2  # at most


def coalesced(
    indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...], format: Format, dtype: np.dtype | None
) -> SparseTensor | None:
    """Sort entries and sum duplicates; None if kernels do not support the values, do not pay, or have nothing to sort. O(nnz).

    Args:
        indices: coordinates, int64 of shape (ndim, n).
        values: values, shape (n,).
        shape: the tensor's shape.
        format: the tensor's format.
        dtype: dtype of the index arrays; by default the smallest that fits.
    """
    if not shape or not can_copy(values):
        return None
    dimensions = tuple(dict.fromkeys(part.dimension for part in format.parts if part.minus is None))
    listed, *steps = steps_collecting(dimensions)
    n = len(values)
    if max((shape[d] for d in dimensions[:-1]), default=0) > tuning.COUNTED_COORDINATES * n:
        return None
    if converted_so_far(listed, format, n) < tuning.COMPILE_ENTRIES * len(shape) ** 2:
        return None
    if are_in_order([indices[d] for d in dimensions]):
        return None
    A = _as_listed(indices, values, shape, listed, index_dtype_for(shape, n, dtype))
    with Progress(f"sorting {n:,} entries", COPIES_PER_STEP * len(steps), size=values.nbytes) as progress:
        for at, step in enumerate(steps):
            parts = copy_steps(A.pattern, step)
            for part_at, part in enumerate(parts):
                progress.reach(COPIES_PER_STEP * at + COPIES_PER_STEP * part_at // len(parts))
                A = launch(copying(A.format, part), (A,), part)
            A = with_format(A, step)
    return A.to(format)


def _as_listed(indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...], listed: Format, dtype: np.dtype) -> SparseTensor:
    """Wrap unsorted entries in the list format ``listed``, without sorting."""
    pos = torch.from_numpy(np.array([0, len(values)], dtype))
    first, *others = (torch.from_numpy(indices[d]).to(pos.dtype).contiguous() for d in listed.mode_order)  # several threads, unlike NumPy
    return SparseTensor.trusted(Pattern(listed, shape, ((pos, first), *((crd,) for crd in others))), values.contiguous())
