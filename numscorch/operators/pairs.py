"""Element-wise functions of two and three tensors under torch's names; each is a function of ``ir/function_table.py``."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from ..errors import UnsupportedError
from ..programs.evaluation import evaluate_parts
from .elementwise import _tell_if_filled, _term
from .naming import with_name


def _evaluate_form(form: str, operands: dict[str, Any], numbers: dict[str, Any] | None = None) -> Any:
    """Evaluate a form of operands that broadcast; unstored entries are 0."""
    orders = {name: getattr(operand, "ndim", 0) for name, operand in operands.items()}
    max_order = max(orders.values())
    _tell_if_filled(form.replace("{C}", "C"), {name: operand for name, operand in operands.items() if orders[name]})
    terms = {name: _term(name, order, max_order) for name, order in orders.items()}
    return evaluate_parts(f"{_term('R', max_order, max_order)} = {form.format(**terms)}", {**operands, **(numbers or {})}, None)


def _pair(name: str) -> Callable[..., Any]:
    form = f"{name}({{A}}, {{B}})"

    def function(input: Any, other: Any) -> Any:
        return _evaluate_form(form, {"A": input, "B": other})

    return with_name(function, name, f"torch's {name} of operands that broadcast; unstored entries are 0.")


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """input + weight * (end - input); the weight is a number or a tensor.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> lerp(A, 3 * A, 0.5).values
    tensor([4., 8.])
    """
    if getattr(weight, "ndim", 0):
        return _evaluate_form("{A} + {C} * ({B} - {A})", {"A": input, "B": end, "C": weight})
    return _evaluate_form("{A} + weight * ({B} - {A})", {"A": input, "B": end}, {"weight": weight})


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """input + value * tensor1 * tensor2.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [4.0, 0.0]]), ns.CSR)
    >>> addcmul(A, A, A, value=2).values
    tensor([10., 36.])

    Raises:
        UnsupportedError: the value is infinite or NaN, and all tensors hold integers.
    """
    operands = {"A": input, "B": tensor1, "C": tensor2}
    if isinstance(value, float) and not any(tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in operands.values()):
        if not isfinite(value):
            raise UnsupportedError(f"addcmul of integers takes no value={value}: convert the tensors with .to(torch.float64)")
        value = int(value)  # torch truncates it, too
    if isinstance(value, int | float) and value == 1:
        return _evaluate_form("{A} + {B} * {C}", operands)
    return _evaluate_form("{A} + value * {B} * {C}", operands, {"value": value})


PAIRS: dict[str, Callable[..., Any]] = {
    **{name: _pair(name) for name in ("atan2", "copysign", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "xlogy")},
    "addcmul": addcmul,
    "arctan2": _pair("atan2"),
    "lerp": lerp,
}
