"""Random tensors that depend on a seed and their shape, and not on the order of tests."""

from __future__ import annotations

import torch


def generator(seed: int = 0) -> torch.Generator:
    """A generator with this seed, apart from the default one."""
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers, equal for a seed up to the data type."""
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers, which differ between shapes."""
    return torch.randn(shape, generator=generator(seed + sum(shape)))


def integers(*shape: int) -> torch.Tensor:
    """Integers from -3 to 3 as float32, which differ between shapes."""
    return torch.randint(-3, 4, shape, generator=generator(sum(shape))).float()


def leaf(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers that require a gradient."""
    return torch.randn(*shape, generator=generator(seed), dtype=dtype).requires_grad_()
