"""SciPy's sparse arrays: the patterns that bsr and dia arrays have here, and what SciPy makes of a SparseTensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..convert.dense import no_layout, numpy_values
from ..errors import UnsupportedError
from ..ir.format import BCSR, COO, CSC, CSR, DIA, Format
from ..ir.levels import Compressed, Dense
from ..machine.memory import check_entries
from ..tensors.arrays import as_indices, as_values
from ..tensors.packing import index_dtype_for
from ..tensors.pattern import Pattern
from ..tensors.torch_layouts import layout_of

if TYPE_CHECKING:
    from scipy.sparse import sparray

    from ..tensors.sparse_tensor import SparseTensor

UNORDERED = Compressed(ordered=False)


def blocks(matrix: Any) -> tuple[Pattern, torch.Tensor]:
    """The pattern and the values of a bsr array, whose blocks may be unsorted; nothing is copied."""
    stored = int(matrix.indptr[-1])
    pos, crd = as_indices(matrix.indptr, "indptr"), as_indices(matrix.indices, "indices")[:stored]
    values = as_values(np.ascontiguousarray(matrix.data).reshape(-1))[: stored * matrix.blocksize[0] * matrix.blocksize[1]]
    format = BCSR(*matrix.blocksize)
    return Pattern(format, matrix.shape, tuple((pos, crd) if level == Compressed() else () for level in format.levels)), values


def diagonals(matrix: Any) -> tuple[Pattern, torch.Tensor]:
    """The pattern and the values of a dia array; they are copied, since SciPy lays diagonals along columns, DIA along rows."""
    rows, columns = matrix.shape
    order = np.argsort(matrix.offsets, kind="stable")
    order = order[(matrix.offsets[order] > -rows) & (matrix.offsets[order] < columns)]
    offsets = matrix.offsets[order].astype(np.int64)
    _check_diagonals(len(offsets), max(rows, columns), matrix.data.dtype)
    column = offsets[:, None] + np.arange(rows)
    inside = (column >= 0) & (column < min(columns, matrix.data.shape[1]))
    values = np.zeros(column.shape, dtype=matrix.data.dtype)
    values[inside] = matrix.data[np.broadcast_to(order[:, None], column.shape)[inside], column[inside]]
    dtype = index_dtype_for(DIA.sizes(matrix.shape), values.size)
    arrays = np.array([0, len(offsets)], dtype=dtype), (offsets + rows - 1).astype(dtype)
    return Pattern(DIA, matrix.shape, (tuple(map(torch.from_numpy, arrays)), (), ())), as_values(values.reshape(-1))


def _check_diagonals(count: int, length: int, dtype: np.dtype) -> None:
    """Refuse diagonals, each as long as a dimension, that are larger than the memory limit.

    Raises:
        SizeError: with both sizes.
    """
    way_out = "store entries alone, as SciPy's .tocsr() or .to(ns.CSR) does"
    check_entries(count * length, 1, dtype.itemsize, f"{count} diagonals", f"diagonals of length {length}", way_out)


def to_scipy(A: SparseTensor) -> sparray:
    """A SciPy csr_array, csc_array, coo_array or bsr_array that shares the arrays, or a dia_array; gradients are cut.

    CSR and CSC may have rows and columns without an order, which SciPy allows.

    Raises:
        UnsupportedError: SciPy has no layout for the format, or wants whole blocks.
    """
    values = numpy_values(A, "SciPy")
    make = MAKERS.get(A.format)
    if make is not None:
        return make(A, values)
    if A.ndim and A.format == COO(A.ndim):
        return _coordinate_list(A, values)
    layout = layout_of(A.format) if A.ndim == 2 else None
    if layout is None or layout.layout is not torch.sparse_bsr:
        raise no_layout(A, "SciPy")
    return _bsr(A, values, layout.block)


def _compressed(A: SparseTensor, values: np.ndarray) -> Any:
    """The constructors would narrow int64 index arrays to copies: the arrays are set one by one instead."""
    from scipy.sparse import csc_array, csr_array

    made = (csr_array if A.format.is_row_major else csc_array)(A.pattern.shape, dtype=values.dtype)
    made.indptr, made.indices = A.pattern.level_arrays(1)
    made.data = values
    if not A.format.is_ordered:
        made.has_sorted_indices = False
    return made


def _bsr(A: SparseTensor, values: np.ndarray, block: tuple[int, int]) -> Any:
    from scipy.sparse import bsr_array

    if any(size % edge for size, edge in zip(A.pattern.shape, block, strict=True)):
        raise UnsupportedError(
            f"SciPy's bsr_array is made of whole blocks, but those of {A.format.name} reach over the edge of shape {A.pattern.shape}: "
            "use .to(ns.CSR) first"
        )
    made = bsr_array(A.pattern.shape, blocksize=block, dtype=values.dtype)
    made.indptr, made.indices = A.pattern.level_arrays(1)
    made.data = values.reshape(-1, *block)
    return made


def _dia(A: SparseTensor, values: np.ndarray) -> Any:
    from scipy.sparse import dia_array

    rows, columns = A.pattern.shape
    offsets = A.pattern.level_arrays(0)[1].astype(np.int64) - (rows - 1)
    _check_diagonals(len(offsets), max(rows, columns), values.dtype)
    column = offsets[:, None] + np.arange(rows)
    inside = (column >= 0) & (column < columns)
    data = np.zeros((len(offsets), columns), dtype=values.dtype)
    data[np.nonzero(inside)[0], column[inside]] = values.reshape(column.shape)[inside]
    return dia_array((data, offsets), shape=A.pattern.shape)


def _coordinate_list(A: SparseTensor, values: np.ndarray) -> Any:
    from scipy.sparse import coo_array

    entries = coo_array(A.pattern.shape, dtype=values.dtype)
    entries.coords = tuple(A.pattern.level_arrays(level)[-1] for level in range(A.ndim))
    entries.data, entries.has_canonical_format = values, True
    return entries


MAKERS: dict[Format, Callable[[SparseTensor, np.ndarray], Any]] = {
    CSR: _compressed,
    CSC: _compressed,
    Format((Dense(), UNORDERED)): _compressed,
    Format((Dense(), UNORDERED), (1, 0)): _compressed,
    DIA: _dia,
}
