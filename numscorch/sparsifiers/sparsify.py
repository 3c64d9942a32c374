"""sparsify: store the entries of a tensor that a sparsifier keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from ..convert.construct import assemble, from_coo, from_torch, noted
from ..convert.conversions import chosen_of, is_differentiated
from ..convert.matrices import grouped
from ..convert.values import densified, others_at, values_of, with_entries
from ..errors import FormatError, OperandError, SizeError, UnsupportedError
from ..frontend.datatypes import STORED
from ..ir.format import COO, CSR, Format, as_format
from ..ir.padded import Bitmap, Outside
from ..programs.tracing import Traced, traced_call
from ..tensors.arrays import check_values
from ..tensors.graph_breaks import graph_break
from ..tensors.modes import as_numpy, check_not_traced, in_transform, made_outside, unlifted
from ..tensors.packing import check_order, coordinates
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .base import Kind, kind_of, named
from .entrywise import random, same_pattern, threshold
from .magnitude import magnitude, magnitudes

Sparsifier = Callable[[torch.Tensor], torch.Tensor]
"""A callable that takes a tensor and returns a bool mask of its shape, True where an entry is kept."""
RESULTS = ("dense", "infer", "auto")  # values of einsum's format= that are not formats


@graph_break
def sparsify(tensor: torch.Tensor | SparseTensor, sparsifier: Sparsifier | str, format: Format | str | None = None) -> SparseTensor:
    """Store the entries of a tensor that a sparsifier keeps, explicit zeros included; gradients flow to the tensor.

    Only stored entries of a sparse tensor can be kept. A fraction refers to all entries, and unstored entries are dropped first.

    Args:
        tensor: a dense tensor, a SparseTensor, or a sparse parameter.
        sparsifier: a callable that takes the tensor and returns a bool mask of its shape, True where an entry is kept; or the name of a
            registered sparsifier.
        format: the format of the result. By default, the sparsifier's ``format`` if it has one, else CSR for matrices and COO(n) for
            other tensors. A sparse tensor keeps its own format if the default is CSR. Formats with blocks store whole blocks, with 0
            where the mask is False.

    Returns:
        The kept entries.

    Raises:
        OperandError: the tensor is neither dense nor a SparseTensor, or the sparsifier is not callable or returns no mask. Most
            sparsifiers also raise it for NaN.
        SizeError: the mask has another shape.
        FormatError: the format is unknown, or cannot store the kept entries.
        UnsupportedError: the tensor is not on the CPU.

    Complexity:
        One pass over a dense tensor; ``threshold`` makes no mask. For a sparse tensor, ``magnitude`` and streaming sparsifiers take O(nnz),
        and ``same_pattern`` O(nnz log nnz). Other sparsifiers that read values get a dense copy; the ledger records it.

    >>> from numscorch.sparsify import magnitude, threshold
    >>> A = sparsify(torch.tensor([[1.0, -4.0], [3.0, 2.0]]), magnitude(0.5))
    >>> A, A.values
    (SparseTensor(CSR, shape=(2, 2), nnz=2, density=0.5, float32, int32 indices), tensor([-4.,  3.]))
    >>> sparsify(A, threshold(3.0)).values
    tensor([-4.])
    >>> sparsify(torch.arange(3.0), lambda t: t < 2).values
    tensor([0., 1.])
    """
    if isinstance(tensor, Traced):
        return cast("SparseTensor", traced_call("sparsify", tensor, sparsifier, format))  # tensor is a proxy within ns.fuse
    tensor = unwrapped(tensor)
    check_not_traced()
    if not isinstance(tensor, SparseTensor):
        _check_dense(tensor)
    sparsifier = named(sparsifier)
    if isinstance(format, str) and format in RESULTS:
        raise FormatError(
            f"sparsify in {format!r}: give a sparse format, such as ns.CSR; for a dense result, use tensor * sparsifier(tensor)"
        )
    wanted = None if format is None else as_format(format)
    if isinstance(tensor, SparseTensor):
        return _sparsify_stored(tensor, sparsifier, wanted)
    return _sparsify_dense(tensor, sparsifier, wanted or usual_format(sparsifier, tensor.ndim))


def _check_dense(tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        description = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        suggestion = "convert it with ns.from_torch()"
        if isinstance(tensor, torch.nn.Module):
            suggestion = "use sparsify_model to make a model's weights sparse"
        elif callable(tensor) and not isinstance(tensor, torch.Tensor):
            suggestion = "the tensor comes first, as in sparsify(tensor, magnitude(0.9))"
        raise OperandError(f"sparsify takes a dense tensor or a SparseTensor, not {description}: {suggestion}")
    if tensor.is_meta:
        raise UnsupportedError("sparsify of a meta tensor, which has no values: give it values first, as with to_empty(device='cpu')")


def _sparsify_dense(tensor: torch.Tensor, sparsifier: Any, format: Format) -> SparseTensor:
    """Sparsify a dense tensor, without a mask if the sparsifier needs none.

    Raises:
        UnsupportedError: ``vmap`` batches the tensor, so that it has no single pattern.
    """
    if in_transform():
        plain = unlifted(tensor).detach()
        stored = made_outside(lambda: _sparsify_dense(plain, sparsifier, format))
        return with_entries(stored, others_at(stored, tensor))
    if isinstance(sparsifier, threshold) and (result := outside(tensor, sparsifier, format)) is not None:
        return result
    ref = sparsifier.ref if isinstance(sparsifier, same_pattern) else None
    if isinstance(ref, SparseTensor) and ref.format == format and ref.shape == tensor.shape:
        return with_entries(ref, others_at(ref, tensor))
    mask = mask_of(tensor.detach(), sparsifier)
    result = grouped(tensor, mask, format) if format.order == tensor.ndim else None
    return masked(tensor, mask, format) if result is None else result


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
    copied = values.detach().view(getattr(torch, STORED[values.dtype].copied))
    kept = chosen_of(copied, format, Bitmap(), mask.contiguous().view(torch.uint8).reshape(-1))
    if kept is None:
        entries = mask.nonzero().T
        stored = assemble(as_numpy(entries), values.detach()[tuple(entries)], tuple(values.shape), format)
    else:
        stored = SparseTensor.trusted(kept.pattern, kept.values.view(values.dtype))
    noted(stored, "a strided tensor")
    if not is_differentiated(tensor):
        return stored
    return with_entries(stored, others_at(stored, torch.where(mask, values, torch.zeros((), dtype=tensor.dtype))))


def outside(tensor: torch.Tensor, chosen: threshold, format: Format) -> SparseTensor | None:
    """Return the entries that a threshold keeps, without making a mask; None if a mask is needed.

    Raises:
        OperandError: the tensor holds NaN.
    """
    if not tensor.is_floating_point() or format.order != tensor.ndim:
        return None
    bound = torch.tensor([chosen.bound(tensor.dtype)], dtype=torch.float64)
    tensor_ = chosen_of(tensor, format, Outside(), -bound, bound)
    if tensor_ is None:
        return None
    if bool(tensor_.values.isnan().any()):
        magnitudes(chosen, tensor)  # raises with the position of the NaN
    return noted(tensor_, "a strided tensor")


def _sparsify_stored(A: SparseTensor, sparsifier: Any, format: Format | None) -> SparseTensor:
    """Sparsify a sparse tensor: keep some of its stored entries."""
    plain = SparseTensor.trusted(A.pattern, unlifted(A._values))
    kept = made_outside(lambda: kept_of(plain, sparsifier, lambda A: densified(A, f"sparsify with {type(sparsifier).__name__}")))
    wanted = format or _format(sparsifier, A.ndim) or CSR
    target = A.format if format is None and wanted == CSR else wanted
    return from_coo(coordinates(A.pattern)[:, kept], values_of(A)[kept], A.shape, target)


def kept_of(A: SparseTensor, sparsifier: Any, dense_of: Callable[[SparseTensor], torch.Tensor]) -> torch.Tensor:
    """Return the bool mask (nnz,) of the stored entries of a sparse tensor that a sparsifier keeps.

    ``dense_of`` makes the tensor dense for sparsifiers that need all values.
    """
    values, places = values_of(A).detach(), coordinates(A.pattern)
    if isinstance(sparsifier, magnitude):
        return sparsifier.of_stored(values, A.numel(), places)
    if kind_of(sparsifier) == Kind.STREAMING:
        return mask_of(values[None], sparsifier)[0]  # as a matrix, which every sparsifier accepts
    if isinstance(sparsifier, same_pattern):
        return sparsifier.holds(places, A.shape)
    if isinstance(sparsifier, random):
        return sparsifier.mask_for(A.shape)[tuple(places)]
    return mask_of(dense_of(A).detach(), sparsifier)[tuple(places)]


def mask_of(tensor: torch.Tensor, sparsifier: Any) -> torch.Tensor:
    """Call a sparsifier, and check that it returns a mask of the tensor.

    Raises:
        OperandError: the sparsifier returns no mask.
        SizeError: the mask has another shape.
    """
    mask = sparsifier(tensor)
    if callable(mask) and not isinstance(mask, torch.Tensor):
        raise OperandError(f"{named_in_errors(sparsifier)} returned {mask!r}, which is not a mask: give it as the sparsifier")
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        description = f"a tensor of {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise OperandError(
            f"{named_in_errors(sparsifier)} returned {description}: a mask is a bool tensor, True where an entry is kept, as in mask != 0"
        )
    if mask.shape != tensor.shape:
        raise SizeError(
            f"{named_in_errors(sparsifier)} returned a mask of shape {tuple(mask.shape)} for a tensor of shape {tuple(tensor.shape)}"
        )
    return mask


def named_in_errors(sparsifier: Any) -> str:
    """Return a sparsifier's name for error texts."""
    return getattr(sparsifier, "__name__", None) or repr(sparsifier)


def usual_format(sparsifier: Any, order: int) -> Format:
    """Return the format in which ``sparsify`` stores the kept entries of a dense tensor by default."""
    return _format(sparsifier, order) or (CSR if order == 2 else COO(order))


def _format(sparsifier: Any, order: int) -> Format | None:
    """Return the format that a sparsifier requests, if it fits the number of dimensions; None stands for the default."""
    wanted = getattr(sparsifier, "format", None)
    return wanted if isinstance(wanted, Format) and wanted.order == order else None
