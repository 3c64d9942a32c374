"""Values by entry: of a tensor's entries, of another tensor at these entries, and at arbitrary coordinates.

All functions take O(nnz) memory, and gradients flow through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..tensors.modes import as_numpy
from ..tensors.packing import at_positions, coordinates, numbered, of_entries, positions_of
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .construct import from_torch
from .conversions import converted
from .dense import to_dense


def values_of(A: SparseTensor) -> torch.Tensor:
    """The values of the entries, in the order of ``coordinates``; excludes positions without an entry, unlike ``values``.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), "(i, j) -> (i: dense, j: bitmap)")
    >>> values_of(A), A.values
    (tensor([1., 2., 3.]), tensor([1., 2., 3., 0.]))
    """
    return of_entries(A.pattern, A.values)


def with_entries(A: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """A tensor with the same pattern and new values, one for each entry."""
    return SparseTensor(A.pattern, at_positions(A.pattern, values))


def others_at(A: SparseTensor, other: Any) -> torch.Tensor:
    """The values of another tensor or number, broadcast to this tensor's shape, at its entries; 0 for unstored values.

    >>> import numscorch as ns
    >>> others_at(ns.from_torch(torch.eye(2)), torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """
    if not isinstance(other, torch.Tensor | SparseTensor):
        return torch.as_tensor(other)
    if isinstance(other, torch.Tensor) and other.layout is not torch.strided:
        other = from_torch(other, copy=False)
    if isinstance(other, SparseTensor) and other.pattern is A.pattern:
        return values_of(other)
    coords = coordinates(A.pattern)[A.ndim - other.ndim :]
    indices = [row if size != 1 else torch.zeros_like(row) for row, size in zip(coords, other.shape, strict=True)]
    return looked_up(other, indices) if isinstance(other, SparseTensor) else other[tuple(indices)] if indices else other


def strided(result: Any) -> torch.Tensor:
    """Convert a result that torch returns dense, without a ledger entry."""
    return to_dense(result) if isinstance(result, SparseTensor) else result


def looked_up(A: SparseTensor, indices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values at arbitrary coordinates, 0 for unstored entries; O(n log nnz) for n coordinates.

    Args:
        A: the tensor.
        indices: for each dimension, the coordinates: int64, shape (n,), in range.

    Raises:
        SizeError: the number of entries of the shape exceeds int64.

    >>> import numscorch as ns
    >>> looked_up(ns.from_torch(torch.eye(2)), [torch.tensor([1, 0]), torch.tensor([1, 1])])
    tensor([1., 0.])
    """
    matches, positions = matches_in(A.pattern, indices)
    return A.values.new_zeros(len(indices[0])).index_copy(0, matches, A.values.index_select(0, positions))


def as_stored(gradient: SparseTensor | torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The values of a gradient in a pattern's storage order; the gradient may be dense, in another format, or lack zeros."""
    if isinstance(gradient, torch.Tensor):  # the pattern stores all entries
        return at_positions(pattern, gradient[tuple(coordinates(pattern))])
    if gradient.pattern is pattern:
        return gradient._values
    conversion, values = converted(pattern, gradient.format), gradient._values
    if conversion.pattern.nnz != gradient.pattern.nnz:  # an intersection with an operand that stores less
        return at_positions(pattern, looked_up(gradient, list(coordinates(pattern))))
    if conversion.order is None:
        return values
    values = values if conversion.slots is None else values.index_select(0, conversion.slots)
    return values.new_zeros(pattern.nnz).index_copy(0, conversion.order.long(), values)  # index_copy requires int64


def matches_in(pattern: Pattern, indices: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of these coordinates are stored entries of a pattern, and the positions of their values; O(n log nnz)."""
    numbers, places = pattern.remember("numbered", lambda: _numbered(pattern))
    wanted = numbered(indices, pattern.shape)
    at = torch.searchsorted(numbers, wanted)
    matches = (at < len(numbers)).nonzero()[:, 0]
    matches = matches[numbers[at[matches]] == wanted[matches]]
    return matches, places[at[matches]]


def _numbered(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """The sorted row-major indices of all entries, and the positions of their values."""
    numbers, order = torch.sort(numbered(list(coordinates(pattern)), pattern.shape))
    return numbers, torch.from_numpy(positions_of(pattern, as_numpy(order)))
