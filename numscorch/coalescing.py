"""Coalescing: entries in any order, some at the same coordinates, become a matrix whose rows are in order and hold each coordinate once.

Two kernels, each a copy: entries are listed by rows, and then each row is collected, where what is inserted twice is summed, and
appended in order (Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted Transposition", 1978).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from .copies import copying
from .ir.format import Format, sorted_format
from .ir.levels import Compressed, Dense, Singleton
from .packing import in_order, index_dtype_for
from .pattern import Pattern
from .reformat import SPARSEST, WORTHWHILE, can_copy, pays

if TYPE_CHECKING:
    from .sparse_tensor import SparseTensor

KERNELS = 2


def coalesced(
    indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...], format: Format, dtype: np.dtype | None
) -> SparseTensor | None:
    """The entries of a matrix, sorted and summed; None where kernels can't, or there are too few, or they are sorted already. O(nnz).

    Args:
        indices: coordinates, int64 of shape (ndim, n).
        values: theirs, of shape (n,).
        shape, format: the matrix's.
        dtype: of its index arrays; by default the smaller that fits.
    """
    from .computing import compute  # late: kernels read operands in other formats, and so convert them
    from .sparse_tensor import SparseTensor

    if len(shape) != 2 or format.order != 2 or not can_copy(values):
        return None
    first, second = dict.fromkeys(part.dimension for part in format.parts if part.minus is None)
    listed = Format((Compressed(unique=False, ordered=False), Singleton()), (first, second))
    rows = Format((Dense(), Compressed(ordered=False)), (first, second))
    n = len(values)
    if shape[first] > SPARSEST * n or not pays(listed, format, n, WORTHWHILE * KERNELS**2):
        return None
    if bool(in_order([indices[first], indices[second]], strict=False).all()):
        return None
    own = index_dtype_for(shape, n, dtype)
    crd = [torch.from_numpy(indices[d].astype(own)) for d in (first, second)]
    pattern = Pattern(listed, shape, ((torch.from_numpy(np.array([0, n], own)), crd[0]), (crd[1],)))
    by_rows = compute(copying(listed, rows), (SparseTensor.trusted(pattern, values.contiguous()),), rows)
    target = sorted_format(rows)
    made: SparseTensor = compute(copying(rows, target), (by_rows,), target)
    return made.to(format)
