"""Dynamic sparse training of compiled models."""

from __future__ import annotations

import pytest
import torch
from trainers import STARTS, X, each_dynamic, network, sgd
from training_cases import stored

from numscorch.sparsify import (
    schedules,
)

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
@each_dynamic
def test_a_compiled_model_stays_compiled_while_patterns_change(kind: str) -> None:
    """SET compiles one program and RigL two, with and without dense gradients; new patterns compile nothing."""
    model, twin = network(), network()
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    for original, called in ((model, torch.compile(model, backend="aot_eager", fullgraph=True)), (twin, twin)):
        optimizer = sgd(original)
        control = STARTS[kind](original, optimizer, every=2, fraction=schedules.one_shot(0.5, at=0))
        for _ in range(24):
            optimizer.zero_grad()
            called(X).square().sum().backward()
            optimizer.step()
            control.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (1 if kind == "SET" else 2)
    for at in (0, 2):
        assert torch.equal(stored(model[at].weight), stored(twin[at].weight))
        torch.testing.assert_close(model[at].weight.values, twin[at].weight.values)
    torch.compiler.reset()
