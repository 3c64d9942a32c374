"""Copies: a tensor's entries in another format, by a kernel."""

from __future__ import annotations

import numpy as np
import torch

from .computing import compute
from .ir.format import Format
from .pattern import Pattern
from .sparse_tensor import SparseTensor
from .statements import copying


def copied_numbers(pattern: Pattern, format: Format) -> tuple[Pattern, np.ndarray]:
    """The entries in another format of the same mode order, and for each value the number of its entry, from 1; 0 for none."""
    numbered = SparseTensor.trusted(pattern, torch.arange(1, pattern.nnz + 1))
    result: SparseTensor = compute(copying(len(pattern.shape)), (numbered,), format)
    return result.pattern, result.values.numpy()
