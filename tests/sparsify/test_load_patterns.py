"""load_patterns: a model that was built anew gets what a state stores, after which the state fits; what doesn't fit changes nothing."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from loading_cases import built, snapshot, sparse
from torch import nn
from trainers import X, dense_network, network, sgd
from training_cases import equal, read_back

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import SET, GradualPruning, RigL, load_patterns, magnitude, n_m, n_m_g, random, schedules

pytestmark = pytest.mark.usefixtures("plain")
FORMATS = ["CSR", "CSC", "DCSR", "COO(2)", "BCSR(2, 2)", "BCSR(4, 1)", "ELL", "DIA", "NM(2, 4)", "NMG(2, 4, 2)"]
FORMATS += ["(i, j) -> (i: dense, j: bitmap)"]


def sparsifier(format: str) -> Any:
    return n_m(2, 4) if format.startswith("NM(") else n_m_g(2, 4, 2) if format.startswith("NMG") else magnitude(0.5)


def train(model: Any, optimizer: Any, steps: int = 2, after: Any = lambda: None) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        after()


class TestFormats:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("given", ["dense", "CSR", "the same"])
    def test_any_model_takes_any_format(self, format: str, given: str) -> None:
        theirs = sparse(built(1), sparsifier(format), format)
        own = built(2) if given == "dense" else sparse(built(2), *((None, "CSR") if given == "CSR" else (sparsifier(format), format)))
        state = read_back(theirs.state_dict())
        assert load_patterns(own, state) is own
        assert own.load_state_dict(state) == ([], [])
        for first, second in ((own[0], theirs[0]), (own[2], theirs[2])):
            assert type(first) is SparseLinear
            assert first.weight.pattern.stores_as(second.weight.pattern)
        assert equal(dict(own.state_dict()), dict(theirs.state_dict()))
        x = torch.rand(3, 8)
        assert torch.equal(own(x), theirs(x))

    @pytest.mark.parametrize("name", ["dense", "CSR unordered"])
    def test_formats_whose_names_no_text_stands_for(self, name: str) -> None:
        """They are spelled out beside the name."""
        eye = (
            ns.from_torch(torch.eye(4), "dd")
            if name == "dense"
            else ns.from_torch(torch.eye(4), ns.CSR).to("(i, j) -> (i: dense, j: compressed(ordered=False))")
        )
        assert eye.format.name == name
        theirs = nn.Sequential(SparseLinear(4, 4, pattern=torch.eye(4)))
        theirs[0].weight = ns.nn.Parameter(eye)
        own = load_patterns(nn.Sequential(nn.Linear(4, 4)), theirs.state_dict())
        assert own.load_state_dict(theirs.state_dict()) == ([], [])
        assert own[0].weight.format == eye.format

    def test_states_that_were_saved_before_formats_were_spelled_out(self) -> None:
        state = sparse(built(), format="BCSR(2, 2)").state_dict()
        for own in state._metadata.values():
            own.pop("levels", None)
        assert load_patterns(built(1), state)[0].weight.format.name == "BCSR(2, 2)"

    def test_a_plain_dict_is_read_in_the_models_formats(self) -> None:
        state = dict(sparse(built(), format="CSC").state_dict())
        own = load_patterns(sparse(built(1), magnitude(0.9), "CSC"), state)
        assert own.load_state_dict(state) == ([], [])
        with pytest.raises(
            ns.OperandError, match=r"0\.weight: is dense in the model, .*a plain dict.*which torch\.save preserves; or make"
        ):
            load_patterns(built(1), state)
        with pytest.raises(
            ns.OperandError, match=r"0\.weight: the state has index arrays level1_crd, level1_pos, but COO\(2\) has .*plain dict"
        ):
            load_patterns(sparse(built(1), format="COO(2)"), state)

    def test_index_arrays_are_not_shared_with_the_state(self) -> None:
        state = sparse(built()).state_dict()
        own = load_patterns(built(1), state)
        assert own[0].weight.level1_crd.data_ptr() != state["0.weight.level1_crd"].data_ptr()


class TestModels:
    def test_layers_become_sparse_as_sparsify_model_has_it(self) -> None:
        """Hooks, modes and what is frozen stay, and so does the parameter of a bias."""
        own, theirs = built(1), sparse(built(), names="0.weight")
        called: list[str] = []
        own[0].register_forward_hook(lambda *_: called.append("forward"))
        own[0].weight.requires_grad_(False)
        own.eval()
        bias, last = own[0].bias, own[2]
        load_patterns(own, theirs.state_dict()).load_state_dict(theirs.state_dict())
        own(torch.ones(1, 8))
        assert called == ["forward"]
        assert own[0].bias is bias
        assert own[2] is last
        assert not own[0].training
        assert not own[0].weight.requires_grad

    def test_a_model_that_is_a_layer_is_returned(self) -> None:
        state = SparseLinear(4, 3, density=0.5).state_dict()
        made = load_patterns(nn.Linear(4, 3), state)
        assert made.load_state_dict(state) == ([], [])

    def test_convolutions_embeddings_and_attention(self) -> None:
        def model() -> Any:
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
            return nn.ModuleDict({"conv": nn.Conv2d(2, 4, 3), "table": nn.Embedding(6, 8), "encoder": nn.TransformerEncoder(layer, 2)})

        torch.manual_seed(0)
        theirs = sparse(model(), names="*weight").eval()
        assert {"SparseConv2d", "SparseEmbedding", "SparseMultiheadAttention"} <= {type(own).__name__ for own in theirs.modules()}
        own = load_patterns(model(), theirs.state_dict()).eval()
        assert own.load_state_dict(theirs.state_dict()) == ([], [])
        x, image = torch.rand(2, 3, 8), torch.rand(1, 2, 5, 5)
        assert torch.equal(own["encoder"](x), theirs["encoder"](x))
        assert torch.equal(own["conv"](image), theirs["conv"](image))
        assert torch.equal(own["table"](torch.arange(6)), theirs["table"](torch.arange(6)))

    def test_a_weight_that_layers_share_stays_one(self) -> None:
        def tied(seed: int) -> Any:
            model = built(seed)
            model.append(nn.Linear(8, 24, bias=False))
            model[3].weight = model[0].weight
            return model

        theirs = sparse(tied(0), names="[03].weight")
        own = load_patterns(tied(1), theirs.state_dict())
        assert own[3].weight is own[0].weight
        again = load_patterns(sparse(tied(2), magnitude(0.9), names="[03].weight"), theirs.state_dict())
        for model in (own, again):
            assert model.load_state_dict(theirs.state_dict()) == ([], [])
            assert model[0].weight.pattern.stores_as(theirs[0].weight.pattern)
        apart = theirs.state_dict()
        torch.manual_seed(5)
        untied = sparse(nn.Sequential(*built(3), nn.Linear(8, 24, bias=False)), random(0.5, seed=4), names="[03].weight").state_dict()
        apart.update({name: own for name, own in untied.items() if name.startswith("3.")})
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight and 3\.weight are one weight in the model, but differ in the state"):
            load_patterns(tied(1), apart)

    def test_a_model_that_torch_compiled(self) -> None:
        theirs = network()
        own = torch.compile(sparse(dense_network(), magnitude(0.9)), backend="eager")
        state = torch.compile(theirs, backend="eager").state_dict()
        assert load_patterns(own, state).load_state_dict(state) == ([], [])
        assert torch.allclose(own(X), theirs(X))

    def test_the_kernels_follow_another_format(self) -> None:
        own, theirs = network(), sparse(dense_network(), format="BCSR(2, 1)")
        own(X).sum().backward()
        load_patterns(own, theirs.state_dict()).load_state_dict(theirs.state_dict())
        assert torch.equal(own(X), theirs(X))
        own.zero_grad()
        own(X).sum().backward()
        assert own[0].weight.values.grad.shape == own[0].weight.values.shape


class TestOptimizers:
    @pytest.mark.parametrize("kind", [partial(torch.optim.SGD, lr=0.01, momentum=0.9), partial(torch.optim.AdamW, lr=0.01)])
    @pytest.mark.parametrize("format", ["CSR", "BCSR(2, 2)", "NM(2, 4)"])
    def test_training_goes_on_to_the_bit_in_a_model_that_was_dense(self, kind: Any, format: str) -> None:
        model = built()
        optimizer = kind(model.parameters())
        train(model, optimizer)
        sparse(model, sparsifier(format), format, optimizer=optimizer)
        train(model, optimizer)
        saved = read_back({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        own = built(7)
        other = kind(own.parameters())
        load_patterns(own, saved["model"], other)
        own.load_state_dict(saved["model"])
        other.load_state_dict(saved["optimizer"])
        train(model, optimizer)
        train(own, other)
        assert equal(dict(own.state_dict()), dict(model.state_dict()))
        assert equal(other.state_dict(), optimizer.state_dict())

    def test_an_optimizer_of_the_loaded_model_numbers_parameters_as_that_of_a_dense_one(self) -> None:
        model = built()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        sparse(model, optimizer=optimizer)
        train(model, optimizer)
        own = load_patterns(built(7), model.state_dict())
        own.load_state_dict(model.state_dict())
        other = torch.optim.AdamW(own.parameters(), lr=0.01)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(model, optimizer)
        train(own, other)
        assert equal(dict(own.state_dict()), dict(model.state_dict()))

    def test_a_state_of_another_layout_is_named(self) -> None:
        model = built()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        sparse(model, optimizer=optimizer)
        train(model, optimizer)
        own = built(7)
        other = torch.optim.AdamW(own.parameters(), lr=0.01)
        other.load_state_dict(optimizer.state_dict())
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight: AdamW stores 'exp_avg', .* another layout .* state last"):
            load_patterns(own, model.state_dict(), other)

    @pytest.mark.parametrize("kind", [partial(SET, every=1), partial(RigL, every=1, until=100)])
    def test_what_set_and_rigl_left(self, kind: Any) -> None:
        model = sparse(built())
        optimizer = sgd(model)
        train(model, optimizer, after=kind(model, optimizer).step)
        own = sparse(built(4), magnitude(0.7))
        other = sgd(own)
        train(own, other, 1)
        values = own[0].weight.values
        load_patterns(own, model.state_dict(), other).load_state_dict(model.state_dict())
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert own[0].weight.values is values
        train(model, optimizer)
        train(own, other)
        assert equal(dict(own.state_dict()), dict(model.state_dict()))

    def test_what_gradual_pruning_left(self) -> None:
        model = built()
        optimizer = sgd(model)
        schedule = schedules.cubic(0.9, begin=0, end=4)
        train(model, optimizer, 4, GradualPruning(model, optimizer, magnitude, schedule, weights="0.weight", sparse_from=0.5).step)
        own = built(3)
        other = sgd(own)
        load_patterns(own, model.state_dict(), other).load_state_dict(model.state_dict())
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(model, optimizer)
        train(own, other)
        assert equal(dict(own.state_dict()), dict(model.state_dict()))

    @pytest.mark.parametrize("at", [2, 4])
    def test_gradual_pruning_goes_on_to_the_bit_in_a_model_that_was_loaded(self, at: int) -> None:
        """In a new GradualPruning: the old one knows other layers, and names what made them."""

        def begin(seed: int) -> tuple[Any, Any, GradualPruning]:
            model = built(seed)
            optimizer = sgd(model)
            return model, optimizer, GradualPruning(model, optimizer, magnitude, schedule, weights="0.weight", sparse_from=0.5)

        schedule = schedules.linear(0.9, begin=0, end=6)
        model, optimizer, pruning = begin(0)
        train(model, optimizer, at, pruning.step)
        saved = read_back([model.state_dict(), optimizer.state_dict(), pruning.state_dict()])
        own, other, stale = begin(3)
        load_patterns(own, saved[0], other).load_state_dict(saved[0])
        other.load_state_dict(saved[1])
        if at == 4:
            with pytest.raises(ns.OperandError, match=r"as after load_patterns, .*: make a new GradualPruning .* load the old one's state"):
                stale.step()
        again = GradualPruning(own, other, magnitude, schedule, weights="0.weight", sparse_from=0.5)
        again.load_state_dict(saved[2])
        train(model, optimizer, 4, pruning.step)
        train(own, other, 4, again.step)
        assert equal(dict(own.state_dict()), dict(model.state_dict()))
        assert equal(other.state_dict(), optimizer.state_dict())

    def test_what_is_remembered_follows_to_another_format(self) -> None:
        own = sparse(built())
        optimizer = sgd(own)
        train(own, optimizer)
        before = own[0].weight.tensor.with_values(optimizer.state[own[0].weight.values]["momentum_buffer"]).to_dense()
        load_patterns(own, sparse(built(), format="BCSR(2, 2)").state_dict(), optimizer)
        after = own[0].weight.tensor.with_values(optimizer.state[own[0].weight.values]["momentum_buffer"]).to_dense()
        assert own[0].weight.format.name == "BCSR(2, 2)"
        assert torch.equal(after, before)

    def test_optimizers_that_can_not_follow_are_told_before_anything_changes(self) -> None:
        state = sparse(built(1)).state_dict()
        for make in (built, lambda: sparse(built(), magnitude(0.9))):
            own = make()
            before = snapshot(own)
            others = torch.optim.SGD(own[2].parameters(), lr=0.1)
            with pytest.raises(ns.OperandError, match=r"0\.weight: SGD doesn't hold the values"):
                load_patterns(own, state, others)
            with pytest.raises(ns.UnsupportedError, match=r"0\.weight: LBFGS stores"):
                load_patterns(own, state, torch.optim.LBFGS(own.parameters()))
            assert equal(snapshot(own), before)
