"""Store the kept entries of a dense tensor, in one pass of the conversion kernels where possible."""

from __future__ import annotations

import torch

from ..convert.construct import assemble, from_torch, noted
from ..convert.conversions import can_copy, chosen_of, is_differentiated
from ..convert.entries import others_at, with_entries
from ..ir.format import Format
from ..ir.padded import Bitmap, Outside
from ..tensors.arrays import check_values
from ..tensors.packing import check_order
from ..tensors.sparse_tensor import SparseTensor
from .entrywise import threshold
from .magnitude import magnitudes

NARROW = (torch.float16, torch.bfloat16)  # data types that kernels copy but do not compute in


def masked(tensor: torch.Tensor, mask: torch.Tensor, format: Format) -> SparseTensor:
    """Store the entries where a mask is True, explicit zeros included; gradients flow to the tensor.

    One pass over the tensor, plus O(nnz) if the tensor requires grad.

    >>> from numscorch.ir.format import CSR
    >>> masked(torch.tensor([[1.0, 0.0]]), torch.tensor([[False, True]]), CSR).values
    tensor([0.])
    """
    values = check_values(tensor)
    check_order(format, tuple(tensor.shape))
    if format.is_dense:
        return from_torch(torch.where(mask, values, torch.zeros((), dtype=tensor.dtype)), format)
    stored = _store_masked(values.detach(), mask, format)
    if not is_differentiated(tensor):
        return stored
    return with_entries(stored, others_at(stored, torch.where(mask, values, torch.zeros((), dtype=tensor.dtype))))


def _store_masked(values: torch.Tensor, mask: torch.Tensor, format: Format) -> SparseTensor:
    """Store the masked entries without gradients."""
    copied = values.view(torch.int16) if values.dtype in NARROW else values.view(torch.int8) if values.dtype == torch.bool else values
    tensor_ = chosen_of(copied, format, Bitmap(), mask.contiguous().view(torch.uint8).reshape(-1)) if can_copy(copied) else None
    if tensor_ is not None:
        return noted(SparseTensor.trusted(tensor_.pattern, tensor_.values.view(values.dtype)), "a strided tensor")
    entries = mask.nonzero().T
    return noted(assemble(entries.numpy(), values[tuple(entries)], tuple(values.shape), format), "a strided tensor")


def outside(tensor: torch.Tensor, chosen: threshold, format: Format) -> SparseTensor | None:
    """Return the entries that a threshold keeps, without making a mask; None if a mask is needed.

    Raises:
        OperandError: the tensor holds NaN.
    """
    if not tensor.is_floating_point() or not can_copy(tensor) or format.order != tensor.ndim:
        return None
    bound = torch.tensor([chosen.bound(tensor.dtype)], dtype=torch.float64)
    tensor_ = chosen_of(tensor, format, Outside(), -bound, bound)
    if tensor_ is None:
        return None
    if bool(tensor_.values.isnan().any()):
        magnitudes(chosen, tensor)  # raises with the position of the NaN
    return noted(tensor_, "a strided tensor")
