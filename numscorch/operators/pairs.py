"""Element-wise functions of two and three tensors under torch's names; each is a function of statements (``ir/function_table.py``)."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from ..errors import UnsupportedError
from ..programs.evaluation import evaluate_parts
from .elementwise import _tell_if_filled, _term


def _called(form: str, operands: dict[str, Any], numbers: dict[str, Any] | None = None) -> Any:
    """A form of operands that broadcast; entries that aren't stored are 0."""
    orders = {name: getattr(operand, "ndim", 0) for name, operand in operands.items()}
    most = max(orders.values())
    _tell_if_filled(form.replace("{C}", "C"), {name: operand for name, operand in operands.items() if orders[name]})
    terms = {name: _term(name, order, most) for name, order in orders.items()}
    return evaluate_parts(f"{_term('R', most, most)} = {form.format(**terms)}", {**operands, **(numbers or {})}, None)


def _pair(name: str) -> Callable[..., Any]:
    form = f"{name}({{A}}, {{B}})"

    def function(input: Any, other: Any) -> Any:
        return _called(form, {"A": input, "B": other})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"torch's {name}, of operands that broadcast; entries that aren't stored are 0."
    return function


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """input + weight * (end - input); the weight is a number or a tensor.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> lerp(A, 3 * A, 0.5).values
    tensor([4., 8.])
    """
    if getattr(weight, "ndim", 0):
        return _called("{A} + {C} * ({B} - {A})", {"A": input, "B": end, "C": weight})
    return _called("{A} + weight * ({B} - {A})", {"A": input, "B": end}, {"weight": weight})


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """input + value * tensor1 * tensor2

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> addcmul(A, A, A, value=2).values
    tensor([10., 36.])

    Raises:
        UnsupportedError: the value is infinite or NaN, and no tensor has floats.
    """
    given = {"A": input, "B": tensor1, "C": tensor2}
    if isinstance(value, float) and not any(tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in given.values()):
        if not isfinite(value):
            raise UnsupportedError(f"addcmul of integers takes no value={value}: convert the tensors with .to(torch.float64)")
        value = int(value)  # torch cuts the fraction off
    if isinstance(value, int | float) and value == 1:
        return _called("{A} + {B} * {C}", given)
    return _called("{A} + value * {B} * {C}", given, {"value": value})


PAIRS: dict[str, Callable[..., Any]] = {
    **{name: _pair(name) for name in ("atan2", "copysign", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "xlogy")},
    "addcmul": addcmul,
    "arctan2": _pair("atan2"),
    "lerp": lerp,
}
