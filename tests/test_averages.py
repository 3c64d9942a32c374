"""Averages of models with sparse weights: AveragedModel beside deep copies, and beside patterns that change."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel
from weights import drawn

from numscorch.nn import SparseLinear
from numscorch.sparsify import RigL


def network(density: float = 0.3) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(SparseLinear(8, 12, density=density), torch.nn.ReLU(), SparseLinear(12, 4, density=density))


def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(drawn(16, 8)).square().sum().backward()
    optimizer.step()


def test_an_average_leaves_other_copies_of_its_model_alone() -> None:
    model = network()
    average, third = AveragedModel(model), copy.deepcopy(model)
    before = [weight.to_dense().detach() for weight in (third[0].weight, third[2].weight)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rigl = RigL(model, optimizer, until=10, every=1)
    for _ in range(3):
        step(model, optimizer)
        rigl.step()
        average.update_parameters(model)
    for weight, dense in zip((third[0].weight, third[2].weight), before, strict=True):
        assert torch.equal(weight.to_dense(), dense)
