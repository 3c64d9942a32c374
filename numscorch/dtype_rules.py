"""Which data types may stand together, and which operators they have."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .errors import UnsupportedError
from .ir.functions import FUNCTIONS, REDUCTIONS, TESTS
from .ir.index import Access, Binary, Call, Expr, Literal, literals_in, operators_in
from .operand import Operand
from .promotion import result_type
from .statements import Request


def common_dtype(operands: Sequence[Operand], number: complex | None = None) -> str:
    """The data type in which operands are computed, a number of the statement among them."""
    kinds = ((getattr(torch, operand.dtype), len(operand.shape) > 0) for operand in operands)
    return str(result_type(kinds, number)).removeprefix("torch.")


def check_operators(request: Request, dtype: str) -> None:
    """Refuse what a data type lacks: integers have no quotients, and complex numbers no order."""
    if dtype.startswith("int"):
        _check_integers(request, dtype)
    elif dtype.startswith("complex"):
        _check_complex(request, dtype)


def _check_integers(request: Request, dtype: str) -> None:
    """Numbers and operators must give whole numbers, and the identity of the reduction be one."""
    lacking = {"/", *(name for name, function in FUNCTIONS.items() if not function.keeps_whole)}
    fractions = [n for n in _numbers(request) if isinstance(n, complex) or not float(n).is_integer()]
    if fractions:
        raise UnsupportedError(f"the number {fractions[0]} beside {dtype} values: convert them with .to(torch.float32)\n  {request}")
    if request.op in REDUCTIONS and REDUCTIONS[request.op].times != "*":
        raise UnsupportedError(
            f"{request.op} of {dtype} values, which have no infinity for a result without terms: "
            f"convert the operands with .to(torch.float64)\n  {request}"
        )
    _refuse(lacking & _operators(request), request, dtype, ".to(torch.float32)")


def _check_complex(request: Request, dtype: str) -> None:
    """Neither comparisons, nor functions that are made for real numbers, nor the largest or smallest."""
    lacking = {"<", "<=", ">", ">=", *FUNCTIONS} - {"where"}
    reduction = {request.op} - {"=", "+=", "*="}
    _refuse(
        lacking & _operators(request) | reduction,
        request,
        dtype,
        ".to(torch.float32), or use .values.real and .values.imag",
    )


def check_wrapping(request: Request, truths: frozenset[str]) -> None:
    """Refuse what a request of uint8 values would compute of wider ones: these are reduced modulo 256 only at the end.

    Sums, differences and products are the same modulo 256; other functions, tests and reductions are where their arguments don't
    overflow. The operands named ``truths`` are of bool.
    """
    is_exact = request.op in REDUCTIONS and request.op not in ("+=", "*=")
    if all(_in_range(value, truths) if is_exact else _is_modular(value, truths) for value in request.read):
        return
    raise UnsupportedError(
        "functions, comparisons or reductions of computed uint8 values, which may have overflowed: "
        f"convert the operands with .to(torch.int16)\n  {request}"
    )


def _is_modular(expr: Expr, truths: frozenset[str]) -> bool:
    """Whether the value modulo 256 depends on its operands' modulo 256 alone."""
    match expr:
        case Binary("+" | "-" | "*", left, right):
            return _is_modular(left, truths) and _is_modular(right, truths)
        case Call("square", (arg,)):
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
        case Call(function, args):
            return function != "square" and all(_in_range(arg, truths) for arg in args)


def _is_truth(expr: Expr, truths: frozenset[str]) -> bool:
    """Whether the value is 0 or 1."""
    if isinstance(expr, Access):
        return not expr.tensor.has_values or expr.tensor.name in truths
    return isinstance(expr, Binary) and expr.op in TESTS


def _refuse(found: set[str], request: Request, dtype: str, instead: str) -> None:
    if found:
        raise UnsupportedError(f"{', '.join(sorted(found))} of {dtype} values: convert the operands with {instead}\n  {request}")


def _operators(request: Request) -> set[str]:
    return set() if request.value is None else operators_in(request.value)


def _numbers(request: Request) -> list[float | complex]:
    return [] if request.value is None else literals_in(request.value)
