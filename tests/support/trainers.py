"""Small networks, and all methods of sparse training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from numscorch.nn import SparseLinear
from numscorch.sparsify import SET, GradualPruning, RigL, magnitude, resparsify, schedules, straight_through

AT_ONCE = schedules.one_shot(0.5, at=1)
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
STARTS: dict[str, Callable[..., Any]] = {
    "SET": lambda model, optimizer, **options: SET(model, optimizer, **{"every": 1, **options}),
    "RigL": lambda model, optimizer, **options: RigL(model, optimizer, **{"every": 1, "until": 100, **options}),
    "GradualPruning": lambda model, optimizer: GradualPruning(model, optimizer, magnitude, schedules.one_shot(0.9, at=1)),
}
each = pytest.mark.parametrize("kind", STARTS)
each_dynamic = pytest.mark.parametrize("kind", ["SET", "RigL"])


def dense_network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(SparseLinear(6, 8, density=0.5), nn.ReLU(), SparseLinear(8, 3, density=0.5))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def started(kind: str, **options: Any) -> tuple[Any, torch.optim.SGD, Any]:
    """A sparse network, its optimizer, and its training of this kind."""
    model = network()
    optimizer = sgd(model)
    return model, optimizer, STARTS[kind](model, optimizer, **options)


def gradual(model: Any, sparsifier: Any = magnitude, schedule: Any = AT_ONCE, **options: Any) -> GradualPruning:
    return GradualPruning(model, None, sparsifier, schedule, **{"sparse_from": 0.5, **options})


DENSE_STARTS: list[Callable[..., Any]] = [
    *(gradual, partial(gradual, sparse_from=None)),
    *(partial(straight_through, sparsifier=magnitude(0.5)), partial(resparsify, sparsifier=magnitude(0.5))),
]
