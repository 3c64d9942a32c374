"""clamp and hardtanh: bound each entry by numbers or by the entries of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..convert.dense import densified
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import _joined
from .unary import FROM_ZERO, written


def upper(input: Any, other: Any) -> Any:
    """The element-wise maximum as clamp defines it: where both are equal, ``input`` receives the whole gradient."""
    return _joined("where({A} >= {B}, {A}, where({A} != {A}, {A}, {B}))", input, other)


def lower(input: Any, other: Any) -> Any:
    """The element-wise minimum; see :func:`upper` for the gradient."""
    return _joined("where({A} <= {B}, {A}, where({A} != {A}, {A}, {B}))", input, other)


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Clamp each entry between two bounds: numbers or tensors, sparse or dense. The result is dense if the bounds exclude 0.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> clamp(A, -1, 2).values, clamp(A, max=A / 2).values
    (tensor([2., 2.]), tensor([1.0000, 1.5000]))
    """
    if any(isinstance(bound, torch.Tensor | SparseTensor) for bound in (min, max)):
        input = input if min is None else upper(input, min)
        return input if max is None else lower(input, max)
    if (min is None or min <= 0) and (max is None or max >= 0):
        return SparseTensor(input.pattern, at_entries(input.pattern, lambda values: torch.clamp(values, min, max), input._values))
    return torch.clamp(densified(input, "clamp", FROM_ZERO), min, max)


def hardtanh(input: SparseTensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """torch.nn.functional.hardtanh; dense if the bounds exclude 0."""
    if not min_val <= 0 <= max_val:
        return functional.hardtanh(densified(input, "hardtanh", FROM_ZERO), min_val, max_val)
    clipped = at_entries(input.pattern, lambda values: functional.hardtanh(values, min_val, max_val), input._values)
    return written(input, clipped) if inplace else SparseTensor(input.pattern, clipped)


BOUNDS: dict[str, Callable[..., Any]] = {
    "clamp": clamp,
    "clamp_max": lambda input, max: clamp(input, None, max),
    "clamp_min": lambda input, min: clamp(input, min),
    "clip": clamp,
    "hardtanh": hardtanh,
}
