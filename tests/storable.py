"""Tensors that any format can store."""

from __future__ import annotations

import torch

import numscorch as ns
from numscorch.ir.format import Format


def random(seed: int, *shape: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(seed)
    return torch.randint(1, 9, shape, generator=numbers).double() * (torch.rand(shape, generator=numbers) < 0.3)


def storable(fmt: Format) -> list[torch.Tensor]:
    """Tensors that any format can store: NM, bands and the like have no room for more than a diagonal."""
    shape = (4,) * fmt.order
    own = [random(seed, *shape) for seed in (1, 2, 3)]
    try:
        for dense in own:
            ns.from_torch(dense, fmt)
    except ns.FormatError:
        own = [torch.zeros(shape, dtype=torch.float64) for _ in own]
        for at, dense in enumerate(own):
            dense[(at,) * fmt.order] = at + 1.0
    return own
