"""Sparsifiers as values: equality, hashes, copies, pickles."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from trainers import X, dense_network

import numscorch as ns
from numscorch.sparsify import (
    MovementScores,
    magnitude,
    movement,
    same_pattern,
    straight_through,
    wanda,
)

pytestmark = pytest.mark.usefixtures("interpreted")


class TestValues:
    """Sparsifiers compare by value, and models that use them can be copied and saved."""

    @pytest.mark.parametrize(
        ("sparsifier", "other"),
        [
            (movement(0.5, torch.ones(2, 2)), movement(0.5, torch.zeros(2, 2))),
            (wanda(0.5, torch.ones(3, 2)), wanda(0.5, torch.zeros(3, 2))),
            (same_pattern(torch.eye(2) > 0), same_pattern(torch.ones(2, 2) > 0)),
            (same_pattern(ns.from_torch(torch.eye(2))), same_pattern(ns.from_torch(torch.ones(2, 2)))),
        ],
        ids=repr,
    )
    def test_equal_content_compares_equal(self, sparsifier: Any, other: Any) -> None:
        again = pickle.loads(pickle.dumps(sparsifier))
        assert again == sparsifier
        assert hash(again) == hash(sparsifier)
        assert sparsifier != other
        assert sparsifier != 0.5

    def test_recorded_scores_compare_by_current_value(self) -> None:
        weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        first, second = (movement(0.5, MovementScores(weight)) for weight in weights)
        assert first == second
        weights[0].sum().backward()
        assert first != second

    def test_a_parametrized_model_is_copied_and_its_state_saved(self) -> None:
        """Torch refuses to pickle parametrized modules and recommends state_dict()."""
        model = dense_network()
        straight_through(model, magnitude(0.5))
        assert torch.equal(copy.deepcopy(model)(X), model(X))
        with pytest.raises(RuntimeError, match=r"only supported through state_dict\(\)"):
            pickle.dumps(model)

    @pytest.mark.parametrize(("decay", "count"), [(0.0, 0), (0.1, 2)])
    def test_straight_through_saves_the_weight_for_backward_only_with_decay(self, decay: float, count: int) -> None:
        layer = nn.Linear(6, 8)
        straight_through(layer, magnitude(0.5), decay=decay)
        saved: list[torch.Size] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.shape) or tensor, lambda tensor: tensor):
            weight = layer.weight
        assert saved == [torch.Size([8, 6])] * count
        weight.sum().backward()
        assert layer.parametrizations.weight.original.grad.shape == (8, 6)
