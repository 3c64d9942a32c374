"""Detect requests on uint8 and bool whose intermediate values may overflow.

Kernels compute such values in wider integers, and reduce only the final result modulo 256.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UnsupportedError
from ..ir.functions import REDUCTIONS, TESTS
from ..ir.index import Access, Apply, Binary, Expr, Literal
from .requests import Request


def check_wrapping(request: Request, truths: frozenset[str], converted: Sequence[Expr] = (), is_uint8: bool = False) -> None:
    """Reject a request whose result would differ between uint8 arithmetic and wider integers.

    Sums, differences and products agree modulo 256. Other functions, comparisons and reductions agree only if their
    arguments do not overflow.

    Args:
        request: the request to check.
        truths: names of the bool operands.
        converted: subexpressions of uint8 or bool that are converted to another dtype, and must not overflow.
        is_uint8: whether the result has dtype uint8.

    Raises:
        UnsupportedError: an argument may have overflowed.
    """
    is_exact = request.op in REDUCTIONS and request.op not in ("+=", "*=")
    holds = all(_in_range(value, truths) if is_exact else _is_modular(value, truths) for value in request.read if is_uint8)
    if holds and all(_in_range(value, truths) for value in converted):
        return
    raise UnsupportedError(
        "functions, comparisons, conversions or reductions of computed uint8 or bool values, which may have overflowed: "
        f"convert the operands with .to(torch.int16)\n  {request}"
    )


def _is_modular(expr: Expr, truths: frozenset[str]) -> bool:
    """Whether the value modulo 256 depends only on the operands modulo 256."""
    match expr:
        case Binary("+" | "-" | "*", left, right):
            return _is_modular(left, truths) and _is_modular(right, truths)
        case Apply("square", (arg,)):
            return _is_modular(arg, truths)
        case Literal():
            return True
        case _:
            return _in_range(expr, truths)


def _in_range(expr: Expr, truths: frozenset[str]) -> bool:
    """Whether the value cannot overflow: operands, numbers, functions and comparisons of these, and products with a boolean."""
    match expr:
        case Access():
            return True
        case Literal(value):
            return not isinstance(value, complex) and value >= 0
        case Binary("*", left, right):
            return (_is_truth(left, truths) or _is_truth(right, truths)) and _in_range(left, truths) and _in_range(right, truths)
        case Binary(op, left, right):
            return op in TESTS and _in_range(left, truths) and _in_range(right, truths)
        case Apply(function, args):
            return function != "square" and all(_in_range(arg, truths) for arg in args)


def _is_truth(expr: Expr, truths: frozenset[str]) -> bool:
    """Whether the value is always 0 or 1."""
    if isinstance(expr, Access):
        return not expr.tensor.has_values or expr.tensor.name in truths
    return isinstance(expr, Binary) and expr.op in TESTS
