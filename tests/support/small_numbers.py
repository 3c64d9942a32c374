"""Tensors of small integers."""

from __future__ import annotations

import torch


def numbers(*shape: int) -> torch.Tensor:
    """Small integers, about half of them 0, with a zero row and a zero column in every matrix."""
    integers = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64).reshape(shape)
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    return integers * kept
