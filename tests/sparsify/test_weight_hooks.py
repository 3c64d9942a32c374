"""Gradient hooks of weights that become sparse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from trainers import X, dense_network, gradual

import numscorch as ns
from numscorch.sparsify import (
    magnitude,
    settle,
    straight_through,
)

pytestmark = pytest.mark.usefixtures("interpreted")


class TestHooksOfWeights:
    """Hooks of dense weights expect dense gradients: they are neither dropped nor called with sparse gradients."""

    def doubled(self, weight: torch.Tensor) -> Any:
        return weight.register_hook(lambda gradient: 2 * gradient)

    def test_a_hook_added_during_pruning_is_an_error_before_the_layer_changes(self) -> None:
        model = dense_network()
        pruning = gradual(model)
        handle = self.doubled(model[2].weight)
        with pytest.raises(ns.UnsupportedError, match=r"2\.weight: has user-defined hooks.*weight\.values.*or give sparse_from=None"):
            pruning.step()
        assert (type(model[0]), type(model[2]), pruning.count) == (nn.Linear, nn.Linear, 0)
        assert bool((model[0].weight != 0).all())
        handle.remove()
        assert pruning.step()

    def test_masked_weights_keep_their_hooks(self) -> None:
        model, other = dense_network(), dense_network()
        self.doubled(model[0].weight)
        for trained in (model, other):
            gradual(trained, sparse_from=None).step()
            trained(X).sum().backward()
        torch.testing.assert_close(model[0].weight.grad, 2 * other[0].weight.grad)

    def test_settle_changes_nothing(self) -> None:
        model = dense_network()
        straight_through(model, magnitude(0.5))
        self.doubled(model[2].parametrizations.weight.original)
        before = repr(model)
        with pytest.raises(ns.UnsupportedError, match=r"settle: 2\.weight has user-defined hooks"):
            settle(model)
        assert repr(model) == before
