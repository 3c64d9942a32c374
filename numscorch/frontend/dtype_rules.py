"""Which data types may stand together, and which operators they have."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import UnsupportedError
from ..ir.functions import FUNCTIONS, REDUCTIONS
from ..ir.index import operators_in
from .operand import Operand
from .promotion import promotion_of, result_type
from .statements import Request


def common_dtype(operands: Sequence[Operand]) -> str:
    """The data type in which the product of operands is computed."""
    return _named(result_type((getattr(torch, operand.dtype), len(operand.shape)) for operand in operands))


def computed_dtype(request: Request, operands: Sequence[Operand]) -> str:
    """The data type in which a request of operands is computed."""
    return _named(promotion_of(request, tuple([(getattr(torch, operand.dtype), len(operand.shape)) for operand in operands])).computed)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_operators(request: Request, dtype: str) -> None:
    """Refuse what a data type lacks: integers have no infinity, and complex numbers no order."""
    if dtype.startswith("int") and request.op in REDUCTIONS and REDUCTIONS[request.op].times != "*":
        raise UnsupportedError(
            f"{request.op} of {dtype} values, which have no infinity for a result without terms: "
            f"convert the operands with .to(torch.float64)\n  {request}"
        )
    if dtype.startswith("complex"):
        _check_complex(request, dtype)


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


def _refuse(dtypes: set[str], request: Request, dtype: str, instead: str) -> None:
    if dtypes:
        raise UnsupportedError(f"{', '.join(sorted(dtypes))} of {dtype} values: convert the operands with {instead}\n  {request}")


def _operators(request: Request) -> set[str]:
    return set() if request.value is None else operators_in(request.value)
