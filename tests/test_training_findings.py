"""What training with sparse weights was broken by: wrong arguments, models that change under it, states of others, passes out of order."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from training import equal, stored

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import (
    SET,
    GradualPruning,
    MovementScores,
    RigL,
    SparsityPlan,
    densify_model,
    magnitude,
    movement,
    repattern,
    resparsify,
    same_pattern,
    schedules,
    settle,
    sparsify_model,
    straight_through,
    wanda,
)

pytestmark = pytest.mark.usefixtures("plain")
AT_ONCE = schedules.one_shot(0.5, at=1)
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
STARTS: dict[str, Callable[..., Any]] = {
    "SET": lambda model, optimizer, **options: SET(model, optimizer, **{"every": 1, **options}),
    "RigL": lambda model, optimizer, **options: RigL(model, optimizer, **{"every": 1, "until": 100, **options}),
    "GradualPruning": lambda model, optimizer: GradualPruning(model, optimizer, magnitude, schedules.one_shot(0.9, at=1)),
}
each = pytest.mark.parametrize("kind", STARTS)
each_dynamic = pytest.mark.parametrize("kind", ["SET", "RigL"])


def dense_network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(SparseLinear(6, 8, density=0.5), nn.ReLU(), SparseLinear(8, 3, density=0.5))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def gradual(model: Any, sparsifier: Any = magnitude, schedule: Any = AT_ONCE, **options: Any) -> GradualPruning:
    return GradualPruning(model, None, sparsifier, schedule, **{"sparse_from": 0.5, **options})


DENSE_STARTS: list[Callable[..., Any]] = [
    *(gradual, partial(gradual, sparse_from=None)),
    *(partial(straight_through, sparsifier=magnitude(0.5)), partial(resparsify, sparsifier=magnitude(0.5))),
]


class TestHooksOfWeights:
    """They expect a dense gradient, and are neither lost nor called with another one."""

    def doubled(self, weight: torch.Tensor) -> Any:
        return weight.register_hook(lambda gradient: 2 * gradient)

    def test_one_that_comes_while_pruning_runs_is_told_before_the_layer_changes(self) -> None:
        model = dense_network()
        pruning = gradual(model)
        handle = self.doubled(model[2].weight)
        with pytest.raises(ns.UnsupportedError, match=r"2\.weight: has hooks of its own.*weight\.values.*or give sparse_from=None"):
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
        with pytest.raises(ns.UnsupportedError, match=r"settle: 2\.weight has hooks of its own"):
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
        with pytest.raises(ns.OperandError, match=rf"0\.weight: {kind} trains a weight that the model has no more.*make a new {kind}"):
            control.step()
        assert control.count == 0

    def test_a_model_made_sparse_under_a_mask_too(self) -> None:
        model = dense_network()
        pruning = gradual(model, sparse_from=None)
        pruning.step()
        sparsify_model(model, SparsityPlan().weight("2.weight", magnitude(0.5)), report=None)
        with pytest.raises(ns.OperandError, match=r"2\.weight: GradualPruning trains a weight that the model has no more"):
            pruning.step()

    @each_dynamic
    def test_a_copy_of_all_is_a_model_of_its_own(self, kind: str) -> None:
        model = network()
        optimizer = sgd(model)
        copied = copy.deepcopy((model, optimizer, STARTS[kind](model, optimizer)))
        densify_model(model, optimizer)
        copied[0](X).sum().backward()
        assert copied[2].step()


class TestLayersThatCanNot:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"groups": 2}, r"1\.weight: groups=2 is not taken by SparseConv2d.*weights="),
            ({"groups": 4}, r"1\.weight: groups=4 is not taken"),
            ({"padding_mode": "reflect", "padding": 1}, r"1\.weight: padding_mode='reflect' is not taken"),
        ],
    )
    def test_a_convolution_without_a_sparse_version_is_told_at_first(self, options: Any, told: str) -> None:
        """It was found when the layer before was sparse already."""
        model = nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 4, 3, **options))
        drawn = torch.random.get_rng_state()
        with pytest.raises(ns.UnsupportedError, match=told):
            gradual(model)
        assert torch.equal(torch.random.get_rng_state(), drawn)
        gradual(model, sparse_from=None).step()
        assert int((model[1].weight == 0).sum()) == model[1].weight.numel() // 2
        straight_through(model, magnitude(0.5))
        with pytest.raises(ns.UnsupportedError, match=told):
            settle(model)
        assert all(hasattr(layer, "parametrizations") for layer in model)

    @pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of torch's older utilities
    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (nn.utils.weight_norm, r"0\.weight is normed by torch; torch\.nn\.utils\.remove_weight_norm\(module, 'weight'\)"),
            (nn.utils.spectral_norm, r"0\.weight is normed by torch; torch\.nn\.utils\.remove_spectral_norm"),
            (partial(prune.l1_unstructured, name="weight", amount=0.5), r"0\.weight is pruned by torch; .*prune\.remove"),
        ],
        ids=["weight_norm", "spectral_norm", "prune"],
    )
    @pytest.mark.parametrize("names", [None, "0.weight", "*", "0.weight_*"])
    def test_weights_that_torch_computes_anew_in_every_call(self, change: Any, told: str, names: str | None) -> None:
        """The layer was left out without a word, or its parts were pruned."""
        model = dense_network()
        change(model[0])
        before = copy.deepcopy(model.state_dict())
        for call in (
            gradual,
            partial(gradual, sparse_from=None),
            *(partial(own, sparsifier=magnitude(0.5)) for own in (straight_through, resparsify)),
        ):
            with pytest.raises(ns.UnsupportedError, match=told):
                call(model, weights=names)
        assert equal(dict(model.state_dict()), dict(before))

    def test_weights_without_values(self) -> None:
        meta = dense_network().to("meta")
        for call in (
            gradual,
            partial(gradual, sparse_from=None),
            *(partial(own, sparsifier=magnitude(0.5)) for own in (straight_through, resparsify)),
        ):
            with pytest.raises(ns.UnsupportedError, match=r"0\.weight: is on the meta device, and has no values: model\.to_empty"):
                call(meta)
        for start in STARTS.values():
            with pytest.raises(ns.UnsupportedError, match=r"0\.weight: is on the meta device"):
                start(network().to("meta"), None)

    @pytest.mark.parametrize("sparse_from", [0.5, None])
    def test_a_frozen_weight_that_is_named_is_pruned_and_stays_frozen(self, sparse_from: float | None) -> None:
        """As torch.nn.utils.prune has it."""
        model = dense_network()
        model[0].weight.requires_grad_(False)
        gradual(model, weights="0.weight", sparse_from=sparse_from).step()
        assert not model[0].weight.requires_grad
        weight = model[0].weight if sparse_from is None else model[0].weight.to_dense()
        assert int((weight == 0).sum()) == 24


class TestArguments:
    @pytest.mark.parametrize(
        ("call", "error", "told"),
        [
            (
                lambda: gradual(dense_network(), magnitude(0.9)),
                ns.OperandError,
                r"no sparsifier of a fraction, but is one",
            ),
            (lambda: gradual(dense_network(), {}), ns.ExpressionError, r"sparsifier=\{\}.*nothing would be pruned"),
            (lambda: gradual(dense_network(), schedule=0.9), ns.OperandError, r"schedule=0\.9.*give schedules\.one_shot"),
            (lambda: gradual(dense_network(), weights=[]), ns.ExpressionError, r"weights=\[\] names no weight: leave it out"),
            (lambda: gradual(dense_network(), weights=5), ns.OperandError, r"weights=5: 5 is no name"),
            (lambda: straight_through(dense_network(), magnitude(0.5), weights=[]), ns.ExpressionError, r"weights=\[\] names no weight"),
            (lambda: straight_through(dense_network(), magnitude(0.5), decay="x"), ns.SizeError, "decay=x"),  # type: ignore[arg-type]
            (lambda: SET(network(), None, weights=[]), ns.ExpressionError, r"weights=\[\] names no weight"),
            (lambda: SET(network(), None, weights=[0]), ns.OperandError, r"0 is no name"),  # type: ignore[list-item]
            (lambda: SET(network(), None, seed=1.5), ns.OperandError, r"SET\(seed=1\.5\): a seed is a whole number"),  # type: ignore[arg-type]
            (lambda: SET(network(), None, fraction=1.5), ns.SizeError, r"SET\(fraction=1\.5\).*between 0 and 1"),
            (lambda: SET(network(), None, until=-1), ns.SizeError, r"SET\(until=-1\).*no number of steps"),
            (lambda: RigL(network(), None, until=0), ns.SizeError, r"RigL\(until=0\).*no number of steps"),
            (lambda: RigL(network(), None, until=0, fraction=AT_ONCE), ns.SizeError, r"RigL\(until=0\)"),
            (lambda: RigL(network(), None, until=None), ns.SizeError, r"RigL\(until=None\)"),  # type: ignore[arg-type]
        ],
    )
    def test_what_is_none_is_told_at_once(self, call: Callable[[], Any], error: type[Exception], told: str) -> None:
        with pytest.raises(error, match=told):
            call()

    @pytest.mark.parametrize("share", [None, float("nan"), 1.5, -0.5, "half", torch.tensor(0.5)], ids=str)
    @each
    def test_a_schedule_that_returns_no_share(self, kind: str, share: Any) -> None:
        model = network()
        optimizer = sgd(model)
        if kind == "GradualPruning":
            control: Any = GradualPruning(model, optimizer, magnitude, lambda step: share)
        else:
            control = STARTS[kind](model, optimizer, fraction=lambda step: share)
        model(X).sum().backward()
        was = stored(model[0].weight)
        with pytest.raises(ns.SizeError, match=r"returned .* at step 1: a schedule returns a share, a number between 0 and 1"):
            control.step()
        assert torch.equal(stored(model[0].weight), was)
        assert control.count == 0

    def test_a_factory_that_makes_none(self) -> None:
        pruning = gradual(dense_network(), lambda fraction: fraction)
        with pytest.raises(ns.OperandError, match=r"0\.weight: <lambda> made 0\.5 of 0\.5, which is no sparsifier"):
            pruning.step()

    def test_a_budget_that_returns_no_shares(self) -> None:
        with pytest.raises(ns.OperandError, match=r"the budget of weight\(\"\*\.weight\"\) returned None: return a dict"):
            sparsify_model(dense_network(), SparsityPlan().weights("*.weight", lambda weights: None))  # type: ignore[arg-type, return-value]


class TestStates:
    @each
    def test_those_of_others_are_told_by_what_they_lack_and_have(self, kind: str) -> None:
        model = network()
        control = STARTS[kind](model, None)
        before = copy.deepcopy(control.state_dict())
        others = [start(network(), None).state_dict() for name, start in STARTS.items() if name != kind]
        for state in (*others, {}, {"step": 1}, model.state_dict()):
            with pytest.raises(ns.OperandError, match=rf"this is no state of {kind}: it (lacks|has) .*give what its state_dict\(\) made"):
                control.load_state_dict(state)
        with pytest.raises(ns.OperandError, match=rf"this is no state of {kind}, but a NoneType"):
            control.load_state_dict(None)
        assert equal(control.state_dict(), before)

    @each
    def test_damaged_ones_change_nothing(self, kind: str) -> None:
        model = network()
        control = STARTS[kind](model, None)
        before = copy.deepcopy(control.state_dict())
        other = STARTS[kind](network(), None)
        other.model[0](X).sum().backward()
        other.step()
        good = other.state_dict()
        last = good["patterns"]["2.weight"]
        empty, short = {"shape": (3, 8)}, {**last, "arrays": last["arrays"][:1]}
        for damaged, told in (
            ({**good, "step": "many"}, "counts 'many' steps"),
            (
                {**good, "patterns": {**good["patterns"], "2.weight": empty}},
                "no state of a weight's pattern: it lacks arrays, format",
            ),
            ({**good, "patterns": {**good["patterns"], "2.weight": short}}, "1 index arrays"),
            *([({**good, "generator": 1}, "for a generator's")] if kind == "SET" else []),
        ):
            with pytest.raises((ns.OperandError, ns.FormatError), match=told):
                control.load_state_dict(damaged)
            assert equal(control.state_dict(), before)


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
