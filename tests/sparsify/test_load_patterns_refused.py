"""Errors of load_patterns, which leave the model unchanged, and errors of load_state_dict that recommend load_patterns."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from loading_cases import perceptron, snapshot, sparse
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel
from trainers import X, dense_network, gradual, sgd
from training_cases import equal

import numscorch as ns
from numscorch.nn import SparseConv2d, SparseLinear
from numscorch.sparsify import GradualPruning, load_patterns, magnitude, schedules

pytestmark = pytest.mark.usefixtures("interpreted")


def cut(state: Any, name: str, by: int = 1) -> None:
    state[name] = state[name][:-by]


def corrupt_coordinates(state: Any) -> None:
    state["2.weight.level1_crd"] = state["2.weight.level1_crd"] + 100


def put(state: Any, name: str, value: Any) -> None:
    state[name] = value


def set_metadata(state: Any, **entries: Any) -> None:
    state._metadata["2.weight"] |= entries


class TestErrors:
    """The conflict is in the last layer; the first layer must not change before the error."""

    @pytest.mark.parametrize(
        ("change", "kind", "message"),
        [
            (
                partial(cut, name="2.weight.values"),
                ns.SizeError,
                r"2\.weight: has 47 values in the state, but index arrays for 48: was it truncated",
            ),
            (partial(cut, name="2.weight.level1_crd"), ns.FormatError, r"2\.weight: "),
            (corrupt_coordinates, ns.FormatError, r"2\.weight: "),
            (
                lambda state: state.pop("2.weight.level1_pos"),
                ns.OperandError,
                r"2\.weight: the state has index arrays level1_crd, but CSR has",
            ),
            (
                partial(put, name="2.weight.values", value=None),
                ns.OperandError,
                r"2\.weight\.values is not a strided tensor .*, but NoneType",
            ),
            (
                partial(put, name="2.weight.level1_pos", value=[0]),
                ns.OperandError,
                r"2\.weight\.level1_pos is not a strided tensor .*, but list",
            ),
            (
                partial(put, name="2.weight.level1_crd", value=torch.empty(48, dtype=torch.int32, device="meta")),
                ns.OperandError,
                r"2\.weight\.level1_crd is not a strided tensor on the CPU in the state, but torch.strided on meta",
            ),
            (
                partial(put, name="2.weight.level1_pos", value=torch.zeros(5)),
                ns.FormatError,
                r"index arrays of CSR are .*, not torch.float32",
            ),
            (partial(set_metadata, shape=5), ns.SizeError, r"2\.weight: has shape 5 in the state"),
            (lambda state: state._metadata.update({"2.weight": None}), ns.OperandError, r"metadata of '2\.weight' is not a dict, but None"),
            (lambda state: setattr(state, "_metadata", [1]), ns.OperandError, r"metadata is not a dict of modules, but \[1\]"),
        ],
    )
    @pytest.mark.parametrize("make", [perceptron, lambda: sparse(perceptron(), magnitude(0.9))], ids=["dense", "sparse"])
    def test_damaged_states(self, make: Any, change: Any, kind: Any, message: str) -> None:
        model, state = make(), sparse(perceptron(1)).state_dict()
        change(state)
        before = snapshot(model)
        with pytest.raises(kind, match=message):
            load_patterns(model, state)
        assert equal(snapshot(model), before)

    @pytest.mark.parametrize("make", [perceptron, lambda: sparse(perceptron(), magnitude(0.9))], ids=["dense", "sparse"])
    def test_other_sizes_and_names(self, make: Any) -> None:
        model = make()
        before = snapshot(model)
        wide = sparse(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 5)))
        with pytest.raises(ns.SizeError, match=r"2\.weight: has shape \(5, 24\) in the state, but \(4, 24\) in the model: build"):
            load_patterns(model, wide.state_dict())
        named = sparse(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.ReLU(), nn.Linear(24, 4)))
        with pytest.raises(
            ns.OperandError, match=r"the state has a sparse weight 3\.weight, which the model lacks: did you mean '2\.weight'"
        ):
            load_patterns(model, named.state_dict())
        with pytest.raises(ns.OperandError, match=r"a sparse weight more\.0\.weight, which the model lacks: did you mean '0\.weight'"):
            load_patterns(model, {**sparse(perceptron(1)).state_dict(), "more.0.weight.values": X, "more.0.weight.level1_crd": X})
        assert equal(snapshot(model), before)

    @pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
    @pytest.mark.parametrize("make", [perceptron, lambda: sparse(perceptron(), magnitude(0.9))], ids=["dense", "sparse"])
    def test_the_states_of_wrapped_models(self, make: Any, prefix: str) -> None:
        model, plain = make(), sparse(perceptron(1)).state_dict()
        state = sparse(nn.ModuleDict({prefix[:-1]: perceptron(1)})).state_dict()
        with pytest.raises(
            ns.OperandError,
            match=rf"begin with '{prefix}'.*: call torch\.nn\.modules\.utils\.{consume_prefix_in_state_dict_if_present.__name__}",
        ):
            load_patterns(model, state)
        with pytest.raises(ns.OperandError, match=rf"the model's names begin with '{prefix}'.*: give model\.{prefix[:-1]}"):
            load_patterns(nn.ModuleDict({prefix[:-1]: perceptron(2)}), plain)
        consume_prefix_in_state_dict_if_present(state, prefix)
        assert load_patterns(model, state).load_state_dict(state) == ([], [])

    def test_weights_that_are_dense_in_the_state_or_missing(self) -> None:
        model = sparse(perceptron(), magnitude(0.9))
        before = snapshot(model)
        with pytest.raises(ns.UnsupportedError, match=r"2\.weight is dense in the state, but sparse in the model: .*densify_model"):
            load_patterns(model, sparse(perceptron(1), names="0.weight").state_dict())
        state = sparse(nn.Sequential(nn.Linear(8, 24))).state_dict()
        with pytest.raises(ns.OperandError, match=r"the state has no 2\.weight\.values, but the model has SparseTensor"):
            load_patterns(model, state)
        assert equal(snapshot(model), before)

    def test_layers_that_can_not_become_sparse(self) -> None:
        model, state = perceptron(), sparse(perceptron(1)).state_dict()
        model[2].weight.register_hook(lambda gradient: gradient)
        before = snapshot(model)
        with pytest.raises(ns.UnsupportedError, match=r"2\.weight: is sparse in the state, .*has user-defined hooks"):
            load_patterns(model, state)
        groups = nn.Sequential(nn.Linear(8, 24), nn.Conv2d(4, 4, 3, groups=2))
        sparse_groups = nn.Sequential(SparseLinear(8, 24, density=0.5), SparseConv2d(2, 4, 3, density=0.5))
        with pytest.raises(ns.UnsupportedError, match=r"1\.weight: groups=2"):
            load_patterns(groups, sparse_groups.state_dict())
        assert type(groups[0]) is nn.Linear
        assert equal(snapshot(model), before)

    def test_a_wrapped_model_is_refused(self) -> None:
        inner, state = perceptron(), sparse(perceptron(1)).state_dict()
        wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
        nn.Module.__init__(wrapped)
        wrapped.module = inner
        with pytest.raises(ns.UnsupportedError, match=r"pass the wrapped model, its \.module, and wrap the result"):
            load_patterns(wrapped, state)
        assert type(inner[0]) is nn.Linear

    def test_layers_that_have_no_size_or_no_values_yet(self) -> None:
        state = sparse(nn.Sequential(nn.Linear(8, 24))).state_dict()
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight: has no size yet; run the model once"):
            load_patterns(nn.Sequential(nn.LazyLinear(24)), state)
        with torch.device("meta"):
            empty = perceptron()
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight: .*meta device.*to_empty"):
            load_patterns(empty, state)

    def test_other_objects_than_models_and_states_are_refused(self) -> None:
        model, state = perceptron(), sparse(perceptron(1)).state_dict()
        with pytest.raises(ns.OperandError, match="takes a model, not Tensor"):
            load_patterns(X, state)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match="takes a model, not SparseParameter: give the module that has"):
            load_patterns(sparse(perceptron())[0].weight, state)
        with pytest.raises(ns.OperandError, match=r"takes a model's state, not Sequential: give the result of its state_dict\(\)"):
            load_patterns(model, model)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match=r"a dict of states \('model', 'optimizer'\), not one of .*: give state\['model'\]"):
            load_patterns(model, {"model": state, "optimizer": sgd(model).state_dict()})

    def test_a_dense_state_of_a_dense_model_changes_nothing(self) -> None:
        model = perceptron()
        before = snapshot(model)
        assert load_patterns(model, perceptron(1).state_dict()) is model
        assert equal(snapshot(model), before)


class TestOrderOfLoading:
    """GradualPruning's state is loaded first; the errors of other orders say so."""

    def pruned(self) -> Any:
        model = dense_network()
        optimizer = sgd(model)
        pruning = GradualPruning(model, optimizer, magnitude, schedules.one_shot(0.5, at=1), sparse_from=0.5)
        model(X).sum().backward()
        optimizer.step()
        pruning.step()
        return model, optimizer, pruning

    def fresh(self) -> Any:
        model = dense_network()
        optimizer = sgd(model)
        return model, optimizer, GradualPruning(model, optimizer, magnitude, schedules.one_shot(0.5, at=1), sparse_from=0.5)

    def test_the_models_state_before_the_prunings(self) -> None:
        source, (model, optimizer, pruning) = self.pruned(), self.fresh()
        message = r"0\.weight \(sparse in the state: load GradualPruning's state first, or call ns\.sparsify\.load_patterns"
        with pytest.raises(RuntimeError, match=message):
            model.load_state_dict(source[0].state_dict())
        for target, other in zip((pruning, model, optimizer), (source[2], source[0], source[1]), strict=True):
            target.load_state_dict(other.state_dict())
        assert equal(dict(model.state_dict()), dict(source[0].state_dict()))

    def test_the_optimizers_state_before_the_prunings(self) -> None:
        source, (_, optimizer, pruning) = self.pruned(), self.fresh()
        optimizer.load_state_dict(source[1].state_dict())
        with pytest.raises(ns.UnsupportedError, match=r"load the optimizer's state last, after the pruning's and the model's"):
            pruning.load_state_dict(source[2].state_dict())

    def test_a_dense_model_refuses_sparse_weights_without_strict_too(self) -> None:
        source, (model, *_) = self.pruned(), self.fresh()
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight \(sparse in the state: .*; 2\.weight \(sparse in the state: "):
            model.load_state_dict(source[0].state_dict(), strict=False)

    def test_copies_raise_the_same_error_once(self) -> None:
        model = dense_network()
        gradual(model)
        gradual(model)
        for copied in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with pytest.raises(RuntimeError) as error:
                copied.load_state_dict(self.pruned()[0].state_dict())
            assert str(error.value).count("load_patterns") == 2  # for each weight
