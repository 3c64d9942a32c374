"""Data types of values: those in which kernels compute, and those that are widened first."""

from __future__ import annotations

import torch

COMPILED = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
WIDENED = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.int8, torch.uint8: torch.int16}
SUMMED_LONG = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)  # dtypes that torch.sum accumulates in int64
STORED = (*COMPILED, *WIDENED)


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The data type in which values are summed before the sum is rounded once: float32 for 16-bit floats.

    >>> summed_in(torch.float16), summed_in(torch.int8)
    (torch.float32, torch.int8)
    """
    return WIDENED.get(dtype, dtype) if dtype.is_floating_point else dtype


def listed() -> str:
    """The supported data types, as text for errors."""
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in STORED)
