"""Python's ``&``, ``|``, ``^`` and ``~``, which torch has of bits: of tensors of bool they are the logical functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedError
from ..tensors.sparse_tensor import OPERATORS


def _of_bools(sign: str, name: str) -> Callable[..., Any]:
    """An operator that is a logical function, of tensors of bool.

    Raises:
        UnsupportedError: an operand holds numbers.
    """

    def operator(*operands: Any) -> Any:
        for operand in operands:
            kind = getattr(operand, "dtype", type(operand))
            if kind not in (torch.bool, bool):
                name_ = kind if isinstance(kind, torch.dtype) else kind.__name__
                way_out = f"use {name} for whether entries are other than 0, or .to_dense() for their bits"
                raise UnsupportedError(f"{sign} of {name_} works on bits, but of SparseTensors it takes bool: {way_out}")
        return OPERATORS[name](*operands)

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = f"{name}, of tensors of bool alone."
    return operator


BITWISE: dict[str, Callable[..., Any]] = {
    "and": _of_bools("&", "logical_and"),
    "or": _of_bools("|", "logical_or"),
    "xor": _of_bools("^", "logical_xor"),
    "invert": _of_bools("~", "logical_not"),
}
