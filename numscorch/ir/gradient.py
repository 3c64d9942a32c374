"""Derivatives: of the right side of a statement by one of its tensors, as another right side."""

from __future__ import annotations

import math
from collections.abc import Callable

from .functions import is_zero
from .index import Access, Binary, Call, Expr, Literal

ZERO, ONE, HALF = (Literal(value, "float32") for value in (0.0, 1.0, 0.5))


def derivative(expr: Expr, name: str) -> Expr:
    """How the expression changes with a tensor, at the coordinates where it is read; 0 where it doesn't.

    Where a function has a corner, it is torch's choice: 0 for ``relu`` and ``abs`` at 0, and ``maximum`` of equal numbers
    shares it out between them.

    >>> from .notation import parse_expr
    >>> for text in ("A[i] * B[i]", "exp(2 * A[i])", "B[i] / A[i]", "relu(A[i]) + B[i]", "B[i] > A[i]"):
    ...     print(derivative(parse_expr(text), "A"))
    B[i]
    exp(2 * A[i]) * 2
    0 - B[i] / (A[i] * A[i])
    A[i] > 0
    0
    """
    match expr:
        case Access(tensor):
            return ONE if tensor.name == name and tensor.has_values else ZERO
        case Literal():
            return ZERO
        case Binary(op, left, right):
            return _of_operator(op, left, right, derivative(left, name), derivative(right, name))
        case Call("where", (condition, left, right)):
            return _chosen(condition, derivative(left, name), derivative(right, name))
        case Call(function, (left, right)):
            return _of_pair(function, left, right, derivative(left, name), derivative(right, name))
        case Call(function, (inner,)):
            return times(RULES[function](inner), derivative(inner, name))
        case Call():
            raise ValueError(f"no derivative of {expr} is known")


def _of_operator(op: str, left: Expr, right: Expr, by_left: Expr, by_right: Expr) -> Expr:
    match op:
        case "+":
            return plus(by_left, by_right)
        case "-":
            return minus(by_left, by_right)
        case "*":
            return plus(times(by_left, right), times(left, by_right))
        case "/":
            return minus(over(by_left, right), over(times(left, by_right), Binary("*", right, right)))
        case _:
            return ZERO


def _chosen(condition: Expr, left: Expr, right: Expr) -> Expr:
    return ZERO if is_zero(left) and is_zero(right) else Call("where", (condition, left, right))


def _of_pair(function: str, left: Expr, right: Expr, by_left: Expr, by_right: Expr) -> Expr:
    """Of ``maximum`` and ``minimum``: that of the one which is taken."""
    op = ">" if function == "maximum" else "<"
    shared = times(HALF, Binary("==", left, right))
    return plus(times(plus(Binary(op, left, right), shared), by_left), times(plus(Binary(op, right, left), shared), by_right))


def plus(left: Expr, right: Expr) -> Expr:
    """The sum, without zeros."""
    return right if is_zero(left) else left if is_zero(right) else Binary("+", left, right)


def minus(left: Expr, right: Expr) -> Expr:
    """The difference, without a zero on the right."""
    return left if is_zero(right) else Binary("-", left, right)


def times(left: Expr, right: Expr) -> Expr:
    """The product, without ones, and 0 where a factor is."""
    if is_zero(left) or is_zero(right):
        return ZERO
    return right if _is_one(left) else left if _is_one(right) else Binary("*", left, right)


def over(left: Expr, right: Expr) -> Expr:
    """The quotient; 0 where the numerator is."""
    return ZERO if is_zero(left) else Binary("/", left, right)


def _is_one(expr: Expr) -> bool:
    return isinstance(expr, Literal) and expr.value == 1


def _number(value: float) -> Literal:
    return Literal(value, "float32")


def _sign(x: Expr) -> Expr:
    return Binary("-", Binary(">", x, ZERO), Binary("<", x, ZERO))


def _sigmoid(x: Expr) -> Expr:
    value = Call("sigmoid", (x,))
    return Binary("*", value, Binary("-", ONE, value))


def _tanh(x: Expr) -> Expr:
    value = Call("tanh", (x,))
    return Binary("-", ONE, Binary("*", value, value))


def _bell(x: Expr, width: float, height: float) -> Expr:
    """height * exp(-width * x * x)"""
    return Binary("*", _number(height), Call("exp", (Binary("*", _number(-width), Binary("*", x, x)),)))


def _gelu(x: Expr) -> Expr:
    share = Binary("+", HALF, Binary("*", HALF, Call("erf", (Binary("*", x, _number(math.sqrt(0.5))),))))
    return Binary("+", share, Binary("*", x, _bell(x, 0.5, 1 / math.sqrt(2 * math.pi))))


RULES: dict[str, Callable[[Expr], Expr]] = {
    "abs": _sign,
    "erf": lambda x: _bell(x, 1.0, 2 / math.sqrt(math.pi)),
    "exp": lambda x: Call("exp", (x,)),
    "gelu": _gelu,
    "log": lambda x: Binary("/", ONE, x),
    "relu": lambda x: Binary(">", x, ZERO),
    "sigmoid": _sigmoid,
    "sqrt": lambda x: Binary("/", HALF, Call("sqrt", (x,))),
    "tanh": _tanh,
}
