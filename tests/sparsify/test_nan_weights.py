"""NaN among the weights of sparse training."""

from __future__ import annotations

import pytest
import torch
from trainers import X, dense_network, each, started
from training_cases import equal, stored

import numscorch as ns
from numscorch.sparsify import magnitude, settle, straight_through

pytestmark = pytest.mark.usefixtures("interpreted")


class TestNaN:
    @each
    def test_the_error_names_the_layer_and_nothing_changes(self, kind: str) -> None:
        """Magnitudes with NaN have no order. RigL does not treat NaN gradients as overflow."""
        model, optimizer, control = started(kind)
        model(X).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model[2].weight.values[1] = torch.nan
        before, count = [stored(model[at].weight.tensor) for at in (0, 2)], control.count
        state = control.state_dict()
        with pytest.raises(ns.OperandError, match=r"2\.weight: 1 of 12 values are NaN.*nan_to_num_"):
            control.step()
        assert all(torch.equal(stored(model[at].weight.tensor), mask) for at, mask in zip((0, 2), before, strict=True))
        assert control.count == count
        assert equal(control.state_dict(), state)
        model[2].weight.values.data.nan_to_num_()
        control.step()
        assert control.count == count + 1

    def test_settle_changes_nothing(self) -> None:
        model = dense_network()
        straight_through(model, magnitude(0.5))
        with torch.no_grad():
            model[2].parametrizations.weight.original[0, 0] = torch.nan
        with pytest.raises(ns.OperandError, match="NaN"):
            settle(model)
        assert all(hasattr(model[at], "parametrizations") for at in (0, 2))
