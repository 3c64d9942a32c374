"""Data types of values: those that kernels compute in, and those that are widened for them."""

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
SUMMED_LONG = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)  # torch adds up such values of one operand in int64
STORED = (*COMPILED, *WIDENED)


def listed() -> str:
    """The data types that values may have, for an error's text."""
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in STORED)
