"""sparsify: what a mask leaves of a dense tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..construct import from_torch
from ..errors import OperandError, SizeError
from ..ir.format import Format, as_format
from ..operators.entries import others_at, with_entries
from ..sparse_tensor import SparseTensor, beside_programs

Sparsifier = Callable[[torch.Tensor], torch.Tensor]


@beside_programs
def sparsify(tensor: torch.Tensor, sparsifier: Sparsifier, format: Format | str | None = None) -> SparseTensor:
    """The entries of a dense tensor that a sparsifier keeps, zeros among them; gradients flow to the tensor.

    Args:
        tensor: a dense tensor.
        sparsifier: a callable, which is given the tensor and returns a bool mask of its shape, True where an entry is kept.
        format: how the result is stored; by default in the sparsifier's ``format`` if it has one, else CSR, or COO(n) where
            there are other than two dimensions. Formats with blocks store whole blocks, 0 where the mask keeps nothing.

    Raises:
        OperandError: the tensor isn't a dense one, or the sparsifier can't be called, or returns no mask.
        SizeError: the mask has another shape.

    >>> from numscorch.sparsify import magnitude
    >>> A = sparsify(torch.tensor([[1.0, -4.0], [3.0, 2.0]]), magnitude(0.5))
    >>> A, A.values
    (SparseTensor(CSR, shape=(2, 2), nnz=2, density=0.5, float32, int32 indices), tensor([-4.,  3.]))
    >>> sparsify(torch.arange(3.0), lambda t: t < 2).values
    tensor([0., 1.])
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        given = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise OperandError(f"sparsify takes a dense tensor, not {given}: convert it with .to_dense()")
    mask = mask_of(tensor.detach(), sparsifier)
    stored = from_torch(mask, _format(sparsifier, tensor.ndim) if format is None else as_format(format))
    return with_entries(stored, others_at(stored, torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype))))


def mask_of(tensor: torch.Tensor, sparsifier: Any) -> torch.Tensor:
    """What the sparsifier answers, which has to be a mask of the tensor."""
    if not callable(sparsifier):
        raise OperandError(
            f"{sparsifier!r} is no sparsifier: give a callable that makes a mask of a tensor, as magnitude(0.9), or lambda t: t > 0"
        )
    mask = sparsifier(tensor)
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        given = f"a tensor of {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise OperandError(
            f"{_named(sparsifier)} returned {given}: a mask is a bool tensor, True where an entry is kept, as made by mask != 0"
        )
    if mask.shape != tensor.shape:
        raise SizeError(f"{_named(sparsifier)} returned a mask of shape {tuple(mask.shape)} for a tensor of shape {tuple(tensor.shape)}")
    return mask


def _named(sparsifier: Any) -> str:
    """How errors call a sparsifier."""
    return getattr(sparsifier, "__name__", None) or repr(sparsifier)


def _format(sparsifier: Any, order: int) -> Format | None:
    """The format a sparsifier asks for, where it stores tensors with so many dimensions; None stands for the usual one."""
    wanted = getattr(sparsifier, "format", None)
    return wanted if isinstance(wanted, Format) and wanted.order == order else None
