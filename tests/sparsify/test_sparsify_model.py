"""Models made sparse by name compute what the masked dense ones do, and train, save, copy and turn back with all that belongs to them."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrizations, prune

import numscorch as ns
from numscorch.nn import SparseEmbedding, SparseLinear, SparseMultiheadAttention
from numscorch.sparsify import (
    ModelReport,
    SparsityPlan,
    advice,
    block_magnitude,
    compose,
    densify_model,
    layers,
    magnitude,
    n_m,
    register_sparse_module,
    sparsify_model,
)
from numscorch.sparsify.advice import SpeedUp
from numscorch.tensors.parameter import SparseParameter

pytestmark = pytest.mark.usefixtures("plain")
half = magnitude(0.5)
ALL = SparsityPlan().weight("*weight", half)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def made_sparse(model: torch.nn.Module, plan: SparsityPlan = ALL, *args: Any, **options: Any) -> tuple[Any, ModelReport]:
    reports: list[ModelReport] = []
    model = sparsify_model(model, plan, *args, report=reports.append, **options)
    return model, reports[0]


def mlp() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def masked(model: torch.nn.Module, sparsifier: Callable[[torch.Tensor], torch.Tensor] = half, names: str = "weight") -> torch.nn.Module:
    """A copy whose matrices have zeros where nothing is kept."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, own in made.named_parameters():
            if own.ndim > 1 and names in name:
                own *= sparsifier(own.flatten(1)).reshape(own.shape)
    return made


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: own.clone() for name, own in model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(own, second[name]) for name, own in first.items())


def compare_gradients(sparse: torch.nn.Module, dense: torch.nn.Module) -> None:
    """Those of the dense model, where something is stored."""
    for name, expected in dense.named_parameters():
        home, _, key = name.rpartition(".")
        own = getattr(sparse.get_submodule(home), key)
        if isinstance(own, SparseParameter):
            stored = own.with_values(torch.ones(own.values.shape)).to_dense() != 0
            torch.testing.assert_close(own.grad.to_dense(), torch.where(stored, expected.grad.flatten(1), 0))
        else:
            torch.testing.assert_close(own.grad, expected.grad)


class Tied(torch.nn.Module):
    """A language model whose table is its head's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(10, 6), torch.nn.Linear(6, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.table(words))
        return made


class Shared(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.again(self.first(x)))
        return made


def encoder(nested: bool = True, **options: Any) -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], Any]]] = {
    "mlp": (mlp, lambda: torch.randn(5, 6)),
    "convolutions": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4 * 25, 3)
        ),
        lambda: torch.randn(2, 2, 5, 5),
    ),
    "encoder": (encoder, lambda: torch.randn(2, 5, 8)),
    "encoder, norm first": (lambda: encoder(norm_first=True, nested=False), lambda: torch.randn(2, 5, 8)),
    "tied": (Tied, lambda: torch.randint(10, (2, 4))),
    "shared": (Shared, lambda: torch.randn(3, 4)),
}
every = pytest.mark.parametrize("name", MODELS)


class TestResults:
    @every
    @pytest.mark.parametrize("training", [True, False])
    def test_they_are_those_of_the_masked_model(self, name: str, training: bool) -> None:
        model, x = MODELS[name][0](), MODELS[name][1]()
        dense = masked(model).train(training)
        sparse, report = made_sparse(model.train(training))
        assert all(row.is_sparse for row in report.rows if row.module not in ("LayerNorm", "BatchNorm2d"))
        torch.testing.assert_close(sparse(x), dense(x))
        sparse(x).square().sum().backward()
        dense(x).square().sum().backward()
        compare_gradients(sparse, dense)

    @pytest.mark.parametrize(
        "plan", [ALL, SparsityPlan().weight("*out_proj.weight", half), SparsityPlan().weight("layers.1.*.weight", half)]
    )
    @pytest.mark.parametrize("padded", [False, True])
    def test_torchs_fused_encoder_is_left_where_weights_are_sparse(self, plan: SparsityPlan, padded: bool) -> None:
        model, x = encoder().eval(), torch.randn(2, 5, 8)
        mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
        sparse, _ = made_sparse(model, plan)
        expected = densify_model(copy.deepcopy(sparse))
        with torch.no_grad():
            wanted, made = expected(x, src_key_padding_mask=mask), sparse(x, src_key_padding_mask=mask)
        torch.testing.assert_close(made[0], wanted[0])
        torch.testing.assert_close(made[1, :3], wanted[1, :3])

    @pytest.mark.parametrize("need_weights", [True, False])
    @pytest.mark.parametrize("batch_first", [True, False])
    @pytest.mark.parametrize("masks", ["none", "bool", "float", "each head", "padding", "both"])
    def test_attention_is_torchs(self, need_weights: bool, batch_first: bool, masks: str) -> None:
        dense = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first)
        sparse = SparseMultiheadAttention.from_dense(dense, lambda weight: weight == weight)
        q, k = (torch.randn(*((3, n, 8) if batch_first else (n, 3, 8))) for n in (4, 5))
        attn = {"bool": torch.rand(4, 5) < 0.3, "float": torch.randn(4, 5), "each head": torch.randn(6, 4, 5), "both": torch.randn(4, 5)}
        padding = torch.arange(5).expand(3, 5) >= 4 if masks in ("padding", "both") else None
        options = {"need_weights": need_weights, "attn_mask": attn.get(masks), "key_padding_mask": padding}
        if masks == "both":
            options["key_padding_mask"] = torch.zeros(3, 5).masked_fill(padding, -torch.inf)
        for made, expected in zip(sparse(q, k, k, **options), dense(q, k, k, **options), strict=True):
            torch.testing.assert_close(made, expected)
        if masks == "none":
            one = sparse(q[0], q[0], q[0], need_weights=need_weights, average_attn_weights=False)
            for made, expected in zip(one, dense(q[0], q[0], q[0], need_weights=need_weights, average_attn_weights=False), strict=True):
                torch.testing.assert_close(made, expected)

    def test_torchs_encoder_is_compiled_with_sparse_weights(self) -> None:
        sparse, x = made_sparse(encoder(nested=False).eval())[0], torch.randn(2, 5, 8)
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(sparse, backend="eager", fullgraph=True)(x), sparse(x))

    def test_tables_are_looked_up(self) -> None:
        dense = torch.nn.Embedding(10, 4, padding_idx=2)
        sparse = SparseEmbedding.from_dense(dense, half)
        words = torch.tensor([[1, 2], [9, 1]])
        expected = torch.where(half(dense.weight.detach()), dense.weight, 0)[words]
        torch.testing.assert_close(sparse(words), expected)
        sparse(words).sum().backward()
        found = sparse.weight.grad.to_dense()
        assert found.sum(1)[[0, 2]].tolist() == [0, 0]
        assert found.sum(1)[1] == 2 * half(dense.weight.detach())[1].sum()
        assert torch.equal(sparse.to_dense().weight, torch.where(half(dense.weight.detach()), dense.weight, 0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert sparse(words).dtype == dense(words).dtype
        with pytest.raises(ns.OperandError, match=r"input is a tensor \(2,\) of torch\.float32: indices"):
            sparse(torch.ones(2))
        with pytest.raises(ns.UnsupportedError, match=r"max_norm=1\.0 is not supported by SparseEmbedding"):
            SparseEmbedding.from_dense(torch.nn.Embedding(4, 4, max_norm=1.0), half)

    def test_the_model_may_be_the_layer(self) -> None:
        made, report = made_sparse(torch.nn.Linear(4, 4), SparsityPlan().weight("weight", half))
        assert isinstance(made, SparseLinear)
        assert report["weight"].density == 0.5

    def test_a_copy_leaves_the_model(self) -> None:
        model = mlp()
        before = state(model)
        made, _ = made_sparse(model, inplace=False)
        assert same(before, state(model))
        assert isinstance(made[0], SparseLinear)

    def test_random_numbers_go_on_as_if_nothing_was(self) -> None:
        torch.manual_seed(3)
        expected = torch.rand(2)
        model = mlp()
        torch.manual_seed(3)
        densify_model(made_sparse(model, ALL, torch.randn(2, 6, generator=torch.Generator()), advise=False)[0])
        assert torch.equal(torch.rand(2), expected)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9),
    "Adam": lambda own: torch.optim.Adam(own, lr=0.01, amsgrad=True),
    "AdamW, fused in one": lambda own: torch.optim.AdamW(own, lr=0.01, weight_decay=0.1, foreach=True),
    "Adagrad": lambda own: torch.optim.Adagrad(own, lr=0.1),
}


class TestTraining:
    @every
    def test_parameters_are_listed_in_the_order_of_the_dense_model(self, name: str) -> None:
        """By which optimizers number them."""
        model = MODELS[name][0]()
        names = [own for own, _ in model.named_parameters()]
        model, _ = made_sparse(model, advise=False)
        assert [own.removesuffix(".values") for own, _ in model.named_parameters()] == names
        assert len(list(model.modules())) == len(dict(model.named_modules())) == len({id(own) for own in model.modules()})
        assert next(iter(model.modules())) is model

    def test_a_layer_that_is_the_model_lists_its_weight_first(self) -> None:
        layer = SparseLinear(4, 3, density=0.5)
        assert [name for name, _ in layer.named_parameters("layer")] == ["layer.weight.values", "layer.bias"]
        assert next(iter(layer.modules())) is layer  # torch.export needs that

    def step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_an_optimizer_goes_on_with_the_entries(self, optimizer: str) -> None:
        """As a dense one does whose weight, gradient and memory are 0 elsewhere."""
        model, x = mlp(), torch.randn(5, 6)
        chosen = OPTIMIZERS[optimizer](model.parameters())
        self.step(model, chosen, x)
        dense, other = masked(model), None
        other = OPTIMIZERS[optimizer](dense.parameters())
        other.load_state_dict(copy.deepcopy(chosen.state_dict()))
        masks = {name: own != 0 for name, own in dense.named_parameters()}
        sparse, _ = made_sparse(model, optimizer=chosen)
        held = {id(own) for group in chosen.param_groups for own in group["params"]}
        assert held == {id(own) for own in sparse.parameters()}
        assert set(map(id, chosen.state)) == held
        for _ in range(3):
            self.step(sparse, chosen, x)
            other.zero_grad()
            dense(x).square().sum().backward()
            for name, own in dense.named_parameters():
                own.grad *= masks[name]
            other.step()
            with torch.no_grad():
                for name, own in dense.named_parameters():
                    own *= masks[name]
        back = densify_model(sparse, chosen)
        for (name, own), expected in zip(back.named_parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(own, expected)
            for key, kept in chosen.state[own].items():
                torch.testing.assert_close(kept, other.state[expected][key] * (masks[name] if kept.ndim else 1))
        self.step(back, chosen, x)

    def test_groups_keep_their_options_and_order(self) -> None:
        model = mlp()
        bias = model[0].bias
        optimizer = torch.optim.SGD([{"params": [bias, model[0].weight], "lr": 0.5}, {"params": model[2].parameters()}], lr=0.1)
        made_sparse(model, optimizer=optimizer)
        assert [own is mine for own, mine in zip(optimizer.param_groups[0]["params"], (bias, model[0].weight.values), strict=True)] == [
            1,
            1,
        ]
        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]

    def test_several_optimizers_and_one_that_doesnt_hold_a_weight(self) -> None:
        model = mlp()
        both = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())]
        made_sparse(model, optimizer=both)
        assert [own.param_groups[0]["params"][0] is layer.weight.values for own, layer in zip(both, (model[0], model[2]), strict=True)] == [
            1,
            1,
        ]
        model = mlp()
        _, report = made_sparse(model, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1))
        assert ["the optimizer doesn't hold it" in row.note for row in report.rows] == [False, True]
        for wrong in ([mlp()], 3):
            with pytest.raises(ns.OperandError, match=r"give an optimizer that trains the model"):
                sparsify_model(mlp(), ALL, optimizer=wrong)  # type: ignore[arg-type]

    def test_a_gradient_that_is_there_follows(self) -> None:
        model = mlp()
        model(torch.ones(1, 6)).sum().backward()
        full, mask = model[0].weight.grad.clone(), half(model[0].weight.detach())
        sparse, _ = made_sparse(model)
        assert torch.equal(sparse[0].weight.grad.to_dense(), full * mask)

    def test_a_memory_that_cant_follow_is_refused_before_anything_changes(self) -> None:
        model, x = mlp(), torch.randn(2, 6)
        optimizer = torch.optim.Adafactor(model.parameters())
        self.step(model, optimizer, x)
        before = state(model)
        with pytest.raises(
            ns.UnsupportedError, match=r"0\.weight: Adafactor stores 'row_var', a tensor \(8, 1\), for a parameter \(8, 6\)"
        ):
            sparsify_model(model, ALL, optimizer=optimizer)
        assert same(before, state(model))
        with pytest.raises(ns.OperandError, match="optimizer= with inplace=False"):
            sparsify_model(model, ALL, optimizer=optimizer, inplace=False)

    def test_an_optimizer_of_another_model(self) -> None:
        model, other = mlp(), torch.optim.SGD(mlp().parameters(), lr=0.1)
        for change in (lambda: sparsify_model(model, ALL, optimizer=other), lambda: densify_model(model, other)):
            with pytest.raises(ns.OperandError, match=r"SGD holds no parameter of this model.*pass an optimizer of model\.parameters\(\)"):
                change()
        assert isinstance(model[0], torch.nn.Linear)

    def test_an_optimizer_in_the_place_of_examples(self) -> None:
        model = mlp()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        for given in (optimizer, [optimizer, optimizer]):
            with pytest.raises(ns.OperandError, match=r"the third argument is example_inputs; pass optimizer=optimizer"):
                sparsify_model(model, ALL, given)

    def test_what_isnt_trained_by_an_old_optimizer_is_said(self) -> None:
        _, report = made_sparse(mlp())
        assert report.notes
        assert "no optimizer was given" in str(report)
        model = mlp()
        assert made_sparse(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))[1].notes == ()

    def test_frozen_weights_stay_frozen_and_others_are_trained(self) -> None:
        model = mlp()
        model[0].weight.requires_grad_(False)
        model[2].bias.requires_grad_(False)
        sparse, report = made_sparse(model)
        assert [name for name, own in sparse.named_parameters() if not own.requires_grad] == ["0.weight.values", "2.bias"]
        assert report["0.weight"].note.startswith("frozen, and stays so")
        back = densify_model(sparse)
        assert [name for name, own in back.named_parameters() if not own.requires_grad] == ["0.weight", "2.bias"]


class TestWhatBelongsToAModel:
    @every
    def test_it_turns_back(self, name: str) -> None:
        model = MODELS[name][0]()
        expected = masked(model)
        back = densify_model(made_sparse(model)[0])
        assert same(state(back), state(expected))
        assert [type(own) for own in back.modules() if not isinstance(own, torch.nn.Linear)] == [
            type(own) for own in expected.modules() if not isinstance(own, torch.nn.Linear)
        ]
        assert [name for name, _ in back.named_parameters()] == [name for name, _ in expected.named_parameters()]

    @every
    def test_state_is_saved_and_loaded(self, name: str) -> None:
        model, x = MODELS[name][0](), MODELS[name][1]()
        sparse, _ = made_sparse(model.eval())
        other = copy.deepcopy(sparse)
        buffer = io.BytesIO()
        torch.save(sparse.state_dict(), buffer)
        buffer.seek(0)
        with torch.no_grad():
            for own in other.parameters():
                own.zero_()
        other.load_state_dict(torch.load(buffer, weights_only=True))
        torch.testing.assert_close(other(x), sparse(x), rtol=0, atol=0)

    @every
    def test_copies_and_pickles_are_models_of_their_own(self, name: str) -> None:
        sparse, x = made_sparse(MODELS[name][0]().eval())[0], MODELS[name][1]()
        expected = sparse(x)
        for other in (copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse))):
            torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
            assert not {id(own) for own in other.parameters()} & {id(own) for own in sparse.parameters()}
            assert len(list(other.parameters())) == len(list(sparse.parameters()))

    def test_hooks_go_on_and_their_handles_remove_them(self) -> None:
        model, seen = mlp(), []
        handles = [
            model[0].register_forward_hook(lambda *_: seen.append("forward")),
            model[0].register_forward_pre_hook(lambda *_, **__: seen.append("before"), with_kwargs=True),
            model[0].register_full_backward_hook(lambda *_: seen.append("backward")),
            model[0].register_state_dict_post_hook(lambda *_: seen.append("state")),
        ]
        for turned in (made_sparse, lambda own: (densify_model(own), None)):
            model, _ = turned(model)
            model(torch.ones(1, 6, requires_grad=True)).sum().backward()
            model.state_dict()
            assert seen == ["before", "forward", "backward", "state"]
            seen.clear()
        for handle in handles:
            handle.remove()
        model(torch.ones(1, 6)).sum().backward()
        assert seen == []

    def test_what_was_set_on_a_layer_stays_on_it(self) -> None:
        model = mlp().eval()
        model[2].train()
        model[0].tag, model[0].scale = "first", torch.nn.Parameter(torch.ones(1))
        model[0].register_buffer("count", torch.zeros(1), persistent=False)
        bias, scale = model[0].bias, model[0].scale
        for turned in (lambda own: made_sparse(own)[0], densify_model):
            model = turned(model)
            assert (model[0].tag, model[0].scale is scale, model[0].bias is bias) == ("first", True, True)
            assert (model[0].training, model[2].training) == (False, True)
            assert "0.count" not in model.state_dict()
            assert "0.count" in dict(model.named_buffers())

    def test_a_module_at_two_places_is_replaced_at_both(self) -> None:
        sparse, report = made_sparse(Shared(), SparsityPlan().weight("again.weight", half))
        assert isinstance(sparse.first, SparseLinear)
        assert sparse.first is sparse.again
        assert report["first.weight"].note.startswith("also again.weight")
        back = densify_model(sparse)
        assert back.first is back.again

    def test_tied_weights_stay_tied(self) -> None:
        sparse, report = made_sparse(Tied())
        assert isinstance(sparse.table, SparseEmbedding)
        assert sparse.table.weight is sparse.head.weight
        assert [(row.name, row.note.split("; ")[0]) for row in report.rows] == [("table.weight", "also head.weight")]
        back = densify_model(sparse)
        assert back.table.weight is back.head.weight

    def test_a_weight_that_is_tied_to_one_that_isnt_named_stays_dense(self) -> None:
        model, report = made_sparse(Tied(), SparsityPlan().weight("table.weight", half))
        assert isinstance(model.table, torch.nn.Embedding)
        assert report["table.weight"].note == "tied to head.weight, which no rule names; name both, or neither"

    def test_dense_weights_are_let_go_layer_by_layer(self) -> None:
        """What is alive beside the sparse weights is never more than the dense model and one layer's conversion."""
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
        dense = [weakref.ref(layer.weight) for layer in model]
        alive: list[int] = []

        def convert(layer: torch.nn.Linear, sparsifier: Any, format: Any) -> SparseLinear:
            alive.append(sum(own() is not None for own in dense))
            return SparseLinear.from_dense(layer, sparsifier, format)

        with registered(torch.nn.Linear, convert):
            made_sparse(model)
        assert alive == [8] * 8 + [8, 7, 6, 5, 4, 3, 2, 1]
        assert not any(own() is not None for own in dense)


class registered:
    """A registration, for a while."""

    def __init__(self, kind: type[torch.nn.Module], convert: Any):
        self.kind, self.convert, self.before = kind, convert, dict(layers.VERSIONS)

    def __enter__(self) -> None:
        register_sparse_module(self.kind, self.convert)

    def __exit__(self, *_: object) -> None:
        layers.VERSIONS.clear()
        layers.VERSIONS.update(self.before)


class TestWhatStaysDense:
    @pytest.mark.parametrize("sparsifier", [half, lambda weight: weight > 0], ids=["magnitude", "callable"])
    def test_nan_is_an_error_with_the_layers_name_and_the_model_is_as_before(self, sparsifier: Any) -> None:
        model = mlp()
        with torch.no_grad():
            model[2].weight[1, 3] = torch.nan
        optimizer = torch.optim.Adam(model.parameters())
        before, parameters = copy.deepcopy(optimizer.state_dict()), list(model.parameters())
        with pytest.raises(ns.OperandError, match=r"^2\.weight: the weight has NaN at \(1, 3\)"):
            sparsify_model(model, SparsityPlan().weight("*.weight", sparsifier).activation("0", half), optimizer=optimizer)
        assert [own is mine for own, mine in zip(model.parameters(), parameters, strict=True)] == [True] * 4
        assert optimizer.state_dict() == before
        assert not model[0]._forward_hooks

    def test_whatever_goes_wrong_later_the_model_is_as_before(self) -> None:
        wrong: dict[str, tuple[SparsityPlan, str]] = {
            "format": (ALL.weight("2.weight", lambda w: w == w, "NM(1, 4)"), r"2\.weight: "),
            "mask": (ALL.weight("2.weight", lambda w: w), r"2\.weight: .* returned a tensor of torch\.float32: a mask is a bool tensor"),
            "gradient": (ALL.gradient("2.weight", half, "COO(2)"), r'gradient\("2\.weight"\) in COO\(2\): a sparse weight'),
            "module": (ALL.gradient("2", half, "COO(2)"), r'gradient\("2"\) in COO\(2\): torch passes dense gradients to modules'),
        }
        model = mlp()
        for plan, told in wrong.values():
            with pytest.raises(ns.NumscorchError, match=told):
                sparsify_model(model, plan)
            assert [type(own) for own in model] == [torch.nn.Linear, torch.nn.ReLU, torch.nn.Linear]
        with pytest.raises(ns.OperandError, match="takes a SparsityPlan, not"):
            sparsify_model(model, half)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match=r"takes a model, not int"):
            sparsify_model(3, ALL)  # type: ignore[arg-type]

    def test_a_layer_of_zeros_is_fine(self) -> None:
        model = mlp()
        torch.nn.init.zeros_(model[0].weight)
        sparse, report = made_sparse(model)
        assert report["0.weight"].density == 0.5
        sparse(torch.ones(1, 6)).sum().backward()

    def test_why_is_said(self) -> None:
        model = torch.nn.Sequential(
            torch.nn.LayerNorm(4),
            torch.nn.Conv2d(4, 4, 1, groups=2),
            prune.l1_unstructured(torch.nn.Linear(4, 4), "weight", 0.5),
            parametrizations.orthogonal(torch.nn.Linear(4, 4)),
            torch.nn.Linear(4, 4),
            torch.nn.MultiheadAttention(4, 2, kdim=6),
            torch.nn.LazyLinear(4),
            torch.nn.Linear(4, 4, device="meta"),
        )
        model[4].weight.register_hook(lambda gradient: gradient)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ns.DenseFallbackWarning)
            _, report = made_sparse(model, SparsityPlan().weight("*weight*", half))
        whys = {row.name: row.note for row in report.rows}
        assert not any(row.is_sparse for row in report.rows)
        assert whys["0.weight"] == "a vector, which stays dense"
        assert whys["1.weight"].startswith("groups=2 is not supported by SparseConv2d")
        assert whys["2.weight_orig"].startswith("is pruned by torch; torch.nn.utils.prune.remove(module, 'weight')")
        assert whys["3.parametrizations.weight.original"].startswith("is parametrized")
        assert whys["4.weight"].startswith("has user-defined hooks")
        assert whys["5.out_proj.weight"].startswith("SparseMultiheadAttention has no kdim")
        assert whys["6.weight"] == "has no size yet; run the model once before sparsifying it"
        assert whys["7.weight"].startswith("is on the meta device, and has no values: call model.to_empty")

    def test_what_is_sparse_already_stays_as_it_is(self) -> None:
        sparse, _ = made_sparse(mlp(), SparsityPlan().weight("0.weight", half))
        weight = sparse[0].weight
        again, report = made_sparse(sparse, SparsityPlan().weight("*.weight", magnitude(0.9)))
        assert again[0].weight is weight
        assert report["0.weight"].note == "is sparse already; densify_model makes it dense"
        assert report["2.weight"].density == pytest.approx(0.1, abs=0.02)

    def test_a_rule_for_weights_that_all_are_sparse_already_is_refused(self) -> None:
        """It would do nothing, which nobody sees without a report."""
        sparse, _ = made_sparse(mlp())
        with pytest.raises(
            ns.UnsupportedError, match=r'weight\("\*weight"\) names only weights that are sparse already, such as 0\.weight: call'
        ):
            sparsify_model(sparse, ALL, report=None)

    def test_a_module_without_a_sparse_version_is_warned_of_once_with_what_to_paste(self) -> None:
        def model() -> torch.nn.Module:
            return torch.nn.Sequential(
                torch.nn.Bilinear(3, 3, 2), torch.nn.Linear(3, 3), torch.nn.Conv1d(2, 2, 3), torch.nn.Bilinear(3, 3, 2)
            )

        with ns.ledger() as led, pytest.warns(ns.DenseFallbackWarning) as told:
            made, report = made_sparse(model())
        assert len(told) == 1
        text = str(told[0].message)
        assert "3 weights stay dense" in text
        assert "# 0.weight, 3.weight\ndef sparse_bilinear(layer, sparsifier, format):" in text
        assert "ns.sparsify.register_sparse_module(torch.nn.Conv1d, sparse_conv1d)" in text
        assert told[0].filename == __file__
        assert [entry.what for entry in led if not entry.asked] == [f"{at}.weight: {kind} has no sparse version" for at, kind in NO_VERSION]
        assert isinstance(made[1], SparseLinear)
        assert report["0.weight"].note == "Bilinear has no sparse version; register_sparse_module adds one"
        other = model()
        with ns.strict(), pytest.raises(ns.UnsupportedError, match=r"(?s)3 weights stay dense.*within ns\.strict\(\)"):
            sparsify_model(other, ALL)
        assert type(other[1]) is torch.nn.Linear

    def test_users_modules_take_part(self) -> None:
        class Mine(torch.nn.Linear):
            pass

        model = torch.nn.Sequential(Mine(4, 4))
        with registered(Mine, SparseLinear.from_dense):
            assert isinstance(made_sparse(model)[0][0], SparseLinear)
        with (
            registered(Mine, lambda *_: torch.nn.Linear(4, 4)),
            pytest.raises(ns.OperandError, match=r"0\.weight: the conversion registered for Mine"),
        ):
            sparsify_model(torch.nn.Sequential(Mine(4, 4)), ALL)
        with pytest.raises(ns.OperandError, match="give a class of modules"):
            register_sparse_module(torch.nn.Linear(2, 2), SparseLinear.from_dense)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match="give a function"):
            register_sparse_module(Mine, None)  # type: ignore[arg-type]


NO_VERSION = ((0, "Bilinear"), (2, "Conv1d"), (3, "Bilinear"))


class TestNotes:
    """What the table says of a weight that stores other entries than its sparsifier keeps."""

    @pytest.mark.parametrize(
        ("sparsifier", "format", "is_padded"),
        [
            (magnitude(0.9), "ELL", True),
            (magnitude(0.9), "BCSR(4, 4)", True),
            (n_m(1, 4), "NM(2, 4)", True),
            (compose(block_magnitude(16, 1, 0.5), magnitude(0.75)), None, True),
            (block_magnitude(16, 1, 0.5), None, False),
            (n_m(2, 4), None, False),
            (magnitude(0.9), "(i, j) -> (i: hash, j: compressed)", False),
        ],
    )
    def test_padding(self, sparsifier: Any, format: str | None, is_padded: bool) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64))
        kept = sparsifier(model[0].weight.detach())
        model, report = made_sparse(model, SparsityPlan().weight("0.weight", sparsifier, format))
        share = 100 * (model[0].weight.nnz / int(kept.sum()) - 1)
        told = f"stores {share:.0f} % more entries than the sparsifier keeps; training fills them"
        assert report["0.weight"].note == (told if is_padded else "")
        model(torch.randn(8, 64)).square().sum().backward()
        with torch.no_grad():
            model[0].weight.values.sub_(0.1 * model[0].weight.values.grad)
        assert bool(((model[0].weight.to_dense() != 0) & ~kept).any()) == is_padded

    def test_padding_of_a_frozen_weight_stays_0(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64)).requires_grad_(False)
        _, report = made_sparse(model, SparsityPlan().weight("0.weight", n_m(1, 4), "NM(2, 4)"))
        assert report["0.weight"].note == "frozen, and stays so; stores 100 % more entries than the sparsifier keeps"

    def test_blocks_that_do_not_divide_a_weight(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.Linear(10, 24))
        plan = SparsityPlan().weight("0.weight", block_magnitude(64, 1, 0.5)).weight("1.weight", block_magnitude(16, 1, 0.5))
        _, report = made_sparse(model, plan)
        assert report["0.weight"].note == "takes more bytes than dense"
        assert report["1.weight"].note == "keeps 67 % of the entries instead of 50 %: blocks of (16, 1) do not divide (24, 10)"


class TestAdvice:
    @pytest.fixture(autouse=True)
    def timed(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, ...]]:
        """Layers of 8 inputs are twice as fast dense, and others three times as fast sparse; both are called."""
        calls: list[Any] = []

        def ratio(first: Callable[[], torch.Tensor], second: Callable[[], torch.Tensor]) -> SpeedUp:
            made = [own[0] if isinstance(own, tuple) else own for own in (first(), second())]
            calls.append(tuple(tuple(own.shape) for own in made))
            return SpeedUp(0.5 if calls[-1][0][-1] == 3 else 3.0)

        monkeypatch.setattr(advice, "ratio", ratio)
        return calls

    def test_layers_that_are_faster_dense_stay_dense_unless_told_otherwise(self, timed: list[Any]) -> None:
        x = torch.randn(5, 6)
        model, report = made_sparse(mlp(), ALL, x)
        assert [type(own) for own in model] == [SparseLinear, torch.nn.ReLU, torch.nn.Linear]
        assert (report["0.weight"].speedup, report["2.weight"].speedup) == (3.0, 0.5)
        assert report["2.weight"].note == "dense is 2x faster here; always=True in its rule makes it sparse"
        assert timed == [((5, 8), (5, 8)), ((5, 3), (5, 3))]
        for plan, advise in ((ALL, False), (SparsityPlan().weight("*.weight", half, always=True), True)):
            model, report = made_sparse(mlp(), plan, x, advise=advise)
            assert isinstance(model[2], SparseLinear)
            assert report["2.weight"].speedup == 0.5

    @pytest.mark.parametrize("given", [None, torch.tensor([1, 2])])
    def test_tables_become_sparse_where_they_are_smaller_then_whatever_was_timed(self, timed: list[Any], given: Any) -> None:
        model = torch.nn.Sequential(torch.nn.Embedding(10, 3), torch.nn.Linear(3, 8))  # half: 15 values, 15 coordinates and 11 positions
        _, report = made_sparse(model, ALL, given)
        assert report["0.weight"].note == "takes 164 bytes sparse and 120 bytes dense; always=True in its rule makes it sparse"
        assert (report["0.weight"].bytes_after, report["1.weight"].is_sparse) == (120, True)
        assert isinstance(model[0], torch.nn.Embedding)
        _, report = made_sparse(model, SparsityPlan().weight("0.weight", magnitude(0.8)), given)  # 6 values
        assert (report["0.weight"].bytes_after, report["0.weight"].is_sparse) == (6 * 8 + 11 * 4, True)

    def test_tables_that_are_no_smaller_become_sparse_where_that_is_asked_for(self) -> None:
        for plan, advise in ((ALL, False), (SparsityPlan().weight("*.weight", half, always=True), True)):
            model, _ = made_sparse(torch.nn.Sequential(torch.nn.Embedding(10, 3)), plan, advise=advise)
            assert isinstance(model[0], SparseEmbedding)

    def test_of_a_weight_that_is_tied_to_a_table_the_products_are_timed(self, timed: list[Any]) -> None:
        made_sparse(Tied(), ALL, (torch.tensor([1, 2]),))
        assert timed == [((2, 10), (2, 10))]

    def test_without_an_example_nothing_is_measured(self, timed: list[Any]) -> None:
        _, report = made_sparse(mlp())
        assert [row.speedup for row in report.rows] == [None, None]
        assert "not measured" in str(report)
        assert timed == []

    def test_inputs_that_the_model_does_not_take_are_named(self) -> None:
        model = mlp().train()
        before = repr(model)
        for given, told in ((torch.ones(2, 5), "a tensor of shape \\(2, 5\\)"), ({"x": 3}, "3")):
            with pytest.raises(ns.OperandError, match=rf"does not run with example_inputs \({told}\): \w+: .*\n  give the model's inputs"):
                sparsify_model(model, ALL, given)
        assert (repr(model), model.training) == (before, True)
        assert not model[0]._forward_pre_hooks

    def test_looking_changes_nothing(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 8)).train()
        model[2].eval()
        mean, random = model[1].running_mean.clone(), torch.get_rng_state()
        sparse, _ = made_sparse(model, SparsityPlan().weight("0.weight", half), {"input": torch.ones(2, 6)})
        assert torch.equal(sparse[1].running_mean, mean)
        assert torch.equal(torch.get_rng_state(), random)
        assert [own.training for own in sparse] == [True, True, False, True]
        assert not sparse[0]._forward_pre_hooks

    def test_equal_layers_are_timed_once(self, timed: list[Any]) -> None:
        model = encoder()
        _, report = made_sparse(model, SparsityPlan().weight("layers.*weight", half), torch.randn(2, 5, 8))
        assert len(timed) == 4  # in_proj, out_proj, linear1 and linear2
        assert all(row.speedup == 3.0 for row in report.rows if row.is_sparse)

    def test_what_isnt_called_is_said(self) -> None:
        model = Tied()
        model.extra = torch.nn.Linear(4, 4)
        _, report = made_sparse(model, ALL, (torch.tensor([1, 2]),))
        assert report["extra.weight"].note.startswith("not called by the example")
        assert report["extra.weight"].is_sparse

    def test_timings_are_of_both_in_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        order: list[str] = []
        assert advice.ratio(lambda: order.append("dense"), lambda: order.append("sparse")).ratio > 0
        warm_up, turns = order[:6], order[6:]
        assert warm_up == ["dense"] * 3 + ["sparse"] * 3
        assert all({*turn} == {"dense", "sparse"} for turn in zip(turns[::2], turns[1::2], strict=True))

    def test_where_timings_scatter_the_median_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever bytes a layer takes: it could be many times slower."""
        times = iter((SpeedUp(0.8, is_certain=False), SpeedUp(1.1, is_certain=False)))
        monkeypatch.setattr(advice, "ratio", lambda dense, sparse: next(times))
        plan = SparsityPlan().weight("0.weight", magnitude(0.9)).weight("2.weight", half)
        model, report = made_sparse(mlp(), plan, torch.randn(5, 6))
        assert [type(own) for own in model] == [torch.nn.Linear, torch.nn.ReLU, SparseLinear]
        assert [(row.speedup, row.is_certain, row.cells()[6]) for row in report.rows] == [
            (0.8, False, "0.8x uncertain"),
            (1.1, False, "1.1x uncertain"),
        ]
        assert report["0.weight"].note == "dense is 1.2x faster here; always=True in its rule makes it sparse"
        assert report["2.weight"].note == "takes more bytes than dense"

    @pytest.mark.parametrize(
        ("dense", "sparse", "is_certain"),
        [
            ([3.0, 3.1, 3.0, 3.2, 3.0], [1.0, 1.1, 1.0, 1.0, 1.2], True),
            ([41.0, 34.0, 57.0, 38.0, 45.0], [38.0, 50.0, 31.0, 39.0, 43.0], False),  # a 2-core machine at load 8; both waited
            ([0.9, 0.9, 0.9, 0.9, 0.9], [9.0, 1.0, 9.0, 0.2, 9.0], False),  # "dense is 10x faster" by what the sparse calls waited
        ],
    )
    def test_a_ratio_of_turns_that_scatter_is_uncertain(self, dense: list[float], sparse: list[float], is_certain: bool) -> None:
        assert advice.compared(dense, sparse).is_certain == is_certain


class TestFlows:
    def test_activations_are_masked_and_so_are_their_gradients(self) -> None:
        model, x = mlp(), torch.randn(5, 6)
        plain = copy.deepcopy(model)
        model, _ = made_sparse(model, SparsityPlan().activation("1", half))
        hidden = plain[1](plain[0](x))
        expected = plain[2](torch.where(half(hidden.detach()), hidden, 0))
        torch.testing.assert_close(model(x), expected)
        model(x).sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(model[0].weight.grad, plain[0].weight.grad)

    def test_activations_reach_sparse_layers_as_sparse_tensors(self) -> None:
        plan = SparsityPlan().weight("2.weight", half).activation("1", half, "CSR")
        model, x = made_sparse(mlp(), plan)[0], torch.randn(5, 6)
        seen: list[Any] = []
        model[2].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        made = model(x)
        assert isinstance(seen[0], ns.SparseTensor)
        assert seen[0].nnz == 20
        made.sum().backward()
        assert model[0].weight.grad is not None
        plain = made_sparse(densify_model(copy.deepcopy(model)), SparsityPlan().activation("1", half))[0]
        torch.testing.assert_close(plain(x), made)

    def test_gradients_of_results_and_of_weights_are_masked(self) -> None:
        keep = magnitude(0.75)
        model, x = mlp(), torch.randn(5, 6)
        plain = copy.deepcopy(model)
        made_sparse(model, SparsityPlan().gradient("1", keep).gradient("2.weight", keep))
        for own in (model, plain):
            own(x).square().sum().backward()
        assert int((model[2].weight.grad != 0).sum()) == 6
        torch.testing.assert_close(model[2].weight.grad, plain[2].weight.grad * keep(plain[2].weight.grad))
        hidden = plain[1](plain[0](x)).detach().requires_grad_()
        plain[2](hidden).square().sum().backward()
        upstream = hidden.grad * keep(hidden.grad) * (hidden > 0)
        torch.testing.assert_close(model[0].weight.grad, upstream.T @ x)

    def test_a_sparse_weights_gradient_keeps_its_pattern(self) -> None:
        model, _ = made_sparse(mlp(), ALL.gradient("0.weight", half))
        model(torch.randn(5, 6)).sum().backward()
        assert int((model[0].weight.values.grad != 0).sum()) == 12

    def test_a_dense_parameters_gradient_may_be_coordinates(self) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made_sparse(model, SparsityPlan().gradient("0.weight", half, "COO(2)"))
        before = model[0].weight.detach().clone()
        for _ in range(2):  # added up
            model(torch.randn(5, 6)).sum().backward()
            assert model[0].weight.grad.layout == torch.sparse_coo
        expected = before - 0.1 * model[0].weight.grad.to_dense()
        optimizer.step()
        torch.testing.assert_close(model[0].weight.detach(), expected)
        with pytest.raises(ns.UnsupportedError, match=r"grad of 0\.weight can be dense or COO\(2\)"):
            sparsify_model(mlp(), SparsityPlan().gradient("0.weight", half, "CSR"))

    def test_copies_and_pickles_have_the_same_flows_and_another_plan_replaces_them(self) -> None:
        plan = SparsityPlan().activation("1", half).gradient("2", half).gradient("0.weight", magnitude(1.0))
        model, x = made_sparse(mlp(), plan)[0], torch.randn(5, 6)
        model(x).sum().backward()
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other.zero_grad()
            other(x).sum().backward()
            assert not other[0].weight.grad.any()
            torch.testing.assert_close(other[2].weight.grad, model[2].weight.grad)
        made_sparse(model, SparsityPlan().gradient("0.weight", magnitude(0.0)))
        assert len(model[0]._forward_pre_hooks) == 1
        model.zero_grad()
        model(x).sum().backward()
        assert model[0].weight.grad.any()

    def test_densify_takes_them_away(self) -> None:
        model, x = mlp(), torch.randn(5, 6)
        expected = model(x)
        expected.sum().backward()
        gradient = model[0].weight.grad.clone()
        model.zero_grad()
        made_sparse(model, SparsityPlan().activation("1", half).gradient("2", half).gradient("0.weight", half, "COO(2)"))
        model(x).sum().backward()
        densify_model(model)
        model.zero_grad()
        torch.testing.assert_close(model(x), expected)
        model(x).sum().backward()
        torch.testing.assert_close(model[0].weight.grad, gradient)

    def test_what_returns_no_tensor_is_refused_and_tuples_first_is_taken(self) -> None:
        class Odd(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> Any:
                return {"made": x}

        model, _ = made_sparse(torch.nn.Sequential(Odd()), SparsityPlan().activation("0", half))
        with pytest.raises(ns.OperandError, match="0 returns dict, not a tensor"):
            model(torch.ones(2))
        attend = torch.nn.Sequential(torch.nn.LSTM(3, 4))
        made_sparse(attend, SparsityPlan().activation("0", half))
        assert int((attend(torch.randn(5, 3))[0] != 0).sum()) == 10


class TestReport:
    def test_it_is_printed_unless_it_is_taken(self, capsys: pytest.CaptureFixture[str]) -> None:
        sparsify_model(mlp(), ALL, report=None)
        assert capsys.readouterr().out == ""
        sparsify_model(mlp(), SparsityPlan().weight("*.weight", block_magnitude(4, 1, 0.5)))
        told = capsys.readouterr().out
        assert told.startswith("weight    module  density  format      before     after")
        assert "0.weight  Linear  0.5      BCSR(4, 1)  192 bytes" in told

    def test_bytes_are_those_of_values_and_index_arrays(self) -> None:
        _, report = made_sparse(torch.nn.Sequential(torch.nn.Linear(16, 8)))
        row = report["0.weight"]
        assert (row.bytes_before, row.bytes_after) == (512, 64 * 4 + 64 * 4 + 9 * 4)
        assert (report.bytes_before, report.bytes_after) == (row.bytes_before, row.bytes_after)

    def test_a_bar_is_shown_where_it_is_asked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        made_sparse(mlp(), progress=True)
        assert "sparsifying  [##############################] 100%" in capsys.readouterr().err
        made_sparse(mlp())
        assert capsys.readouterr().err == ""
