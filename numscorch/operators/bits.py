"""Python's operators ``&``, ``|``, ``^`` and ``~`` for boolean tensors: logical functions. Integer operands are not supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedError
from ..tensors.sparse_tensor import OPERATORS
from .naming import with_name


def _boolean_operator(sign: str, name: str) -> Callable[..., Any]:
    """A Python operator that applies a logical function to boolean operands.

    Raises:
        UnsupportedError: an operand is not boolean.
    """

    def operator(*operands: Any) -> Any:
        for operand in operands:
            kind = getattr(operand, "dtype", type(operand))
            if kind not in (torch.bool, bool):
                dtype_name = kind if isinstance(kind, torch.dtype) else kind.__name__
                way_out = f"use {name} to compare entries with 0, or .to_dense() for bitwise operations"
                raise UnsupportedError(f"{sign} of {dtype_name} works on bits, but SparseTensors support it for bool only: {way_out}")
        return OPERATORS[name](*operands)

    return with_name(operator, name, f"{name} of boolean tensors.")


BITWISE: dict[str, Callable[..., Any]] = {
    "and": _boolean_operator("&", "logical_and"),
    "or": _boolean_operator("|", "logical_or"),
    "xor": _boolean_operator("^", "logical_xor"),
    "invert": _boolean_operator("~", "logical_not"),
}
