"""Division with remainders or rounding, masked_fill, isclose and isin: functions of two tensors, computed entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..convert.values import densified, others_at, values_of, with_entries
from ..errors import OperandError
from ..frontend.broadcasting import broadcast_shape
from ..programs.dense_operands import divided
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from . import elementwise
from .elementwise import is_sparse, where
from .naming import with_name
from .rearranging import expand


def _quotient(name: str) -> Callable[..., Any]:
    torch_function = getattr(torch, name)

    def function(input: Any, other: Any) -> Any:
        return _by_entries(torch_function, name, input, other)

    return with_name(
        function, name, f"torch's {name} at the first tensor's entries; like div, it does not compute 0 / 0 at unstored entries."
    )


def _by_entries(function: Callable[..., torch.Tensor], name: str, input: Any, other: Any) -> Any:
    """Apply a function that is 0 where the first tensor is 0 to that tensor's entries; densely if that tensor is dense.

    Raises:
        DivisionError: an integer is divided by 0.
    """
    function, input, other = divided(function), elementwise.as_own(input), elementwise.as_own(other)
    if not isinstance(input, SparseTensor):
        return function(_dense(input, name), _dense(other, name))
    input = _expand_to_common(name, input, getattr(other, "shape", ()))
    divisor = others_at(input, other) if isinstance(other, torch.Tensor | SparseTensor) else other
    return with_entries(input, function(values_of(input), divisor))


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """The quotient at the numerator's entries; 0 / 0 is not computed at unstored entries.

    Args:
        input: the numerator, sparse or dense.
        other: the denominator: sparse, dense or a number.
        rounding_mode: None, "floor" or "trunc", as in torch.

    Raises:
        DivisionError: an integer is divided by 0 and rounded.
    """
    if rounding_mode is None:
        return elementwise.div(input, other)
    return _by_entries(_truncated if rounding_mode == "trunc" else partial(torch.div, rounding_mode=rounding_mode), "div", input, other)


def _truncated(input: Any, other: Any) -> torch.Tensor:
    """The quotient rounded towards 0. torch's own ends the process if it divides the smallest integer by -1."""
    dtype = torch.result_type(input, other)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.div(input, other, rounding_mode="trunc")
    return torch.floor_divide(input - torch.fmod(input, other), other)


def _expand_to_common(name: str, input: SparseTensor, other: Sequence[int]) -> SparseTensor:
    """The tensor expanded to the shape that it and another shape broadcast to."""
    shape = broadcast_shape(name, input.shape, other)
    return input if shape == tuple(input.shape) else expand(input, shape)


def _dense(value: Any, operator: str) -> Any:
    return densified(value, operator) if is_sparse(value) else value


def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    """Fill entries where a mask is True; sparse if the mask is sparse or the value is 0.

    Raises:
        OperandError: the mask is not a tensor.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> masked_fill(A, torch.tensor([True, False]), 0).values, masked_fill(A, A > 0, 5).values
    (tensor([0., 1.]), tensor([5., 5.]))
    """
    if not isinstance(input, SparseTensor):
        return torch.masked_fill(input, _dense(mask, "masked_fill"), value)
    if not (is_sparse(mask) or isinstance(mask, torch.Tensor)):
        raise OperandError(f"masked_fill takes a mask that is a tensor, not {type(mask).__name__}: torch.as_tensor(mask) makes one")
    number = value.item() if isinstance(value, torch.Tensor) and not value.requires_grad else value
    if not isinstance(number, torch.Tensor):
        value = number = torch.full((), number, dtype=input.dtype).item()  # cast or refuse the value as torch does
    if not isinstance(number, torch.Tensor) and number == 0:
        input = _expand_to_common("masked_fill", input, mask.shape)
        return with_entries(input, values_of(input).masked_fill(others_at(input, mask), 0))
    if is_sparse(mask):
        return where(mask, value, input)
    return torch.masked_fill(densified(input, "masked_fill", "a sparse mask keeps the tensor sparse"), mask, value)


def isclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> torch.Tensor:
    """Whether entries are close; dense, because entries that neither tensor stores are close."""
    return torch.isclose(_dense(input, "isclose"), _dense(other, "isclose"), rtol, atol, equal_nan)


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


QUOTIENTS: dict[str, Callable[..., Any]] = {
    **{name: _quotient(name) for name in ("remainder", "fmod", "floor_divide", "bitwise_left_shift", "bitwise_right_shift")},
    "div": div,
    "isclose": isclose,
    "isin": isin,
    "masked_fill": masked_fill,
}
