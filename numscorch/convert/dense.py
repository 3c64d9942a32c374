"""Convert SparseTensors to dense tensors and to torch's sparse tensors."""

from __future__ import annotations

from math import prod

import torch

from ..errors import UnsupportedError
from ..frontend.copy_statements import copying
from ..ir.format import COO, CSC, CSR, sorted_format
from ..machine.memory import check_bytes
from ..runtime.plans import launch
from ..schedule import tuning
from ..tensors.arrays import check_values
from ..tensors.ledgers import densifying, note
from ..tensors.methods import METHODS
from ..tensors.modes import made_outside
from ..tensors.packing import coordinates, numbered, of_entries
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import has_torch_layout, layout_of, native_tensor, over_the_edge, quietly
from .conversions import can_copy, converted_so_far, to_format

__all__ = [
    "check_values",
    "coordinates",
    "densified",
    "has_torch_layout",
    "nearest",
    "to_dense",
    "to_format",
    "to_torch",
]


def to_dense(A: SparseTensor) -> torch.Tensor:
    """Convert to a dense tensor of the same shape; unstored entries are 0, and gradients flow to the values.

    A dense format returns a view. Other formats take O(size of the result); large tensors use a kernel.

    Raises:
        SizeError: the dense tensor exceeds the memory limit.
    """
    order = A.format.mode_order
    if A.format.is_dense:
        stored = A.values.reshape([A.pattern.shape[d] for d in order])
        return stored.permute([order.index(d) for d in range(A.ndim)])
    check_bytes(prod(A.pattern.shape) * A.dtype.itemsize, f"the dense tensor of shape {A.pattern.shape}", A.format, "keep it sparse")
    if can_copy(A.values) and converted_so_far(A.format, None, A.pattern.nnz) >= tuning.COMPILE_ENTRIES:
        return launch(copying(A.format, None), (A,), "dense")
    place = made_outside(lambda: numbered(list(coordinates(A.pattern)), A.pattern.shape))
    return A.values.new_zeros(prod(A.pattern.shape)).index_copy_(0, place, of_entries(A.pattern, A.values)).reshape(A.pattern.shape)


def dense_as_asked(A: SparseTensor) -> torch.Tensor:
    """Implement ``A.to_dense()``: add the densification to the ledgers, unless the result is a view."""
    if not A.format.is_dense:
        note("densification", f"{A.format.name} {A.pattern.shape}", prod(A.pattern.shape) * A.dtype.itemsize)
    return to_dense(A)


def densified(A: SparseTensor | torch.Tensor, operator: str, instead: str = "A.to_dense() requests it") -> torch.Tensor:
    """Convert a SparseTensor or a torch sparse tensor to dense for an operator without a sparse implementation.

    Adds it to the ledgers, and warns; see :func:`~numscorch.tensors.ledgers.densifying`.

    Raises:
        UnsupportedError: in strict mode.
    """
    if isinstance(A, torch.Tensor):
        densifying(operator, f"{A.layout} {tuple(A.shape)}", A.numel() * A.dtype.itemsize, instead)
        return A.to_dense()
    if not A.format.is_dense:
        densifying(operator, f"{A.format.name} {A.pattern.shape}", prod(A.pattern.shape) * A.dtype.itemsize, instead)
    return to_dense(A)


def to_torch(A: SparseTensor, copy: bool = True) -> torch.Tensor:
    """Convert to a torch CSR, CSC, BSR, BSC or COO tensor, batched or hybrid like the format; gradients flow to the values.

    Formats that torch lacks are converted first, to CSR, CSC or COO; unordered rows are sorted.

    Args:
        A: the tensor.
        copy: False shares values and index arrays, except the row starts of batches and COO indices that did not come from torch;
            both are built once, in O(nnz), and cached with the pattern.

    Raises:
        SizeError: the number of entries exceeds int64.
        UnsupportedError: the tensor has no dimensions, or the matrices of a batch store different numbers of values.
    """
    layout = A.pattern.remember("torch layout in order", lambda: layout_of(sorted_format(A.format)))
    if layout is None or over_the_edge(A.pattern, layout):
        return to_torch(nearest(A, "torch"), copy)
    A = A if A.format.is_ordered else to_format(A, sorted_format(A.format))
    native = native_tensor(A.pattern, A.values, layout)
    return quietly(native.clone) if copy else native


def nearest(A: SparseTensor, library: str) -> SparseTensor:
    """Convert to the closest format that every library has: CSR or CSC for matrices, else COO.

    Raises:
        UnsupportedError: the tensor has no dimensions.
    """
    if not A.ndim:
        raise UnsupportedError(f"{library} has no sparse layout for a tensor without dimensions: use .to_dense()")
    return to_format(A, COO(A.ndim) if A.ndim != 2 else CSC if A.format.is_plain and not A.format.is_row_major else CSR)


METHODS.update(to_dense=dense_as_asked, to_torch=to_torch, to_format=to_format)
