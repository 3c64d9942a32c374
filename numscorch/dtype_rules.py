"""Which data types may stand together, and which operators they have."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .errors import UnsupportedError
from .ir.functions import FUNCTIONS, REDUCTIONS
from .ir.index import literals_in, operators_in
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


def _refuse(found: set[str], request: Request, dtype: str, instead: str) -> None:
    if found:
        raise UnsupportedError(f"{', '.join(sorted(found))} of {dtype} values: convert the operands with {instead}\n  {request}")


def _operators(request: Request) -> set[str]:
    return set() if request.value is None else operators_in(request.value)


def _numbers(request: Request) -> list[float | complex]:
    return [] if request.value is None else literals_in(request.value)
