"""load_patterns gives a new model the patterns of a saved state, so that load_state_dict accepts the state."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from loading_cases import perceptron, snapshot, sparse
from torch import nn
from trainers import X, dense_network, network, sgd
from training_cases import equal, read_back

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import SET, GradualPruning, RigL, load_patterns, magnitude, n_m, n_m_g, random, schedules

pytestmark = pytest.mark.usefixtures("interpreted")
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


@pytest.mark.parametrize("format", [ns.COO(2), ns.DCSR, ns.CSC])
def test_new_patterns_keep_the_buffers_of_users(format: Any) -> None:
    """A new format has other index arrays; buffers that users registered are kept, even with a name like those of index arrays."""
    weight = ns.nn.Parameter(ns.from_torch(torch.eye(4), ns.CSR))
    registered = {"seen": torch.ones(2), "level7_crd": torch.arange(3)}
    for name, array in registered.items():
        weight.register_buffer(name, array)
    weight.hold(ns.from_torch(torch.eye(4), format).pattern)
    weight.hold(ns.from_torch(torch.eye(4), ns.CSR).pattern)
    buffers = dict(weight.named_buffers())
    assert all(buffers[name] is array for name, array in registered.items())
    assert buffers.keys() - registered.keys() == {"level1_pos", "level1_crd"}


class TestFormats:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("given", ["dense", "CSR", "the same"])
    def test_any_model_takes_any_format(self, format: str, given: str) -> None:
        source = sparse(perceptron(1), sparsifier(format), format)
        target = perceptron(2)
        if given != "dense":
            target = sparse(target, *((None, "CSR") if given == "CSR" else (sparsifier(format), format)))
        state = read_back(source.state_dict())
        assert load_patterns(target, state) is target
        assert target.load_state_dict(state) == ([], [])
        for first, second in ((target[0], source[0]), (target[2], source[2])):
            assert type(first) is SparseLinear
            assert first.weight.pattern.stores_as(second.weight.pattern)
        assert equal(dict(target.state_dict()), dict(source.state_dict()))
        x = torch.rand(3, 8)
        assert torch.equal(target(x), source(x))

    @pytest.mark.parametrize("name", ["dense", "CSR unordered"])
    def test_formats_whose_names_are_not_parsable(self, name: str) -> None:
        """The state stores their levels beside the name."""
        eye = (
            ns.from_torch(torch.eye(4), "dd")
            if name == "dense"
            else ns.from_torch(torch.eye(4), ns.CSR).to("(i, j) -> (i: dense, j: compressed(ordered=False))")
        )
        assert eye.format.name == name
        source = nn.Sequential(SparseLinear(4, 4, pattern=torch.eye(4)))
        source[0].weight = ns.nn.Parameter(eye)
        target = load_patterns(nn.Sequential(nn.Linear(4, 4)), source.state_dict())
        assert target.load_state_dict(source.state_dict()) == ([], [])
        assert target[0].weight.format == eye.format

    def test_states_without_levels_of_formats_are_read(self) -> None:
        state = sparse(perceptron(), format="BCSR(2, 2)").state_dict()
        for metadata in state._metadata.values():
            metadata.pop("levels", None)
        assert load_patterns(perceptron(1), state)[0].weight.format.name == "BCSR(2, 2)"

    def test_a_plain_dict_of_an_old_state_is_read_in_the_models_formats(self) -> None:
        """States of earlier versions have their formats in the metadata only."""
        state = dict(sparse(perceptron(), format="CSC").state_dict())
        state = {name: array for name, array in state.items() if not name.endswith("_extra_state") and array.numel()}
        target = load_patterns(sparse(perceptron(1), magnitude(0.9), "CSC"), state)
        assert target.load_state_dict(state) == ([], [])
        with pytest.raises(
            ns.OperandError, match=r"0\.weight: is dense in the model, .*a plain dict.*which torch\.save preserves; or make"
        ):
            load_patterns(perceptron(1), state)
        with pytest.raises(
            ns.OperandError, match=r"0\.weight: the state has index arrays level1_crd, level1_pos, but COO\(2\) has .*plain dict"
        ):
            load_patterns(sparse(perceptron(1), format="COO(2)"), state)

    def test_index_arrays_are_not_shared_with_the_state(self) -> None:
        state = sparse(perceptron()).state_dict()
        target = load_patterns(perceptron(1), state)
        assert target[0].weight.level1_crd.data_ptr() != state["0.weight.level1_crd"].data_ptr()


class TestLoadedModels:
    def test_layers_become_sparse_as_by_sparsify_model(self) -> None:
        """Hooks, training mode, frozen weights and the bias parameter are kept."""
        target, source = perceptron(1), sparse(perceptron(), names="0.weight")
        called: list[str] = []
        target[0].register_forward_hook(lambda *_: called.append("forward"))
        target[0].weight.requires_grad_(False)
        target.eval()
        bias, last = target[0].bias, target[2]
        load_patterns(target, source.state_dict()).load_state_dict(source.state_dict())
        target(torch.ones(1, 8))
        assert called == ["forward"]
        assert target[0].bias is bias
        assert target[2] is last
        assert not target[0].training
        assert not target[0].weight.requires_grad

    def test_a_model_that_is_a_layer_is_returned(self) -> None:
        state = SparseLinear(4, 3, density=0.5).state_dict()
        layer = load_patterns(nn.Linear(4, 3), state)
        assert layer.load_state_dict(state) == ([], [])

    def test_convolutions_embeddings_and_attention(self) -> None:
        def model() -> Any:
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
            return nn.ModuleDict({"conv": nn.Conv2d(2, 4, 3), "table": nn.Embedding(6, 8), "encoder": nn.TransformerEncoder(layer, 2)})

        torch.manual_seed(0)
        source = sparse(model(), names="*weight").eval()
        assert {"SparseConv2d", "SparseEmbedding", "SparseMultiheadAttention"} <= {type(module).__name__ for module in source.modules()}
        target = load_patterns(model(), source.state_dict()).eval()
        assert target.load_state_dict(source.state_dict()) == ([], [])
        x, image = torch.rand(2, 3, 8), torch.rand(1, 2, 5, 5)
        assert torch.equal(target["encoder"](x), source["encoder"](x))
        assert torch.equal(target["conv"](image), source["conv"](image))
        assert torch.equal(target["table"](torch.arange(6)), source["table"](torch.arange(6)))

    def test_a_weight_that_layers_share_stays_one(self) -> None:
        def tied(seed: int) -> Any:
            model = perceptron(seed)
            model.append(nn.Linear(8, 24, bias=False))
            model[3].weight = model[0].weight
            return model

        source = sparse(tied(0), names="[03].weight")
        target = load_patterns(tied(1), source.state_dict())
        assert target[3].weight is target[0].weight
        again = load_patterns(sparse(tied(2), magnitude(0.9), names="[03].weight"), source.state_dict())
        for model in (target, again):
            assert model.load_state_dict(source.state_dict()) == ([], [])
            assert model[0].weight.pattern.stores_as(source[0].weight.pattern)
        apart = source.state_dict()
        torch.manual_seed(5)
        untied = sparse(nn.Sequential(*perceptron(3), nn.Linear(8, 24, bias=False)), random(0.5, seed=4), names="[03].weight").state_dict()
        apart.update({name: tensor for name, tensor in untied.items() if name.startswith("3.")})
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight and 3\.weight are one weight in the model, but differ in the state"):
            load_patterns(tied(1), apart)

    def test_a_model_that_torch_compiled(self) -> None:
        source = network()
        target = torch.compile(sparse(dense_network(), magnitude(0.9)), backend="eager")
        state = torch.compile(source, backend="eager").state_dict()
        assert load_patterns(target, state).load_state_dict(state) == ([], [])
        assert torch.allclose(target(X), source(X))

    def test_the_kernels_follow_another_format(self) -> None:
        target, source = network(), sparse(dense_network(), format="BCSR(2, 1)")
        target(X).sum().backward()
        load_patterns(target, source.state_dict()).load_state_dict(source.state_dict())
        assert torch.equal(target(X), source(X))
        target.zero_grad()
        target(X).sum().backward()
        assert target[0].weight.values.grad.shape == target[0].weight.values.shape


class TestOptimizers:
    @pytest.mark.parametrize("kind", [partial(torch.optim.SGD, lr=0.01, momentum=0.9), partial(torch.optim.AdamW, lr=0.01)])
    @pytest.mark.parametrize("format", ["CSR", "BCSR(2, 2)", "NM(2, 4)"])
    def test_training_resumes_bit_for_bit_in_a_model_that_was_dense(self, kind: Any, format: str) -> None:
        model = perceptron()
        optimizer = kind(model.parameters())
        train(model, optimizer)
        sparse(model, sparsifier(format), format, optimizer=optimizer)
        train(model, optimizer)
        saved = read_back({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        target = perceptron(7)
        target_optimizer = kind(target.parameters())
        load_patterns(target, saved["model"], target_optimizer)
        target.load_state_dict(saved["model"])
        target_optimizer.load_state_dict(saved["optimizer"])
        train(model, optimizer)
        train(target, target_optimizer)
        assert equal(dict(target.state_dict()), dict(model.state_dict()))
        assert equal(target_optimizer.state_dict(), optimizer.state_dict())

    def test_an_optimizer_of_the_loaded_model_numbers_parameters_as_that_of_a_dense_one(self) -> None:
        model = perceptron()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        sparse(model, optimizer=optimizer)
        train(model, optimizer)
        target = load_patterns(perceptron(7), model.state_dict())
        target.load_state_dict(model.state_dict())
        target_optimizer = torch.optim.AdamW(target.parameters(), lr=0.01)
        target_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(model, optimizer)
        train(target, target_optimizer)
        assert equal(dict(target.state_dict()), dict(model.state_dict()))

    def test_a_state_of_another_layout_is_named(self) -> None:
        model = perceptron()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        sparse(model, optimizer=optimizer)
        train(model, optimizer)
        target = perceptron(7)
        target_optimizer = torch.optim.AdamW(target.parameters(), lr=0.01)
        target_optimizer.load_state_dict(optimizer.state_dict())
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight: AdamW stores 'exp_avg', .* another layout .* state last"):
            load_patterns(target, model.state_dict(), target_optimizer)

    @pytest.mark.parametrize("kind", [partial(SET, every=1), partial(RigL, every=1, until=100)])
    def test_resuming_after_set_and_rigl(self, kind: Any) -> None:
        model = sparse(perceptron())
        optimizer = sgd(model)
        train(model, optimizer, after=kind(model, optimizer).step)
        target = sparse(perceptron(4), magnitude(0.7))
        target_optimizer = sgd(target)
        train(target, target_optimizer, 1)
        values = target[0].weight.values
        load_patterns(target, model.state_dict(), target_optimizer).load_state_dict(model.state_dict())
        target_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert target[0].weight.values is values
        train(model, optimizer)
        train(target, target_optimizer)
        assert equal(dict(target.state_dict()), dict(model.state_dict()))

    def test_resuming_after_gradual_pruning(self) -> None:
        model = perceptron()
        optimizer = sgd(model)
        schedule = schedules.cubic(0.9, begin=0, end=4)
        train(model, optimizer, 4, GradualPruning(model, optimizer, magnitude, schedule, weights="0.weight", sparse_from=0.5).step)
        target = perceptron(3)
        target_optimizer = sgd(target)
        load_patterns(target, model.state_dict(), target_optimizer).load_state_dict(model.state_dict())
        target_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(model, optimizer)
        train(target, target_optimizer)
        assert equal(dict(target.state_dict()), dict(model.state_dict()))

    @pytest.mark.parametrize("at", [2, 4])
    def test_gradual_pruning_resumes_bit_for_bit_in_a_loaded_model(self, at: int) -> None:
        """A new GradualPruning continues. The old one refers to replaced layers and raises an error."""

        def begin(seed: int) -> tuple[Any, Any, GradualPruning]:
            model = perceptron(seed)
            optimizer = sgd(model)
            return model, optimizer, GradualPruning(model, optimizer, magnitude, schedule, weights="0.weight", sparse_from=0.5)

        schedule = schedules.linear(0.9, begin=0, end=6)
        model, optimizer, pruning = begin(0)
        train(model, optimizer, at, pruning.step)
        saved = read_back([model.state_dict(), optimizer.state_dict(), pruning.state_dict()])
        target, target_optimizer, stale = begin(3)
        load_patterns(target, saved[0], target_optimizer).load_state_dict(saved[0])
        target_optimizer.load_state_dict(saved[1])
        if at == 4:
            with pytest.raises(ns.OperandError, match=r"as after load_patterns, .*: make a new GradualPruning .* load the old one's state"):
                stale.step()
        again = GradualPruning(target, target_optimizer, magnitude, schedule, weights="0.weight", sparse_from=0.5)
        again.load_state_dict(saved[2])
        train(model, optimizer, 4, pruning.step)
        train(target, target_optimizer, 4, again.step)
        assert equal(dict(target.state_dict()), dict(model.state_dict()))
        assert equal(target_optimizer.state_dict(), optimizer.state_dict())

    def test_optimizer_state_follows_to_another_format(self) -> None:
        target = sparse(perceptron())
        optimizer = sgd(target)
        train(target, optimizer)
        before = target[0].weight.tensor.with_values(optimizer.state[target[0].weight.values]["momentum_buffer"]).to_dense()
        load_patterns(target, sparse(perceptron(), format="BCSR(2, 2)").state_dict(), optimizer)
        after = target[0].weight.tensor.with_values(optimizer.state[target[0].weight.values]["momentum_buffer"]).to_dense()
        assert target[0].weight.format.name == "BCSR(2, 2)"
        assert torch.equal(after, before)

    def test_optimizers_that_cannot_follow_are_refused_before_any_change(self) -> None:
        state = sparse(perceptron(1)).state_dict()
        for make in (perceptron, lambda: sparse(perceptron(), magnitude(0.9))):
            target = make()
            before = snapshot(target)
            others = torch.optim.SGD(target[2].parameters(), lr=0.1)
            with pytest.raises(ns.OperandError, match=r"0\.weight: SGD doesn't hold the values"):
                load_patterns(target, state, others)
            with pytest.raises(ns.UnsupportedError, match=r"0\.weight: LBFGS stores"):
                load_patterns(target, state, torch.optim.LBFGS(target.parameters()))
            assert equal(snapshot(target), before)
