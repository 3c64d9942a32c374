"""From a SparseTensor to dense and torch tensors, and to other formats."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from ..errors import UnsupportedError
from ..ir.format import sorted_format
from ..machine.memory import check_bytes
from ..tensors.arrays import check_values
from ..tensors.ledgers import densifying, note
from ..tensors.methods import METHODS
from ..tensors.packing import coordinates, of_entries
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import has_torch_layout, layout_of, native_tensor
from .conversions import dense_of, to_format

__all__ = [
    "check_values",
    "coordinates",
    "densified",
    "has_torch_layout",
    "no_layout",
    "numpy_values",
    "to_dense",
    "to_format",
    "to_torch",
]


def to_dense(A: SparseTensor) -> torch.Tensor:
    """A dense tensor of the same shape; unstored entries are 0, and gradients flow to the values.

    A dense format is only viewed; anything else costs O(size of the result), and is done by a kernel where it is much.

    Raises:
        SizeError: the dense tensor is larger than the memory limit.
    """
    order = A.format.mode_order
    if A.format.is_dense:
        stored = A.values.reshape([A.pattern.shape[d] for d in order])
        return stored.permute([order.index(d) for d in range(A.ndim)])
    check_bytes(prod(A.pattern.shape) * A.dtype.itemsize, f"the dense tensor of shape {A.pattern.shape}", A.format, "keep it sparse")
    if (full := dense_of(A)) is not None:
        return full
    indices = coordinates(A.pattern)
    place, stride = torch.zeros(indices.shape[1], dtype=torch.int64), 1
    for d in reversed(range(A.ndim)):
        place, stride = place.add_(indices[d], alpha=stride), stride * A.pattern.shape[d]
    return A.values.new_zeros(stride).index_copy_(0, place, of_entries(A.pattern, A.values)).reshape(A.pattern.shape)


def dense_as_asked(A: SparseTensor) -> torch.Tensor:
    """What ``A.to_dense()`` returns; in the ledger, where it isn't a view."""
    if not A.format.is_dense:
        note("densification", f"{A.format.name} {A.pattern.shape}", prod(A.pattern.shape) * A.dtype.itemsize)
    return to_dense(A)


def densified(A: SparseTensor | torch.Tensor, operator: str, instead: str = "A.to_dense() asks for it") -> torch.Tensor:
    """The dense tensor, of a tensor in torch's layout too, for an operator that wasn't asked to make one; see :mod:`ledgers`.

    Raises:
        UnsupportedError: in strict mode.
    """
    if isinstance(A, torch.Tensor):
        densifying(operator, f"{A.layout} {tuple(A.shape)}", A.numel() * A.dtype.itemsize, instead)
        return A.to_dense()
    if not A.format.is_dense:
        densifying(operator, f"{A.format.name} {A.pattern.shape}", prod(A.pattern.shape) * A.dtype.itemsize, instead)
    return to_dense(A)


def to_torch(A: SparseTensor) -> torch.Tensor:
    """A torch CSR, CSC, BSR, BSC or COO tensor, batched or hybrid where the format is; gradients flow to the values.

    Values are shared, and so are index arrays, but for the starts of batches, and for the indices of COO
    where they didn't come from torch: these are gathered once, O(nnz), and remembered with the pattern.
    Rows without an order are sorted first, as torch wants them.

    Raises:
        SizeError: torch can't count the entries of this shape.
        UnsupportedError: torch has no layout for the format, or it wants whole blocks, or equally many values in
            each matrix of a batch.
    """
    layout = A.pattern.remember("torch layout", lambda: layout_of(sorted_format(A.format)))
    if layout is None:
        raise no_layout(A, "torch")
    A = A if A.format.is_ordered else to_format(A, sorted_format(A.format))
    return native_tensor(A.pattern, A.values, layout)


def numpy_values(A: SparseTensor, library: str) -> np.ndarray:
    """The values as a numpy array of the same memory; gradients are cut.

    Raises:
        UnsupportedError: numpy has no such data type.
    """
    if A.dtype is torch.bfloat16:
        raise UnsupportedError(f"{library} holds numpy arrays, which have no bfloat16: use .to(torch.float32) first")
    array: np.ndarray = A.values.detach().numpy()
    return array


def no_layout(A: SparseTensor, library: str) -> UnsupportedError:
    """The error of a format that a library can't store."""
    way_out = ".to(ns.CSR)" if A.ndim == 2 else f".to(ns.COO({A.ndim}))"
    way_out = ".to_dense()" if A.format.is_dense else f"{way_out} first"
    return UnsupportedError(f"{library} has no layout for the format {A.format.name}, {A.format}: use {way_out}")


METHODS.update(to_dense=dense_as_asked, to_torch=to_torch, to_format=to_format)
