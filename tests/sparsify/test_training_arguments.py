"""Errors of sparse training for unsupported layers, invalid arguments and wrong states; they change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from trainers import AT_ONCE, STARTS, X, dense_network, each, gradual, network, sgd
from training_cases import equal, stored

import numscorch as ns
from numscorch.sparsify import SET, GradualPruning, RigL, SparsityPlan, magnitude, resparsify, settle, sparsify_model, straight_through

pytestmark = pytest.mark.usefixtures("interpreted")


class TestUnsupportedLayers:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"groups": 2}, r"1\.weight: groups=2 is not supported by SparseConv2d.*weights="),
            ({"groups": 4}, r"1\.weight: groups=4 is not supported"),
            ({"padding_mode": "reflect", "padding": 1}, r"1\.weight: padding_mode='reflect' is not supported"),
        ],
    )
    def test_a_convolution_without_a_sparse_version_is_refused_first(self, options: Any, message: str) -> None:
        """The error comes before any other layer becomes sparse."""
        model = nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 4, 3, **options))
        random_state = torch.random.get_rng_state()
        with pytest.raises(ns.UnsupportedError, match=message):
            gradual(model)
        assert torch.equal(torch.random.get_rng_state(), random_state)
        gradual(model, sparse_from=None).step()
        assert int((model[1].weight == 0).sum()) == model[1].weight.numel() // 2
        straight_through(model, magnitude(0.5))
        with pytest.raises(ns.UnsupportedError, match=message):
            settle(model)
        assert all(hasattr(layer, "parametrizations") for layer in model)

    @pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of torch's older utilities
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (nn.utils.weight_norm, r"0\.weight_g: is normalized by torch; torch\.nn\.utils\.remove_weight_norm\(module, 'weight'\)"),
            (nn.utils.spectral_norm, r"0\.weight_orig: is normalized by torch; torch\.nn\.utils\.remove_spectral_norm"),
            (partial(prune.l1_unstructured, name="weight", amount=0.5), r"0\.weight_orig: is pruned by torch; .*prune\.remove"),
        ],
        ids=["weight_norm", "spectral_norm", "prune"],
    )
    @pytest.mark.parametrize("names", [None, "0.weight", "*", "0.weight_*"])
    def test_weights_that_torch_recomputes_in_every_call_are_refused(self, change: Any, message: str, names: str | None) -> None:
        """The layer is not skipped silently, and its parts are not pruned."""
        model = dense_network()
        change(model[0])
        before = copy.deepcopy(model.state_dict())
        for call in (
            gradual,
            partial(gradual, sparse_from=None),
            *(partial(function, sparsifier=magnitude(0.5)) for function in (straight_through, resparsify)),
        ):
            with pytest.raises(ns.UnsupportedError, match=message):
                call(model, weights=names)
        assert equal(dict(model.state_dict()), dict(before))

    def test_weights_without_values(self) -> None:
        meta = dense_network().to("meta")
        for call in (
            gradual,
            partial(gradual, sparse_from=None),
            *(partial(function, sparsifier=magnitude(0.5)) for function in (straight_through, resparsify)),
        ):
            with pytest.raises(ns.UnsupportedError, match=r"0\.weight: is on the meta device, and has no values: call model\.to_empty"):
                call(meta)
        for start in STARTS.values():
            with pytest.raises(ns.UnsupportedError, match=r"0\.weight: is on the meta device"):
                start(network().to("meta"), None)

    @pytest.mark.parametrize("sparse_from", [0.5, None])
    def test_a_frozen_weight_that_is_named_is_pruned_and_stays_frozen(self, sparse_from: float | None) -> None:
        """torch.nn.utils.prune does the same."""
        model = dense_network()
        model[0].weight.requires_grad_(False)
        gradual(model, weights="0.weight", sparse_from=sparse_from).step()
        assert not model[0].weight.requires_grad
        weight = model[0].weight if sparse_from is None else model[0].weight.to_dense()
        assert int((weight == 0).sum()) == 24


class TestArguments:
    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (
                lambda: gradual(dense_network(), magnitude(0.9)),
                ns.OperandError,
                r"is a sparsifier already: pass a function",
            ),
            (lambda: gradual(dense_network(), {}), ns.ExpressionError, r"sparsifier=\{\}.*nothing would be pruned"),
            (
                lambda: gradual(dense_network(), AT_ONCE, magnitude),
                ns.OperandError,
                r"schedule=magnitude\): a schedule, the argument after",
            ),
            (lambda: gradual(dense_network(), schedule=0.9), ns.OperandError, r"schedule=0\.9.*give schedules\.one_shot"),
            (lambda: gradual(dense_network(), weights=[]), ns.ExpressionError, r"weights=\[\] names no weight: leave it out"),
            (lambda: gradual(dense_network(), weights=5), ns.OperandError, r"weights=5: 5 is not a name"),
            (lambda: straight_through(dense_network(), magnitude(0.5), weights=[]), ns.ExpressionError, r"weights=\[\] names no weight"),
            (lambda: straight_through(dense_network(), magnitude(0.5), decay="x"), ns.SizeError, "decay=x"),  # type: ignore[arg-type]
            (lambda: SET(network(), None, weights=[]), ns.ExpressionError, r"weights=\[\] names no weight"),
            (lambda: SET(network(), None, weights=[0]), ns.OperandError, r"0 is not a name"),  # type: ignore[list-item]
            (lambda: SET(network(), None, seed=1.5), ns.OperandError, r"SET\(seed=1\.5\): a seed has to be an integer"),  # type: ignore[arg-type]
            (lambda: SET(network(), None, fraction=1.5), ns.SizeError, r"SET\(fraction=1\.5\).*between 0 and 1"),
            (lambda: SET(network(), None, until=-1), ns.SizeError, r"SET\(until=-1\).*not a number of steps"),
            (lambda: RigL(network(), None, until=0), ns.SizeError, r"RigL\(until=0\).*not a number of steps"),
            (lambda: RigL(network(), None, until=0, fraction=AT_ONCE), ns.SizeError, r"RigL\(until=0\)"),
            (lambda: RigL(network(), None, until=None), ns.SizeError, r"RigL\(until=None\)"),  # type: ignore[arg-type]
        ],
    )
    def test_invalid_arguments_are_refused_at_once(self, call: Callable[[], Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call()

    @pytest.mark.parametrize("share", [None, float("nan"), 1.5, -0.5, "half", torch.tensor(0.5)], ids=str)
    @each
    def test_a_schedule_that_returns_no_share_is_refused(self, kind: str, share: Any) -> None:
        model = network()
        optimizer = sgd(model)
        if kind == "GradualPruning":
            control: Any = GradualPruning(model, optimizer, magnitude, lambda step: share)
        else:
            control = STARTS[kind](model, optimizer, fraction=lambda step: share)
        model(X).sum().backward()
        before = stored(model[0].weight)
        with pytest.raises(ns.SizeError, match=r"returned .* at step 1: a schedule returns a share, a number between 0 and 1"):
            control.step()
        assert torch.equal(stored(model[0].weight), before)
        assert control.count == 0

    def test_a_factory_that_returns_no_sparsifier_is_refused(self) -> None:
        pruning = gradual(dense_network(), lambda fraction: fraction)
        with pytest.raises(ns.OperandError, match=r"0\.weight: <lambda> returned 0\.5 for 0\.5, not a sparsifier"):
            pruning.step()

    def test_a_budget_that_returns_no_shares_is_refused(self) -> None:
        with pytest.raises(ns.OperandError, match=r"the budget of weight\(\"\*\.weight\"\) returned None: return a dict"):
            sparsify_model(dense_network(), SparsityPlan().weights("*.weight", lambda weights: None))  # type: ignore[arg-type, return-value]


class TestStates:
    @each
    def test_states_of_other_classes_are_refused_by_their_keys(self, kind: str) -> None:
        model = network()
        control = STARTS[kind](model, None)
        before = copy.deepcopy(control.state_dict())
        others = [start(network(), None).state_dict() for name, start in STARTS.items() if name != kind]
        for state in (*others, {}, {"step": 1}, model.state_dict()):
            with pytest.raises(
                ns.OperandError, match=rf"this is not a state of {kind}: it (lacks|has) .*give the result of its state_dict\(\)"
            ):
                control.load_state_dict(state)
        with pytest.raises(ns.OperandError, match=rf"this is not a state of {kind}, but a NoneType"):
            control.load_state_dict(None)
        assert equal(control.state_dict(), before)

    @each
    def test_damaged_states_change_nothing(self, kind: str) -> None:
        model = network()
        control = STARTS[kind](model, None)
        before = copy.deepcopy(control.state_dict())
        other = STARTS[kind](network(), None)
        other.model[0](X).sum().backward()
        other.step()
        good = other.state_dict()
        last = good["patterns"]["2.weight"]
        empty, short = {"shape": (3, 8)}, {**last, "arrays": last["arrays"][:1]}
        for damaged, message in (
            ({**good, "step": "many"}, "has 'many' as its count of steps"),
            (
                {**good, "patterns": {**good["patterns"], "2.weight": empty}},
                "not a state of a weight's pattern: it lacks arrays, format",
            ),
            ({**good, "patterns": {**good["patterns"], "2.weight": short}}, "1 index arrays"),
            *([({**good, "generator": 1}, "as the state of its generator")] if kind == "SET" else []),
        ):
            with pytest.raises((ns.OperandError, ns.FormatError), match=message):
                control.load_state_dict(damaged)
            assert equal(control.state_dict(), before)
