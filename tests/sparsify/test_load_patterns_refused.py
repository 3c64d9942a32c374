"""What load_patterns refuses, and changes nothing then; and what load_state_dict says where it should have been called."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from loading_cases import built, snapshot, sparse
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel
from trainers import X, dense_network, gradual, sgd
from training_cases import equal

import numscorch as ns
from numscorch.nn import SparseConv2d, SparseLinear
from numscorch.sparsify import GradualPruning, load_patterns, magnitude, schedules

pytestmark = pytest.mark.usefixtures("plain")


def cut(state: Any, name: str, by: int = 1) -> None:
    state[name] = state[name][:-by]


def broken(state: Any) -> None:
    state["2.weight.level1_crd"] = state["2.weight.level1_crd"] + 100


def put(state: Any, name: str, what: Any) -> None:
    state[name] = what


def claimed(state: Any, **what: Any) -> None:
    state._metadata["2.weight"] |= what


class TestErrors:
    """The clash is in the last layer, so that the first would be changed if not all were checked before."""

    @pytest.mark.parametrize(
        ("change", "kind", "told"),
        [
            (
                partial(cut, name="2.weight.values"),
                ns.SizeError,
                r"2\.weight: has 47 values in the state, but index arrays for 48: was it truncated",
            ),
            (partial(cut, name="2.weight.level1_crd"), ns.FormatError, r"2\.weight: "),
            (broken, ns.FormatError, r"2\.weight: "),
            (
                lambda state: state.pop("2.weight.level1_pos"),
                ns.OperandError,
                r"2\.weight: the state has index arrays level1_crd, but CSR has",
            ),
            (
                partial(put, name="2.weight.values", what=None),
                ns.OperandError,
                r"2\.weight\.values is not a strided tensor .*, but NoneType",
            ),
            (
                partial(put, name="2.weight.level1_pos", what=[0]),
                ns.OperandError,
                r"2\.weight\.level1_pos is not a strided tensor .*, but list",
            ),
            (
                partial(put, name="2.weight.level1_crd", what=torch.empty(48, dtype=torch.int32, device="meta")),
                ns.OperandError,
                r"2\.weight\.level1_crd is not a strided tensor on the CPU in the state, but torch.strided on meta",
            ),
            (
                partial(put, name="2.weight.level1_pos", what=torch.zeros(5)),
                ns.FormatError,
                r"index arrays of CSR are .*, not torch.float32",
            ),
            (partial(claimed, shape=5), ns.SizeError, r"2\.weight: has shape 5 in the state"),
            (lambda state: state._metadata.update({"2.weight": None}), ns.OperandError, r"metadata of '2\.weight' is not a dict, but None"),
            (lambda state: setattr(state, "_metadata", [1]), ns.OperandError, r"metadata is not a dict of modules, but \[1\]"),
        ],
    )
    @pytest.mark.parametrize("make", [built, lambda: sparse(built(), magnitude(0.9))], ids=["dense", "sparse"])
    def test_states_that_are_damaged(self, make: Any, change: Any, kind: Any, told: str) -> None:
        own, state = make(), sparse(built(1)).state_dict()
        change(state)
        before = snapshot(own)
        with pytest.raises(kind, match=told):
            load_patterns(own, state)
        assert equal(snapshot(own), before)

    @pytest.mark.parametrize("make", [built, lambda: sparse(built(), magnitude(0.9))], ids=["dense", "sparse"])
    def test_other_sizes_and_names(self, make: Any) -> None:
        own = make()
        before = snapshot(own)
        wide = sparse(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 5)))
        with pytest.raises(ns.SizeError, match=r"2\.weight: has shape \(5, 24\) in the state, but \(4, 24\) in the model: build"):
            load_patterns(own, wide.state_dict())
        named = sparse(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.ReLU(), nn.Linear(24, 4)))
        with pytest.raises(
            ns.OperandError, match=r"the state has a sparse weight 3\.weight, which the model lacks: did you mean '2\.weight'"
        ):
            load_patterns(own, named.state_dict())
        with pytest.raises(ns.OperandError, match=r"a sparse weight more\.0\.weight, which the model lacks: did you mean '0\.weight'"):
            load_patterns(own, {**sparse(built(1)).state_dict(), "more.0.weight.values": X, "more.0.weight.level1_crd": X})
        assert equal(snapshot(own), before)

    @pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
    @pytest.mark.parametrize("make", [built, lambda: sparse(built(), magnitude(0.9))], ids=["dense", "sparse"])
    def test_the_states_of_wrapped_models(self, make: Any, prefix: str) -> None:
        own, plain = make(), sparse(built(1)).state_dict()
        state = sparse(nn.ModuleDict({prefix[:-1]: built(1)})).state_dict()
        with pytest.raises(
            ns.OperandError,
            match=rf"begin with '{prefix}'.*: call torch\.nn\.modules\.utils\.{consume_prefix_in_state_dict_if_present.__name__}",
        ):
            load_patterns(own, state)
        with pytest.raises(ns.OperandError, match=rf"the model's names begin with '{prefix}'.*: give model\.{prefix[:-1]}"):
            load_patterns(nn.ModuleDict({prefix[:-1]: built(2)}), plain)
        consume_prefix_in_state_dict_if_present(state, prefix)
        assert load_patterns(own, state).load_state_dict(state) == ([], [])

    def test_weights_that_are_dense_in_the_state_or_missing(self) -> None:
        own = sparse(built(), magnitude(0.9))
        before = snapshot(own)
        with pytest.raises(ns.UnsupportedError, match=r"2\.weight is dense in the state, but sparse in the model: .*densify_model"):
            load_patterns(own, sparse(built(1), names="0.weight").state_dict())
        state = sparse(nn.Sequential(nn.Linear(8, 24))).state_dict()
        with pytest.raises(ns.OperandError, match=r"the state has no 2\.weight\.values, but the model has SparseTensor"):
            load_patterns(own, state)
        assert equal(snapshot(own), before)

    def test_layers_that_can_not_become_sparse(self) -> None:
        own, state = built(), sparse(built(1)).state_dict()
        own[2].weight.register_hook(lambda gradient: gradient)
        before = snapshot(own)
        with pytest.raises(ns.UnsupportedError, match=r"2\.weight: is sparse in the state, .*has user-defined hooks"):
            load_patterns(own, state)
        groups = nn.Sequential(nn.Linear(8, 24), nn.Conv2d(4, 4, 3, groups=2))
        theirs = nn.Sequential(SparseLinear(8, 24, density=0.5), SparseConv2d(2, 4, 3, density=0.5))
        with pytest.raises(ns.UnsupportedError, match=r"1\.weight: groups=2"):
            load_patterns(groups, theirs.state_dict())
        assert type(groups[0]) is nn.Linear
        assert equal(snapshot(own), before)

    def test_a_model_that_others_train_too(self) -> None:
        within, state = built(), sparse(built(1)).state_dict()
        wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
        nn.Module.__init__(wrapped)
        wrapped.module = within
        with pytest.raises(ns.UnsupportedError, match=r"pass the wrapped model, its \.module, and wrap the result"):
            load_patterns(wrapped, state)
        assert type(within[0]) is nn.Linear

    def test_layers_that_have_no_size_or_no_values_yet(self) -> None:
        state = sparse(nn.Sequential(nn.Linear(8, 24))).state_dict()
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight: has no size yet; run the model once"):
            load_patterns(nn.Sequential(nn.LazyLinear(24)), state)
        with torch.device("meta"):
            empty = built()
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight: .*meta device.*to_empty"):
            load_patterns(empty, state)

    def test_what_is_no_model_or_no_state(self) -> None:
        own, state = built(), sparse(built(1)).state_dict()
        with pytest.raises(ns.OperandError, match="takes a model, not Tensor"):
            load_patterns(X, state)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match="takes a model, not SparseParameter: give the module that has"):
            load_patterns(sparse(built())[0].weight, state)
        with pytest.raises(ns.OperandError, match=r"takes a model's state, not Sequential: give the result of its state_dict\(\)"):
            load_patterns(own, own)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match=r"a dict of states \('model', 'optimizer'\), not one of .*: give state\['model'\]"):
            load_patterns(own, {"model": state, "optimizer": sgd(own).state_dict()})

    def test_a_dense_state_of_a_dense_model_changes_nothing(self) -> None:
        own = built()
        before = snapshot(own)
        assert load_patterns(own, built(1).state_dict()) is own
        assert equal(snapshot(own), before)


class TestOrderOfLoading:
    """GradualPruning's state comes first; where another one is, the error says so."""

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

    def test_the_models_before_the_prunings(self) -> None:
        theirs, (model, optimizer, pruning) = self.pruned(), self.fresh()
        told = r"0\.weight \(sparse in the state: load GradualPruning's state first, or call ns\.sparsify\.load_patterns"
        with pytest.raises(RuntimeError, match=told):
            model.load_state_dict(theirs[0].state_dict())
        for own, other in zip((pruning, model, optimizer), (theirs[2], theirs[0], theirs[1]), strict=True):
            own.load_state_dict(other.state_dict())
        assert equal(dict(model.state_dict()), dict(theirs[0].state_dict()))

    def test_the_optimizers_before_the_prunings(self) -> None:
        theirs, (_, optimizer, pruning) = self.pruned(), self.fresh()
        optimizer.load_state_dict(theirs[1].state_dict())
        with pytest.raises(ns.UnsupportedError, match=r"load the optimizer's state last, after the pruning's and the model's"):
            pruning.load_state_dict(theirs[2].state_dict())

    def test_without_strict_such_weights_are_left_out(self) -> None:
        theirs, (model, *_) = self.pruned(), self.fresh()
        missing, _ = model.load_state_dict(theirs[0].state_dict(), strict=False)
        assert missing == ["0.weight", "2.weight"]

    def test_copies_tell_it_too_and_once(self) -> None:
        model = dense_network()
        gradual(model)
        gradual(model)
        for own in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with pytest.raises(RuntimeError) as error:
                own.load_state_dict(self.pruned()[0].state_dict())
            assert str(error.value).count("load_patterns") == 2  # for each weight
