"""Conversions between SparseTensors and the arrays of pydata/sparse: COO, GCXS and DOK."""

from __future__ import annotations

from typing import Any

from ..convert.construct import from_coo, from_parts, owned
from ..convert.dense import handed_out, nearest, numpy_values
from ..errors import UnsupportedError
from ..ir.format import COO, CSC, CSR, Format
from ..tensors.arrays import as_indices, as_shape, as_values
from ..tensors.methods import METHODS
from ..tensors.modes import as_numpy
from ..tensors.packing import coordinates
from ..tensors.sparse_tensor import SparseTensor


def from_pydata(array: Any, format: Format | str | None = None, *, copy: bool = True) -> SparseTensor:
    """Convert an array of pydata/sparse. GCXS arrays that aren't matrices and DOK arrays are converted to COO first.

    Args:
        array: a ``sparse.COO``, ``sparse.GCXS`` or ``sparse.DOK`` whose fill value is 0.
        format: the result's format; by default the array's own: CSR or CSC for a GCXS matrix, else COO(ndim).
        copy: False shares the values, and the index arrays of COO arrays and GCXS matrices if they are int32 or int64. Then write to
            the values only.

    Raises:
        UnsupportedError: the argument isn't such an array, its fill value isn't 0, or kernels can't read its dtype.

    >>> import numpy, sparse
    >>> from_pydata(sparse.GCXS.from_numpy(numpy.eye(2), compressed_axes=(1,)))
    SparseTensor(CSC, shape=(2, 2), nnz=2, density=0.5, float64, int64 indices)
    """
    if not hasattr(array, "fill_value") or not any(hasattr(array, name) for name in ("coords", "compressed_axes", "to_coo")):
        raise UnsupportedError(f"from_pydata takes an array of pydata/sparse, not {type(array).__name__}: use from_scipy or from_torch")
    if not array.fill_value == 0:
        raise UnsupportedError(f"entries that aren't stored are 0 here, but {array.fill_value} in this array: subtract it first")
    if array.ndim == 2 and hasattr(array, "compressed_axes"):
        A = _from_compressed(array)
        A = A if format is None else A.to(format)
        return owned(A, array.indptr, array.indices, array.data) if copy else A
    entries = array if hasattr(array, "coords") else array.to_coo() if hasattr(array, "to_coo") else array.tocoo()
    return from_coo(entries.coords, entries.data, entries.shape, format, copy=copy)


def _from_compressed(array: Any) -> SparseTensor:
    """Convert a GCXS matrix; its rows may be unsorted."""
    by_rows = tuple(int(axis) for axis in array.compressed_axes) == (0,)
    pos, crd = as_indices(array.indptr, "indptr"), as_indices(array.indices, "indices")
    return from_parts(CSR if by_rows else CSC, pos, crd, as_values(array.data), as_shape(array.shape))


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


METHODS.update(to_pydata=to_pydata)
