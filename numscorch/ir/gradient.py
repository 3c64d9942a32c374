"""Symbolic differentiation of an expression with respect to one of its tensors."""

from __future__ import annotations

from functools import lru_cache, partial

from .functions import FUNCTIONS, combined, is_zero, simplified
from .index import Access, Apply, Binary, Expr, Literal, mapped
from .notation import parse_expr

ZERO, ONE = (Literal(value, "float32") for value in (0.0, 1.0))
plus, minus, times, over = (partial(combined, op) for op in "+-*/")
_parsed = lru_cache(maxsize=256)(parse_expr)


def derivative(expr: Expr, name: str) -> Expr:
    """The derivative of an expression with respect to the tensor with this name, at the coordinates where it is read.

    Where a function is not differentiable, the derivative is torch's: 0 for ``relu`` and ``abs`` at 0; for ``maximum`` of
    equal numbers, 0.5 for each argument.

    >>> from .notation import parse_expr
    >>> for text in ("A[i] * B[i]", "exp(2 * A[i])", "B[i] / A[i]", "relu(A[i]) + B[i]", "B[i] > A[i]"):
    ...     print(derivative(parse_expr(text), "A"))
    B[i]
    exp(2 * A[i]) * 2
    0 - B[i] / A[i] / A[i]
    1 - (A[i] <= 0)
    0
    """
    match expr:
        case Access(tensor):
            return ONE if tensor.name == name and tensor.has_values else ZERO
        case Literal():
            return ZERO
        case Binary(op, left, right):
            return _of_operator(op, left, right, derivative(left, name), derivative(right, name))
        case Apply("where", (condition, left, right)):
            by_left, by_right = derivative(left, name), derivative(right, name)
            return ZERO if is_zero(by_left) and is_zero(by_right) else Apply("where", (condition, by_left, by_right))
        case Apply(function, args):
            total: Expr = ZERO
            for at, inner in enumerate(derivative(arg, name) for arg in args):
                total = total if is_zero(inner) else plus(total, times(_slope(function, at, args), inner))
            return total


def _of_operator(op: str, left: Expr, right: Expr, by_left: Expr, by_right: Expr) -> Expr:
    match op:
        case "+":
            return plus(by_left, by_right)
        case "-":
            return minus(by_left, by_right)
        case "*":
            return plus(times(by_left, right), times(left, by_right))
        case "/":
            return minus(over(by_left, right), over(over(times(left, by_right), right), right))  # right * right may underflow
        case _:
            return ZERO


def _slope(function: str, at: int, args: tuple[Expr, ...]) -> Expr:
    """The partial derivative of a function with respect to one argument."""
    arguments = dict(zip("xyz", args, strict=False))
    return simplified(mapped(_parsed(FUNCTIONS[function].slopes[at]), lambda access: arguments[access.tensor.name]))
