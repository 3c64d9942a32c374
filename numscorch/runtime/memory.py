"""Memory: views of strided tensors, and a guard against results that can't fit."""

from __future__ import annotations

import os
from math import prod

import numpy as np
import torch

from ..errors import SizeError
from ..problem import Problem

ASK_FROM = 1 << 30  # bytes from which a result is held against what the machine has


def flat(tensor: torch.Tensor) -> np.ndarray:
    """A 1-D view of everything that a strided tensor reaches, without a copy."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    view: np.ndarray = torch.as_strided(tensor, (span,), (1,)).numpy()
    return view


def check_memory(problem: Problem) -> None:
    """Refuse a dense result that is larger than the machine's memory.

    Raises:
        SizeError: with the sizes, and the way to a sparse result.
    """
    size = prod(problem.shape) * np.dtype(problem.result.dtype).itemsize
    if size > ASK_FROM and size > memory():
        raise SizeError(
            f"the dense result {'x'.join(map(str, problem.shape))} takes {size / 2**30:.3g} GiB, "
            f"but the machine has {memory() / 2**30:.3g} GiB\n"
            f"  {problem.stmt}     format='infer' asks for the sparse result of Algorithm 4"
        )


def memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62
