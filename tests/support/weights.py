"""Weights for tests of sparsifiers, independent of the order of tests."""

from __future__ import annotations

import torch


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers, equal for a seed up to the data type."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
