"""Searches for entries, reductions that skip NaN, and dense tensors indexed by sparse masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..convert.dense import densified
from ..convert.entries import strided, values_of
from ..errors import OperandError, RangeError
from ..tensors.modes import as_numpy
from ..tensors.packing import at_entries, coordinates, sorting
from ..tensors.sparse_tensor import SparseTensor
from .gathering import MASKS
from .reducing import Dim, amax, amin, sum as total


def argwhere(input: SparseTensor) -> torch.Tensor:
    """The coordinates of nonzero entries, one row for each, in row-major order; int64 of shape (n, ndim).

    >>> import numscorch as ns
    >>> argwhere(ns.from_torch(torch.eye(2)))
    tensor([[0, 0],
            [1, 1]])
    """
    indices = coordinates(input.pattern)[:, values_of(input).detach() != 0]
    columns = [as_numpy(row) for row in indices]
    return indices[:, torch.from_numpy(sorting(columns, input.shape, indices.shape[1])[0])].t().contiguous()


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Whether each entry is one of the test elements; sparse if unstored entries give False.

    >>> import numscorch as ns
    >>> isin(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]])), torch.tensor([2.0])).values
    tensor([ True, False])
    """
    tested = _elements(test_elements)
    if not isinstance(elements, SparseTensor):
        return torch.isin(elements, tested, assume_unique=assume_unique, invert=invert)
    if torch.isin(torch.zeros((), dtype=elements.dtype), tested, invert=invert):
        return torch.isin(densified(elements, "isin", "it is True at unstored entries"), tested, invert=invert)
    result = at_entries(elements.pattern, lambda values: torch.isin(values, tested, invert=invert), elements.values)
    return SparseTensor(elements.pattern, result)


def _elements(elements: Any) -> torch.Tensor:
    """The distinct elements of a tensor, possibly repeated; a sparse tensor's are its stored values and 0."""
    if not isinstance(elements, SparseTensor):
        return torch.as_tensor(elements)
    values = values_of(elements)
    return torch.cat([values, values.new_zeros(1)]) if len(values) < elements.numel() else values


def aminmax(input: SparseTensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """The smallest and largest entries, stored or not, of the tensor or along a dimension."""
    return torch.return_types.aminmax((amin(input, dim, keepdim), amax(input, dim, keepdim)))


def nansum(input: SparseTensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The sum of the entries that are not NaN."""
    numbers = at_entries(input.pattern, lambda values: torch.where(torch.isnan(values), 0, values), input._values)
    return total(SparseTensor(input.pattern, numbers), dim, keepdim, dtype=dtype)


def masked_getitem(input: torch.Tensor, key: Any) -> torch.Tensor:
    """``D[A > 0]`` for a dense tensor and a sparse mask: the entries where the mask is True, in row-major order.

    Raises:
        OperandError: the sparse index holds floating-point or complex values.
        RangeError: the mask's shape differs from the dimensions that it indexes.
    """
    return input[_dense_key(input, key)]


def masked_setitem(input: torch.Tensor, key: Any, value: Any) -> None:
    """``D[A > 0] = value`` for a dense tensor and a sparse mask."""
    input[_dense_key(input, key)] = strided(value)


def _dense_key(input: torch.Tensor, key: Any) -> tuple[Any, ...]:
    keys: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        if not isinstance(part, SparseTensor):
            keys.append(part)
            continue
        if part.dtype.is_floating_point or part.dtype.is_complex:
            raise OperandError(f"an index of sparse {part.dtype} values: index by a sparse mask, as A != 0, or by integers")
        if part.dtype not in MASKS:
            keys.append(densified(part, "an index", "unstored entries are indices 0"))
            continue
        if len(keys) == 0 and part.shape != input.shape[: part.ndim]:
            raise RangeError(f"a mask of shape {tuple(part.shape)} for the first dimensions of a tensor of shape {tuple(input.shape)}")
        keys += argwhere(part).unbind(1)
    return tuple(keys)


SEARCHES: dict[str, Callable[..., Any]] = {
    "aminmax": aminmax,
    "argwhere": argwhere,
    "isin": isin,
    "nansum": nansum,
}
