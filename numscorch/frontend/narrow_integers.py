"""Which values of uint8 and bool may have overflowed: kernels compute them in wider integers, and reduce them at the end."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UnsupportedError
from ..ir.functions import REDUCTIONS, TESTS
from ..ir.index import Access, Apply, Binary, Expr, Literal
from .statements import Request


def check_wrapping(request: Request, truths: frozenset[str], converted: Sequence[Expr] = (), is_uint8: bool = False) -> None:
    """Refuse what a request of uint8 values would compute of wider ones: these are reduced modulo 256 only at the end.

    Sums, differences and products are the same modulo 256; other functions, tests and reductions are where their arguments don't
    overflow. The operands named ``truths`` are of bool; the parts of uint8 or bool that are ``converted`` must not have overflowed
    either.
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
    """Whether the value modulo 256 depends on its operands' modulo 256 alone."""
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
    """Whether no value overflows: operands, numbers, what functions and tests make of such, and that times a truth value."""
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
    """Whether the value is 0 or 1."""
    if isinstance(expr, Access):
        return not expr.tensor.has_values or expr.tensor.name in truths
    return isinstance(expr, Binary) and expr.op in TESTS
