"""Conversions between SparseTensors and the arrays of SciPy and pydata/sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..convert.construct import adopted, checked, from_coo, from_parts, owned, way_in
from ..convert.conversions import to_format
from ..convert.values import nearest
from ..errors import UnsupportedError
from ..ir.format import BCSR, COO, CSC, CSR, DIA, Format, as_format
from ..ir.levels import Compressed, Dense
from ..machine.memory import check_entries
from ..tensors.arrays import as_indices, as_shape, as_values, check_coordinates
from ..tensors.coordinate_order import in_order
from ..tensors.graph_breaks import graph_break
from ..tensors.modes import as_numpy
from ..tensors.packing import coordinates, index_dtype_for
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import layout_of, over_the_edge

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix

UNORDERED = Compressed(ordered=False)


def handed_out(arrays: Iterable[np.ndarray], copy: bool) -> tuple[np.ndarray, ...]:
    """Index arrays for another library: copies, or read-only views, because patterns are immutable and shared."""
    if copy:
        return tuple(array.copy() for array in arrays)
    views = tuple(array.view() for array in arrays)
    for view in views:
        view.flags.writeable = False
    return views


def numpy_values(A: SparseTensor, library: str, copy: bool) -> np.ndarray:
    """The values as a NumPy array, detached from autograd: a copy, or a view of the same memory.

    Raises:
        UnsupportedError: NumPy does not have the data type.
    """
    if A.dtype is torch.bfloat16:
        raise UnsupportedError(f"{library} holds NumPy arrays, which have no bfloat16: use .to(torch.float32) first")
    values = as_numpy(A.values.detach())
    return values.copy() if copy else values


# ---- SciPy


def blocks(matrix: Any) -> tuple[Pattern, torch.Tensor]:
    """The pattern and the values of a bsr array, without copies; blocks may be unsorted."""
    stored = int(matrix.indptr[-1])
    pos, crd = as_indices(matrix.indptr, "indptr"), as_indices(matrix.indices, "indices")[:stored]
    values = as_values(np.ascontiguousarray(matrix.data).reshape(-1))[: stored * matrix.blocksize[0] * matrix.blocksize[1]]
    format = BCSR(*matrix.blocksize)
    return Pattern(format, matrix.shape, tuple((pos, crd) if level == Compressed() else () for level in format.levels)), values


def diagonals(matrix: Any) -> tuple[Pattern, torch.Tensor]:
    """The pattern and the values of a dia array. Both are copies: SciPy indexes diagonals by column, DIA by row."""
    rows, columns = matrix.shape
    order = np.argsort(matrix.offsets, kind="stable")
    order = order[(matrix.offsets[order] > -rows) & (matrix.offsets[order] < columns)]
    offsets = matrix.offsets[order].astype(np.int64)
    column = _columns(offsets, matrix.shape, matrix.data.dtype)
    inside = (column >= 0) & (column < min(columns, matrix.data.shape[1]))
    values = np.zeros(column.shape, dtype=matrix.data.dtype)
    values[inside] = matrix.data[np.broadcast_to(order[:, None], column.shape)[inside], column[inside]]
    dtype = index_dtype_for(DIA.sizes(matrix.shape), values.size)
    arrays = np.array([0, len(offsets)], dtype=dtype), (offsets + rows - 1).astype(dtype)
    return Pattern(DIA, matrix.shape, (tuple(map(torch.from_numpy, arrays)), (), ())), as_values(values.reshape(-1))


def _columns(offsets: np.ndarray, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """The column of each element of diagonals, shape (diagonals, rows); each diagonal has an element for each row.

    Raises:
        SizeError: the diagonals exceed the memory limit.
    """
    length, suggestion = max(shape), "store only the entries, with SciPy's .tocsr() or with .to(ns.CSR)"
    check_entries(len(offsets) * length, 1, dtype.itemsize, f"{len(offsets)} diagonals", f"diagonals of length {length}", suggestion)
    return offsets[:, None] + np.arange(shape[0])


def to_scipy(A: SparseTensor, copy: bool = True) -> sparray:
    """Convert to a csr_array, csc_array, coo_array, bsr_array or dia_array.

    Formats that SciPy lacks, and blocks that cross the edge of the shape, are converted to csr, csc or coo first. The result is
    detached from autograd. Rows of CSR and columns of CSC may be unsorted, as SciPy allows.

    Args:
        A: the tensor.
        copy: False shares the arrays of csr, csc, coo and bsr. Index arrays are then read-only, because many tensors share a pattern,
            but SciPy's tidying, such as ``sort_indices``, moves entries in place, also within ``spsolve``. SciPy's products work, but
            its tidying raises ValueError. Writes to ``data`` change ``A.values``; for bsr, ``data`` is read-only, too.

    Raises:
        UnsupportedError: the tensor has no dimensions, or NumPy has no such data type.

    >>> import numscorch as ns
    >>> A = ns.from_coo([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), ns.CSR)
    >>> A.to_scipy(copy=False).eliminate_zeros()  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: the array is read-only
    """
    from scipy import sparse

    values = numpy_values(A, "SciPy", copy)
    make = _coordinate_list if A.ndim and A.format == COO(A.ndim) else MAKERS.get(A.format)
    if make is not None:
        return make(sparse, A, values, copy)
    layout = layout_of(A.format) if A.ndim == 2 else None
    if layout is None or layout.layout is not torch.sparse_bsr or over_the_edge(A.pattern, layout):
        return to_scipy(nearest(A, "SciPy"), copy)
    matrix = sparse.bsr_array(A.pattern.shape, blocksize=layout.block, dtype=values.dtype)
    # read-only data, too: eliminate_zeros moves blocks before it writes to the index arrays
    matrix.indptr, matrix.indices, matrix.data = handed_out((*A.pattern.level_arrays(1), values.reshape(-1, *layout.block)), copy)
    return matrix


def _compressed(sparse: Any, A: SparseTensor, values: np.ndarray, copy: bool) -> Any:
    """Set the arrays as attributes: SciPy's constructors would copy int64 index arrays to a narrower type."""
    matrix = (sparse.csr_array if A.format.is_row_major else sparse.csc_array)(A.pattern.shape, dtype=values.dtype)
    matrix.indptr, matrix.indices = handed_out(A.pattern.level_arrays(1), copy)
    matrix.data = values
    if not A.format.is_ordered:
        matrix.has_sorted_indices = False
    return matrix


def _dia(sparse: Any, A: SparseTensor, values: np.ndarray, copy: bool) -> Any:
    rows, columns = A.pattern.shape
    offsets = A.pattern.level_arrays(0)[1].astype(np.int64) - (rows - 1)
    column = _columns(offsets, (rows, columns), values.dtype)
    inside = (column >= 0) & (column < columns)
    data = np.zeros((len(offsets), columns), dtype=values.dtype)
    data[np.nonzero(inside)[0], column[inside]] = values.reshape(column.shape)[inside]
    return sparse.dia_array((data, offsets), shape=A.pattern.shape)


def _coordinate_list(sparse: Any, A: SparseTensor, values: np.ndarray, copy: bool) -> Any:
    entries = sparse.coo_array(A.pattern.shape, dtype=values.dtype)
    entries.coords = handed_out([A.pattern.level_arrays(level)[-1] for level in range(A.ndim)], copy)
    entries.data, entries.has_canonical_format = values, True
    return entries


MAKERS: dict[Format, Callable[[Any, SparseTensor, np.ndarray, bool], Any]] = {
    CSR: _compressed,
    CSC: _compressed,
    Format((Dense(), UNORDERED)): _compressed,
    Format((Dense(), UNORDERED), (1, 0)): _compressed,
    DIA: _dia,
}


@graph_break
def from_scipy(matrix: sparray | spmatrix, format: Format | str | None = None, *, copy: bool = True) -> SparseTensor:
    """Convert a SciPy sparse array or matrix.

    Unsorted or duplicate entries are coalesced. Layouts other than csr, csc, bsr, coo and dia are converted with ``.tocsr()`` first.

    In SciPy, the adjacency matrix of a graph is ``A[source, target]``; graph layers take ``A.t()``, which shares memory.

    Args:
        matrix: a sparse array or matrix, or a coo array of any number of dimensions, of a supported data type.
        format: the result's format; by default the matrix's own: CSR, CSC, COO, BCSR or DIA.
        copy: False shares the arrays of csr, csc, bsr and coo if they are sorted and have no duplicates. Then the index arrays of
            ``matrix`` (for bsr, also ``data``) become read-only. SciPy's in-place functions, such as ``sort_indices``, then raise
            ValueError.

    Returns:
        A SparseTensor of the matrix's shape and data type.

    Raises:
        FormatError: the index arrays violate their layout, or the format has another number of dimensions or can't store the entries.
        SizeError: the diagonals of a dia array exceed the memory limit.
        UnsupportedError: the argument isn't a SciPy sparse array, or its data type is not supported.

    Complexity:
        O(nnz) if entries are sorted and the format is the matrix's own, else at most O(nnz log nnz).

    >>> from scipy.sparse import eye_array
    >>> from_scipy(eye_array(2, format="csc"))
    SparseTensor(CSC, shape=(2, 2), nnz=2, density=0.5, float64, int32 indices)
    """
    if not hasattr(matrix, "tocoo") or hasattr(matrix, "fill_value"):
        raise UnsupportedError(f"from_scipy takes a SciPy sparse array, not {type(matrix).__name__}: use {way_in(matrix)}")
    source: Any = matrix
    target = None if format is None else as_format(format)
    if source.ndim != 2 or source.format == "coo":
        A = _from_scipy_list(source.tocoo(), target)
    else:
        A = _from_scipy_matrix(source)
        A = A if target is None else to_format(A, target)
    held = {name: getattr(source, name) for name in ("data", "indptr", "indices", "coords") if hasattr(source, name)}
    listed = {name: arrays if name == "coords" else (arrays,) for name, arrays in held.items()}
    if copy:
        return owned(A, *(array for arrays in listed.values() for array in arrays))
    for name, arrays in listed.items():
        if name != "data" or source.format == "bsr":
            views = handed_out(arrays, copy=False)
            setattr(source, name, views if name == "coords" else views[0])
    return A


def _from_scipy_list(source: Any, format: Format | None) -> SparseTensor:
    """Convert a coo array with any number of dimensions."""
    shape, values = as_shape(source.shape), as_values(source.data)
    if format is None or format == COO(len(shape)):
        tensors = [as_indices(row, f"coords[{dimension}]") for dimension, row in enumerate(source.coords)]
        arrays = [as_numpy(row) for row in tensors]
        check_coordinates(arrays, shape)
        if in_order(arrays).all():
            return adopted(tensors, values, shape, COO(len(shape)))
    return from_coo(np.stack(source.coords), values, shape, format, copy=False)


def _from_scipy_matrix(source: Any) -> SparseTensor:
    if source.format == "bsr":
        return checked(*blocks(source))
    if source.format == "dia":
        return checked(*diagonals(source), assume_sorted=True)
    if source.format not in ("csr", "csc"):
        source = source.tocsr()
    return _from_compressed(CSR if source.format == "csr" else CSC, source, int(source.indptr[-1]))


def _from_compressed(layout: Format, array: Any, stored: int | None = None) -> SparseTensor:
    """Convert a CSR or CSC matrix, which may be unsorted; ``stored``: the number of entries, if the arrays are longer."""
    pos, crd = as_indices(array.indptr, "indptr"), as_indices(array.indices, "indices")
    return from_parts(layout, pos, crd[:stored], as_values(array.data)[:stored], as_shape(array.shape))


# ---- pydata/sparse


@graph_break
def from_pydata(array: Any, format: Format | str | None = None, *, copy: bool = True) -> SparseTensor:
    """Convert an array of pydata/sparse.

    DOK arrays, and GCXS arrays that aren't matrices, are converted to COO first.

    Args:
        array: a ``sparse.COO``, ``sparse.GCXS`` or ``sparse.DOK`` whose fill value is 0.
        format: the result's format; by default the array's own: CSR or CSC for a GCXS matrix, else COO(ndim).
        copy: False shares the values, and the index arrays of COO arrays and GCXS matrices if they are int32 or int64. Then write to
            the values only.

    Returns:
        A SparseTensor of the array's shape and data type.

    Raises:
        FormatError: the format has another number of dimensions, or can't store the entries.
        UnsupportedError: the argument isn't such an array, its fill value isn't 0, or its data type is not supported.

    >>> import numpy, sparse
    >>> from_pydata(sparse.GCXS.from_numpy(numpy.eye(2), compressed_axes=(1,)))
    SparseTensor(CSC, shape=(2, 2), nnz=2, density=0.5, float64, int64 indices)
    """
    if not hasattr(array, "fill_value") or not any(hasattr(array, name) for name in ("coords", "compressed_axes", "to_coo")):
        raise UnsupportedError(f"from_pydata takes an array of pydata/sparse, not {type(array).__name__}: use from_scipy or from_torch")
    if not array.fill_value == 0:
        raise UnsupportedError(f"entries that aren't stored are 0 here, but {array.fill_value} in this array: subtract it first")
    if array.ndim == 2 and hasattr(array, "compressed_axes"):
        A = _from_compressed(CSR if tuple(map(int, array.compressed_axes)) == (0,) else CSC, array)
        A = A if format is None else A.to(format)
        return owned(A, array.indptr, array.indices, array.data) if copy else A
    entries = array if hasattr(array, "coords") else array.to_coo() if hasattr(array, "to_coo") else array.tocoo()
    return from_coo(entries.coords, entries.data, entries.shape, format, copy=copy)


def to_pydata(A: SparseTensor, copy: bool = True) -> Any:
    """Convert a CSR or CSC matrix to ``sparse.GCXS``, or a COO tensor to ``sparse.COO``; other formats are converted to these first.

    The result is detached from autograd. ``copy=False`` shares the arrays; then index arrays are read-only.

    Raises:
        UnsupportedError: the tensor has no dimensions, or numpy has no such data type.
    """
    import sparse

    values = numpy_values(A, "pydata/sparse", copy)
    if A.format in (CSR, CSC):
        pos, crd = handed_out(A.pattern.level_arrays(1), copy)
        return sparse.GCXS((values, crd, pos), shape=A.pattern.shape, compressed_axes=(0,) if A.format == CSR else (1,))
    if not A.ndim or A.format != COO(A.ndim):
        return to_pydata(nearest(A, "pydata/sparse"), copy)
    (places,) = handed_out([as_numpy(coordinates(A.pattern))], copy)
    return sparse.COO(places, values, shape=A.pattern.shape, has_duplicates=False, sorted=True)
