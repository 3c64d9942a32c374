"""What training with sparse weights broke on: hooks, NaN, models that change under it, passes out of order, programs compiled anew."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from trainers import STARTS, X, dense_network, each, each_dynamic, gradual, network, sgd
from training_cases import equal, stored

import numscorch as ns
from numscorch.sparsify import (
    MovementScores,
    SparsityPlan,
    densify_model,
    magnitude,
    movement,
    repattern,
    same_pattern,
    schedules,
    settle,
    sparsify_model,
    straight_through,
    wanda,
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


class TestNaN:
    @each
    def test_one_is_told_with_its_layer_and_nothing_changes(self, kind: str) -> None:
        """Dynamic training ordered it somewhere, and RigL put all changes off since its gradients weren't finite either."""
        model = network()
        optimizer = sgd(model)
        control = STARTS[kind](model, optimizer)
        model(X).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model[2].weight.values[1] = torch.nan
        was, count = [stored(model[at].weight.tensor) for at in (0, 2)], control.count
        state = control.state_dict()
        with pytest.raises(ns.OperandError, match=r"2\.weight: 1 of 12 values are NaN.*nan_to_num_"):
            control.step()
        assert all(torch.equal(stored(model[at].weight.tensor), own) for at, own in zip((0, 2), was, strict=True))
        assert control.count == count
        assert equal(control.state_dict(), state)
        model[2].weight.values.data.nan_to_num_()
        control.step()
        assert control.count == count + 1

    def test_settle_leaves_all_as_it_was(self) -> None:
        model = dense_network()
        straight_through(model, magnitude(0.5))
        with torch.no_grad():
            model[2].parametrizations.weight.original[0, 0] = torch.nan
        with pytest.raises(ns.OperandError, match="NaN"):
            settle(model)
        assert all(hasattr(model[at], "parametrizations") for at in (0, 2))


class TestModelsThatChange:
    @each
    def test_a_model_made_dense_ends_training_with_an_error(self, kind: str) -> None:
        """It went on as if nothing were, and changed weights that no model had."""
        model = network()
        optimizer = sgd(model)
        control = STARTS[kind](model, optimizer)
        densify_model(model, optimizer)
        with pytest.raises(ns.OperandError, match=rf"0\.weight: the model no longer has the weight that {kind} trains.*make a new {kind}"):
            control.step()
        assert control.count == 0

    def test_a_model_made_sparse_under_a_mask_too(self) -> None:
        model = dense_network()
        pruning = gradual(model, sparse_from=None)
        pruning.step()
        sparsify_model(model, SparsityPlan().weight("2.weight", magnitude(0.5)), report=None)
        with pytest.raises(ns.OperandError, match=r"2\.weight: the model no longer has the weight that GradualPruning trains"):
            pruning.step()

    @each_dynamic
    def test_a_copy_of_all_is_a_model_of_its_own(self, kind: str) -> None:
        model = network()
        optimizer = sgd(model)
        copied = copy.deepcopy((model, optimizer, STARTS[kind](model, optimizer)))
        densify_model(model, optimizer)
        copied[0](X).sum().backward()
        assert copied[2].step()


class TestValues:
    """Sparsifiers are values: equal content is equal, and models that use them can be copied and saved."""

    @pytest.mark.parametrize(
        ("own", "other"),
        [
            (movement(0.5, torch.ones(2, 2)), movement(0.5, torch.zeros(2, 2))),
            (wanda(0.5, torch.ones(3, 2)), wanda(0.5, torch.zeros(3, 2))),
            (same_pattern(torch.eye(2) > 0), same_pattern(torch.ones(2, 2) > 0)),
            (same_pattern(ns.from_torch(torch.eye(2))), same_pattern(ns.from_torch(torch.ones(2, 2)))),
        ],
        ids=repr,
    )
    def test_equal_content_is_equal(self, own: Any, other: Any) -> None:
        again = pickle.loads(pickle.dumps(own))
        assert again == own
        assert hash(again) == hash(own)
        assert own != other
        assert own != 0.5

    def test_recorded_scores_are_compared_as_they_are(self) -> None:
        weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        first, second = (movement(0.5, MovementScores(own)) for own in weights)
        assert first == second
        weights[0].sum().backward()
        assert first != second

    def test_a_parametrized_model_is_copied_and_its_state_saved(self) -> None:
        """Torch itself refuses to pickle it, and says what to save."""
        model = dense_network()
        straight_through(model, magnitude(0.5))
        assert torch.equal(copy.deepcopy(model)(X), model(X))
        with pytest.raises(RuntimeError, match=r"only supported through state_dict\(\)"):
            pickle.dumps(model)

    @pytest.mark.parametrize(("decay", "count"), [(0.0, 0), (0.1, 2)])
    def test_a_pass_straight_through_keeps_the_weight_only_for_its_decay(self, decay: float, count: int) -> None:
        layer = nn.Linear(6, 8)
        straight_through(layer, magnitude(0.5), decay=decay)
        kept: list[torch.Size] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape) or tensor, lambda tensor: tensor):
            made = layer.weight
        assert kept == [torch.Size([8, 6])] * count
        made.sum().backward()
        assert layer.parametrizations.weight.original.grad.shape == (8, 6)


class TestPassesOutOfOrder:
    """A pattern that changes between forward and backward: the gradient would be one of other places."""

    @each_dynamic
    def test_torch_refuses_a_backward_pass_after_an_update(self, kind: str) -> None:
        model = network()
        optimizer = sgd(model)
        control = STARTS[kind](model, optimizer, fraction=schedules.one_shot(0.5, at=0))
        model(X).sum().backward()
        model.zero_grad()
        late = model[0](X).sum()
        control.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            late.backward()
        assert model[0].weight.values.grad is None

    @pytest.mark.parametrize("density", [0.5, 1.0])
    def test_and_after_any_other_change_of_a_pattern(self, density: float) -> None:
        layer = network()[0]
        late = layer(X).sum()
        repattern(layer.weight, torch.arange(48).reshape(8, 6) % 2 < 2 * density - 0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            late.backward()
        layer(X).sum().backward()
        assert layer.weight.values.grad.shape == layer.weight.values.shape

    def test_and_when_a_layer_became_sparse(self) -> None:
        """The gradient arrived at a weight that no model had."""
        model = dense_network()
        pruning = gradual(model)
        late = model(X).sum()
        pruning.step()
        with pytest.raises(ns.OperandError, match=r"weight became sparse between forward and backward.*run the model again"):
            late.backward()
        model(X).sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
@each_dynamic
def test_a_compiled_model_stays_compiled_while_patterns_change(kind: str) -> None:
    """Each pattern was another program, until torch's limit was met; RigL's are two, as every step before a change is watched."""
    model, twin = network(), network()
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    for own, called in ((model, torch.compile(model, backend="aot_eager", fullgraph=True)), (twin, twin)):
        optimizer = sgd(own)
        control = STARTS[kind](own, optimizer, every=2, fraction=schedules.one_shot(0.5, at=0))
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
