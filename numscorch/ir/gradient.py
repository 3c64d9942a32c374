"""Symbolic differentiation of an expression with respect to one of its tensors."""

from __future__ import annotations

from functools import lru_cache, partial, reduce

from .functions import FUNCTIONS, is_zero, simplified
from .index import Access, Apply, Binary, Expr, Literal, mapped
from .notation import parse_expr

ZERO, ONE = (Literal(value, "float32") for value in (0.0, 1.0))


def derivative(expr: Expr, name: str) -> Expr:
    """The derivative of an expression with respect to the tensor with this name, at the coordinates where it is read.

    Where a function is not differentiable, the derivative is torch's: 0 for ``relu`` and ``abs`` at 0, and for ``maximum``
    of equal numbers, half for each argument.

    >>> from .notation import parse_expr
    >>> for text in ("A[i] * B[i]", "exp(2 * A[i])", "B[i] / A[i]", "relu(A[i]) + B[i]", "B[i] > A[i]"):
    ...     print(derivative(parse_expr(text), "A"))
    B[i]
    exp(2 * A[i]) * 2
    0 - B[i] / (A[i] * A[i])
    1 - (A[i] <= 0)
    0
    """
    return simplified(_derivative(expr, name))


def _derivative(expr: Expr, name: str) -> Expr:
    by = partial(_derivative, name=name)
    match expr:
        case Access(tensor):
            return ONE if tensor.name == name and tensor.has_values else ZERO
        case Binary("+" | "-" as op, left, right):
            return Binary(op, by(left), by(right))
        case Binary("*", left, right):
            return plus(times(by(left), right), times(left, by(right)))
        case Binary("/", left, right):
            return Binary("-", Binary("/", by(left), right), Binary("/", times(left, by(right)), Binary("*", right, right)))
        case Apply("where", (condition, left, right)):
            return Apply("where", (condition, by(left), by(right)))
        case Apply(function, args):
            return reduce(plus, (times(_slope(function, at, args), by(arg)) for at, arg in enumerate(args)))
        case Literal() | Binary():  # numbers and comparisons
            return ZERO


def _slope(function: str, at: int, args: tuple[Expr, ...]) -> Expr:
    """The partial derivative of a function with respect to one argument."""
    arguments = dict(zip("xyz", args, strict=False))
    return simplified(mapped(_parsed(FUNCTIONS[function].slopes[at]), lambda access: arguments[access.tensor.name]))


@lru_cache(maxsize=256)
def _parsed(slope: str) -> Expr:
    return parse_expr(slope)


def plus(left: Expr, right: Expr) -> Expr:
    """left + right; zero terms are dropped."""
    return right if is_zero(left) else left if is_zero(right) else Binary("+", left, right)


def times(left: Expr, right: Expr) -> Expr:
    """left * right; ones are dropped, and a zero factor gives 0."""
    if is_zero(left) or is_zero(right):
        return ZERO
    return right if _is_one(left) else left if _is_one(right) else Binary("*", left, right)


def _is_one(expr: Expr) -> bool:
    return isinstance(expr, Literal) and expr.value == 1
