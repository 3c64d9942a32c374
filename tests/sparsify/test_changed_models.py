"""Models that become dense or sparse, or are copied, during sparse training."""

from __future__ import annotations

import copy

import pytest
from trainers import X, dense_network, each, each_dynamic, gradual, started

import numscorch as ns
from numscorch.sparsify import SparsityPlan, densify_model, magnitude, sparsify_model

pytestmark = pytest.mark.usefixtures("interpreted")


class TestModelsThatChange:
    @each
    def test_steps_after_densify_model_are_errors(self, kind: str) -> None:
        """Further steps would change weights that no longer belong to the model."""
        model, optimizer, control = started(kind)
        densify_model(model, optimizer)
        with pytest.raises(ns.OperandError, match=rf"0\.weight: the model no longer has the weight that {kind} trains.*make a new {kind}"):
            control.step()
        assert control.count == 0

    def test_steps_after_sparsify_model_are_errors(self) -> None:
        model = dense_network()
        pruning = gradual(model, sparse_from=None)
        pruning.step()
        sparsify_model(model, SparsityPlan().weight("2.weight", magnitude(0.5)), report=None)
        with pytest.raises(ns.OperandError, match=r"2\.weight: the model no longer has the weight that GradualPruning trains"):
            pruning.step()

    @each_dynamic
    def test_a_copy_of_model_optimizer_and_trainer_is_independent(self, kind: str) -> None:
        model, optimizer, control = started(kind)
        copied = copy.deepcopy((model, optimizer, control))
        densify_model(model, optimizer)
        copied[0](X).sum().backward()
        assert copied[2].step()
