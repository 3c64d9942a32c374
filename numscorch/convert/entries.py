"""A tensor's entries one by one: their values, others' values at their coordinates, and the values at any coordinates.

All take O(nnz) memory, and gradients flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..errors import SizeError
from ..ir.level import INT64_MAX
from ..tensors.packing import at_positions, coordinates, of_entries, positions_of
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .dense import to_dense


def values_of(A: SparseTensor) -> torch.Tensor:
    """The entries' values, in the order of their coordinates; unlike ``values``, none at positions that hold no entry.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), "(i, j) -> (i: dense, j: bitmap)")
    >>> values_of(A), A.values
    (tensor([1., 2., 3.]), tensor([1., 2., 3., 0.]))
    """
    return of_entries(A.pattern, A.values)


def with_entries(A: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """The same pattern with other values, one for each entry."""
    return SparseTensor(A.pattern, at_positions(A.pattern, values))


def others_at(A: SparseTensor, other: Any) -> torch.Tensor:
    """What another tensor, or a number's, has at the entries of this one, to whose shape it broadcasts; 0 where it stores nothing.

    >>> import numscorch as ns
    >>> others_at(ns.from_torch(torch.eye(2)), torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """
    if not isinstance(other, torch.Tensor | SparseTensor):
        return torch.as_tensor(other)
    if isinstance(other, SparseTensor) and other.pattern is A.pattern:
        return values_of(other)
    coords = coordinates(A.pattern)[A.ndim - other.ndim :]
    indices = [row if size != 1 else torch.zeros_like(row) for row, size in zip(coords, other.shape, strict=True)]
    return looked_up(other, indices) if isinstance(other, SparseTensor) else other[tuple(indices)] if indices else other


def strided(result: Any) -> torch.Tensor:
    """A result that torch's users have dense, which nobody asked to make so: the ledger doesn't list it."""
    return to_dense(result) if isinstance(result, SparseTensor) else result


def looked_up(A: SparseTensor, indices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values at any coordinates, 0 where nothing is stored; O(n log nnz) for n of them.

    Args:
        A: the tensor.
        indices: for each dimension the n coordinates along it, int64 of shape (n,), in range.

    Raises:
        SizeError: the tensor's places can't be numbered in int64.

    >>> import numscorch as ns
    >>> looked_up(ns.from_torch(torch.eye(2)), [torch.tensor([1, 0]), torch.tensor([1, 1])])
    tensor([1., 0.])
    """
    numbers, places = A.pattern.remember("numbered", lambda: _numbered(A.pattern))
    wanted = numbered(indices, A.shape)
    at = torch.searchsorted(numbers, wanted)
    matches = (at < len(numbers)).nonzero()[:, 0]
    matches = matches[numbers[at[matches]] == wanted[matches]]
    return A.values.new_zeros(len(wanted)).index_copy(0, matches, A.values.index_select(0, places[at[matches]]))


def _numbered(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the places of all entries in order, and the positions of their values."""
    numbers, order = torch.sort(numbered(list(coordinates(pattern)), pattern.shape))
    return numbers, torch.from_numpy(positions_of(pattern, order.numpy()))


def numbered(indices: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """The number of each place, counted row by row.

    Raises:
        SizeError: there are more than int64 counts.
    """
    if prod(shape) > INT64_MAX:
        raise SizeError(f"entries of shape {tuple(shape)} cannot be looked up: int64 cannot number that many places")
    numbers = torch.zeros((), dtype=torch.int64)
    for coords, size in zip(indices, shape, strict=True):
        numbers = numbers * size + coords
    return numbers
