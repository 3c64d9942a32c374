"""Models for tests of loading sparse weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from numscorch.sparsify import SparsityPlan, magnitude, sparsify_model


def perceptron(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))


def sparse(model: Any, sparsifier: Any = None, format: str | None = None, names: str = "*weight", optimizer: Any = None) -> Any:
    plan = SparsityPlan().weight(names, sparsifier or magnitude(0.5), format, always=True)
    return sparsify_model(model, plan, report=None, optimizer=optimizer)


def snapshot(model: Any) -> Any:
    return copy.deepcopy(dict(model.state_dict())), [id(module) for module in model.modules()]
