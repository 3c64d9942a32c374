"""Weights for tests of sparsifiers, the same ones in whatever order tests run."""

from __future__ import annotations

import torch


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Numbers of both signs, always the same ones for a seed, whatever the data type."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
