"""Tensors for tests of formats."""

from __future__ import annotations

import torch

import numscorch as ns
from numscorch.ir.format import Format


def random(seed: int, *shape: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(seed)
    return torch.randint(1, 9, shape, generator=numbers).double() * (torch.rand(shape, generator=numbers) < 0.3)


def storable(fmt: Format) -> list[torch.Tensor]:
    """Three tensors that a format can store; diagonal for restrictive formats such as NM and bands."""
    shape = (4,) * fmt.order
    tensors = [random(seed, *shape) for seed in (1, 2, 3)]
    try:
        for dense in tensors:
            ns.from_torch(dense, fmt)
    except ns.FormatError:
        tensors = [torch.zeros(shape, dtype=torch.float64) for _ in tensors]
        for at, dense in enumerate(tensors):
            dense[(at,) * fmt.order] = at + 1.0
    return tensors
