"""sparsify: what a sparsifier leaves of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from ..convert.construct import from_coo
from ..convert.dense import densified
from ..convert.entries import others_at, values_of, with_entries
from ..convert.nmg import grouped
from ..errors import FormatError, OperandError, SizeError, UnsupportedError
from ..ir.format import COO, CSR, Format, as_format
from ..programs.tracing import Traced, traced_call
from ..tensors.packing import coordinates
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor, beside_programs
from .entrywise import random, threshold
from .kept import masked, outside
from .kinds import Kind, kind_of
from .magnitude import magnitude
from .names import described, named
from .patterned import same_pattern

Sparsifier = Callable[[torch.Tensor], torch.Tensor]
RESULTS = ("dense", "infer", "auto")  # what einsum takes for a format besides formats


@beside_programs
def sparsify(tensor: torch.Tensor | SparseTensor, sparsifier: Sparsifier | str, format: Format | str | None = None) -> SparseTensor:
    """The entries of a tensor that a sparsifier keeps, zeros among them; gradients flow to the tensor.

    What is kept of a dense tensor is read in one pass, and of ``threshold`` there is no mask. Of a sparse tensor, entries are
    kept among those that it stores: a share is one of all entries, and those that aren't stored go first. That takes O(nnz)
    by ``magnitude`` and streaming sparsifiers, and O(nnz log nnz) by ``same_pattern``; others that look at values are shown a
    dense tensor, which the ledger lists.

    Args:
        tensor: a dense tensor, or a SparseTensor.
        sparsifier: a callable, which is given the tensor and returns a bool mask of its shape, True where an entry is kept;
            or the name of one that was registered.
        format: how the result is stored; by default in the sparsifier's ``format`` if it has one, else CSR, or COO(n) where
            there are other than two dimensions. A sparse tensor stays in its own rather than in CSR. Formats with blocks store
            whole blocks, 0 where the mask keeps nothing.

    Raises:
        OperandError: the tensor is neither dense nor a SparseTensor, or the sparsifier can't be called, or returns no mask.
        SizeError: the mask has another shape.
        FormatError: the format can't store what is kept.
        UnsupportedError: the tensor isn't on the CPU.

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
        return cast("SparseTensor", traced_call("sparsify", tensor, sparsifier, format))  # a stand-in for one, within ns.fuse
    tensor = unwrapped(tensor)
    _check_tensor(tensor)
    sparsifier = named(sparsifier)
    if isinstance(format, str) and format in RESULTS:
        way = "what is kept is stored in a sparse format, as ns.CSR; tensor * sparsifier(tensor) is dense"
        raise FormatError(f"sparsify in {format!r}: {way}")
    wanted = None if format is None else as_format(format)
    if isinstance(tensor, SparseTensor):
        return _of_sparse(tensor, sparsifier, wanted)
    return _of_dense(tensor, sparsifier, wanted or _format(sparsifier, tensor.ndim) or (CSR if tensor.ndim == 2 else COO(tensor.ndim)))


def _check_tensor(tensor: Any) -> None:
    """That it is what :func:`sparsify` takes."""
    if isinstance(tensor, SparseTensor):
        return
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        given = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        way = "convert it with ns.from_torch()"
        if isinstance(tensor, torch.nn.Module):
            way = "of a model, sparsify_model makes weights sparse"
        elif callable(tensor) and not isinstance(tensor, torch.Tensor):
            way = "the tensor comes first, as in sparsify(tensor, magnitude(0.9))"
        raise OperandError(f"sparsify takes a dense tensor or a SparseTensor, not {given}: {way}")
    if tensor.is_meta:
        raise UnsupportedError("sparsify of a meta tensor, which has no values: give it some first, as by to_empty(device='cpu')")


def _of_dense(tensor: torch.Tensor, sparsifier: Any, format: Format) -> SparseTensor:
    """What is kept, without a mask where that is known without one."""
    if isinstance(sparsifier, threshold) and (result := outside(tensor, sparsifier, format)) is not None:
        return result
    ref = sparsifier.ref if isinstance(sparsifier, same_pattern) else None
    if isinstance(ref, SparseTensor) and ref.format == format and ref.shape == tensor.shape:
        return with_entries(ref, others_at(ref, tensor))
    mask = mask_of(tensor.detach(), sparsifier)
    result = grouped(tensor, mask, format) if format.order == tensor.ndim else None
    return masked(tensor, mask, format) if result is None else result


def _of_sparse(A: SparseTensor, sparsifier: Any, format: Format | None) -> SparseTensor:
    """What is kept among stored entries."""
    format_ = _format(sparsifier, A.ndim)
    kept = kept_of(A, sparsifier, lambda A: densified(A, f"sparsify with {type(sparsifier).__name__}"))
    target = format or (A.format if format_ in (None, CSR) else format_)
    return from_coo(coordinates(A.pattern)[:, kept], values_of(A)[kept], A.shape, target)


def kept_of(A: SparseTensor, sparsifier: Any, dense_of: Callable[[SparseTensor], torch.Tensor]) -> torch.Tensor:
    """Which of a sparse tensor's stored entries are kept, (nnz,); ``dense_of`` makes it dense for sparsifiers that need that."""
    values, places = values_of(A).detach(), coordinates(A.pattern)
    if isinstance(sparsifier, magnitude):
        return sparsifier.of_stored(values, A.numel(), places)
    if kind_of(sparsifier) == Kind.STREAMING:
        return mask_of(values[None], sparsifier)[0]  # matrices are what all of them take
    if isinstance(sparsifier, same_pattern):
        return sparsifier.holds(places, A.shape)
    if isinstance(sparsifier, random):
        return sparsifier.mask_for(A.shape)[tuple(places)]
    return mask_of(dense_of(A).detach(), sparsifier)[tuple(places)]


def mask_of(tensor: torch.Tensor, sparsifier: Any) -> torch.Tensor:
    """What a sparsifier answers, which has to be a mask of the tensor.

    Raises:
        OperandError: the sparsifier can't be called, or returns no mask.
        SizeError: the mask has another shape.
    """
    if not callable(sparsifier):
        raise OperandError(
            f"{described(sparsifier)} is not a sparsifier: give a callable that makes a mask of a tensor, "
            "as magnitude(0.9), or lambda t: t > 0"
        )
    mask = sparsifier(tensor)
    if callable(mask) and not isinstance(mask, torch.Tensor):
        raise OperandError(f"{named_in_errors(sparsifier)} returned {mask!r}, which makes masks: give this one as the sparsifier")
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        given = f"a tensor of {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise OperandError(
            f"{named_in_errors(sparsifier)} returned {given}: a mask is a bool tensor, True where an entry is kept, as made by mask != 0"
        )
    if mask.shape != tensor.shape:
        raise SizeError(
            f"{named_in_errors(sparsifier)} returned a mask of shape {tuple(mask.shape)} for a tensor of shape {tuple(tensor.shape)}"
        )
    return mask


def named_in_errors(sparsifier: Any) -> str:
    """How errors call a sparsifier."""
    return getattr(sparsifier, "__name__", None) or repr(sparsifier)


def _format(sparsifier: Any, order: int) -> Format | None:
    """The format a sparsifier asks for, where it stores tensors with so many dimensions; None stands for the usual one."""
    wanted = getattr(sparsifier, "format", None)
    return wanted if isinstance(wanted, Format) and wanted.order == order else None
