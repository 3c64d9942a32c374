"""Backward passes after a pattern changed."""

from __future__ import annotations

import pytest
import torch
from trainers import X, dense_network, each_dynamic, gradual, network, started

import numscorch as ns
from numscorch.sparsify import repattern, schedules

pytestmark = pytest.mark.usefixtures("interpreted")


class TestPassesOutOfOrder:
    """If a pattern changes between forward and backward, the gradient would belong to other entries."""

    @each_dynamic
    def test_torch_refuses_a_backward_pass_after_an_update(self, kind: str) -> None:
        model, _, control = started(kind, fraction=schedules.one_shot(0.5, at=0))
        model(X).sum().backward()
        model.zero_grad()
        late = model[0](X).sum()
        control.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            late.backward()
        assert model[0].weight.values.grad is None

    @pytest.mark.parametrize("density", [0.5, 1.0])
    def test_a_backward_pass_after_repattern_is_refused(self, density: float) -> None:
        layer = network()[0]
        late = layer(X).sum()
        repattern(layer.weight, torch.arange(48).reshape(8, 6) % 2 < 2 * density - 0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            late.backward()
        layer(X).sum().backward()
        assert layer.weight.values.grad.shape == layer.weight.values.shape

    def test_a_backward_pass_after_a_layer_became_sparse_is_refused(self) -> None:
        """The gradient would go to the replaced weight."""
        model = dense_network()
        pruning = gradual(model)
        late = model(X).sum()
        pruning.step()
        with pytest.raises(ns.OperandError, match=r"weight became sparse between forward and backward.*run the model again"):
            late.backward()
        model(X).sum().backward()
