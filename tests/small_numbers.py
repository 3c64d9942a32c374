"""Tensors of small integers."""

from __future__ import annotations

import torch


def numbers(*shape: int) -> torch.Tensor:
    """Small integers, about half of them 0, and a row and a column of zeros in every matrix."""
    made = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64).reshape(shape)
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    return made * kept
