"""pydata/sparse: its COO, GCXS and DOK arrays as SparseTensors, and back."""

from __future__ import annotations

from typing import Any

from ..convert.construct import from_coo, from_parts
from ..convert.dense import no_layout, numpy_values
from ..errors import UnsupportedError
from ..ir.format import COO, CSC, CSR, Format
from ..tensors.arrays import as_indices, as_shape, as_values
from ..tensors.methods import METHODS
from ..tensors.packing import coordinates
from ..tensors.sparse_tensor import SparseTensor


def from_pydata(array: Any, format: Format | str | None = None) -> SparseTensor:
    """A SparseTensor from an array of pydata/sparse.

    Values are taken without a copy, and so are the index arrays of COO and of matrices in GCXS, where they are int32
    or int64. Other GCXS arrays and DOK ones go through COO.

    Args:
        array: a ``sparse.COO``, ``sparse.GCXS`` or ``sparse.DOK`` whose fill value is 0.
        format: the result's format; by default the array's own: COO(ndim), or CSR or CSC of a GCXS matrix.

    Raises:
        UnsupportedError: another array, another fill value, or a dtype that kernels can't read.

    >>> import numpy, sparse
    >>> from_pydata(sparse.GCXS.from_numpy(numpy.eye(2), compressed_axes=(1,)))
    SparseTensor(CSC, shape=(2, 2), nnz=2, density=0.5, float64, int64 indices)
    """
    if not hasattr(array, "fill_value") or not any(hasattr(array, name) for name in ("coords", "compressed_axes", "to_coo")):
        raise UnsupportedError(f"from_pydata takes an array of pydata/sparse, not {type(array).__name__}: use from_scipy or from_torch")
    if not array.fill_value == 0:
        raise UnsupportedError(f"entries that aren't stored are 0 here, but {array.fill_value} in this array: subtract that first")
    if array.ndim == 2 and hasattr(array, "compressed_axes"):
        A = _from_compressed(array)
        return A if format is None else A.to(format)
    entries = array if hasattr(array, "coords") else array.to_coo() if hasattr(array, "to_coo") else array.tocoo()
    return from_coo(entries.coords, entries.data, entries.shape, format)


def _from_compressed(array: Any) -> SparseTensor:
    """A matrix in GCXS; its rows may be unsorted."""
    by_rows = tuple(int(axis) for axis in array.compressed_axes) == (0,)
    pos, crd = as_indices(array.indptr, "indptr"), as_indices(array.indices, "indices")
    return from_parts(CSR if by_rows else CSC, pos, crd, as_values(array.data), as_shape(array.shape))


def to_pydata(A: SparseTensor) -> Any:
    """A ``sparse.GCXS`` of a CSR or CSC matrix, which shares its arrays, or a ``sparse.COO`` of a COO tensor, which shares values.

    Gradients are cut.

    Raises:
        UnsupportedError: the library has no layout for the format, or numpy none for the data type.
    """
    import sparse

    values = numpy_values(A, "pydata/sparse")
    if A.format in (CSR, CSC):
        pos, crd = A.pattern.level_arrays(1)
        return sparse.GCXS((values, crd, pos), shape=A.pattern.shape, compressed_axes=(0,) if A.format == CSR else (1,))
    if not A.ndim or A.format != COO(A.ndim):
        raise no_layout(A, "pydata/sparse")
    return sparse.COO(coordinates(A.pattern).numpy(), values, shape=A.pattern.shape, has_duplicates=False, sorted=True)


METHODS.update(to_pydata=to_pydata)
