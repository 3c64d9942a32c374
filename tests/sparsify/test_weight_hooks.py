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

pytestmark = pytest.mark.usefixtures("plain")


class TestHooksOfWeights:
    """They expect a dense gradient, and are neither lost nor called with another one."""

    def doubled(self, weight: torch.Tensor) -> Any:
        return weight.register_hook(lambda gradient: 2 * gradient)

    def test_one_that_comes_while_pruning_runs_is_told_before_the_layer_changes(self) -> None:
        model = dense_network()
        pruning = gradual(model)
        handle = self.doubled(model[2].weight)
        with pytest.raises(ns.UnsupportedError, match=r"2\.weight: has user-defined hooks.*weight\.values.*or give sparse_from=None"):
            pruning.step()
        assert (type(model[0]), type(model[2]), pruning.count) == (nn.Linear, nn.Linear, 0)
        assert bool((model[0].weight != 0).all())
        handle.remove()
        assert pruning.step()

    def test_masked_weights_keep_theirs(self) -> None:
        model, other = dense_network(), dense_network()
        self.doubled(model[0].weight)
        for own in (model, other):
            gradual(own, sparse_from=None).step()
            own(X).sum().backward()
        torch.testing.assert_close(model[0].weight.grad, 2 * other[0].weight.grad)

    def test_settle_leaves_all_as_it_was(self) -> None:
        model = dense_network()
        straight_through(model, magnitude(0.5))
        self.doubled(model[2].parametrizations.weight.original)
        before = repr(model)
        with pytest.raises(ns.UnsupportedError, match=r"settle: 2\.weight has user-defined hooks"):
            settle(model)
        assert repr(model) == before
