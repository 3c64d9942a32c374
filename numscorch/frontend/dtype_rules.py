"""Choose the data type of a computation, and reject operators that it does not support."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from ..errors import UnsupportedError
from ..ir.functions import FUNCTIONS, REDUCTIONS
from ..ir.index import Apply, Literal, operators_in, walk
from .operand import Operand
from .promotion import promotion_of, result_type
from .requests import Request


def common_dtype(operands: Sequence[Operand]) -> str:
    """The data type in which a product of operands is computed."""
    return _named(result_type((getattr(torch, operand.dtype), len(operand.shape)) for operand in operands))


def computed_dtype(request: Request, operands: Sequence[Operand]) -> str:
    """The data type in which a request is computed."""
    return _named(promotion_of(request, tuple([(getattr(torch, operand.dtype), len(operand.shape)) for operand in operands])).computed)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=1024)
def check_powers(request: Request, dtype: str) -> None:
    """Reject negative powers of integers, as torch does.

    Raises:
        UnsupportedError: an exponent is a negative number, and the data type is one of integers.
    """
    powers = (inner for value in request.read for inner in walk(value) if isinstance(inner, Apply) and inner.function == "pow")
    exponents = [power.args[1].value for power in powers if isinstance(power.args[1], Literal)]
    if "int" in dtype and any(not isinstance(exponent, complex) and exponent < 0 for exponent in exponents):
        raise UnsupportedError(f"a negative power of {dtype} values: convert the operands with .to(torch.float64)\n  {request}")


def check_operators(request: Request, dtype: str) -> None:
    """Reject operators that a data type does not support: integers have no infinity, complex numbers no order.

    Raises:
        UnsupportedError: a reduction needs infinity as its start, a comparison or function needs real numbers, or an integer's
            exponent is negative.
    """
    if dtype.startswith("int") and request.op in REDUCTIONS and REDUCTIONS[request.op].times != "*":
        raise UnsupportedError(
            f"{request.op} of {dtype} values: an empty reduction needs infinity, which {dtype} lacks; "
            f"convert the operands with .to(torch.float64)\n  {request}"
        )
    check_powers(request, dtype)
    if dtype.startswith("complex"):
        operators = set() if request.value is None else operators_in(request.value)
        refused = ({"<", "<=", ">", ">=", *FUNCTIONS} - {"where"}) & operators | {request.op} - {"=", "+=", "*="}
        if refused:
            suggestion = "convert the operands with .to(torch.float32), or use .values.real and .values.imag"
            raise UnsupportedError(f"{', '.join(sorted(refused))} of {dtype} values: {suggestion}\n  {request}")
