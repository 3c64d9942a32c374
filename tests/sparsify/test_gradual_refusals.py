"""GradualPruning refuses a single layer as model, and random masks that change between steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import numscorch as ns
from numscorch.sparsify import GradualPruning, magnitude, random, schedules


def test_a_single_layer_as_model_is_refused() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ns.UnsupportedError, match="the model itself"):
        GradualPruning(model, optimizer, magnitude, schedules.linear(0.9, begin=0, end=2), sparse_from=0.5)


def test_random_masks_that_change_are_refused() -> None:
    for seed in (0, None):
        model = nn.Sequential(nn.Linear(20, 20))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        draw = lambda fraction, seed=seed: random(fraction, seed=seed)  # noqa: E731
        pruner = GradualPruning(model, optimizer, draw, schedules.linear(0.8, begin=0, end=4), sparse_from=None)
        pruner.step()
        if seed is None:
            with pytest.raises(ns.OperandError, match="a random sparsifier has to draw the same entries each time"):
                pruner.step()
        else:
            pruner.step()
            assert float((model[0].weight == 0).float().mean()) == pytest.approx(0.4, abs=0.01)
