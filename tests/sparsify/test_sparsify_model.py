"""Models sparsified by name compute what masked dense models compute; they train, save, copy and densify with their state."""

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
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.utils import parametrizations, prune

import numscorch as ns
from numscorch.nn import SparseEmbedding, SparseLinear, SparseMultiheadAttention
from numscorch.sparsify import (
    ModelReport,
    SparsityPlan,
    block_magnitude,
    compose,
    densify_model,
    layers,
    magnitude,
    n_m,
    register_sparse_module,
    settling,
    sparsify_model,
    threshold,
)
from numscorch.sparsify.settling import SpeedUp
from numscorch.tensors.parameter import SparseParameter

pytestmark = pytest.mark.usefixtures("seeded", "interpreted")
half = magnitude(0.5)
ALL = SparsityPlan().weight("*weight", half)


def sparsified(model: torch.nn.Module, plan: SparsityPlan = ALL, *args: Any, **options: Any) -> tuple[Any, ModelReport]:
    reports: list[ModelReport] = []
    model = sparsify_model(model, plan, *args, report=reports.append, **options)
    return model, reports[0]


def mlp() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def masked(model: torch.nn.Module, sparsifier: Callable[[torch.Tensor], torch.Tensor] = half, names: str = "weight") -> torch.nn.Module:
    """A copy of the model whose matrices are 0 where the sparsifier keeps nothing."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if parameter.ndim > 1 and names in name:
                parameter *= sparsifier(parameter.flatten(1)).reshape(parameter.shape)
    return copied


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def compare_gradients(sparse: torch.nn.Module, dense: torch.nn.Module) -> None:
    """The gradients of the sparse model equal those of the dense model at stored entries."""
    for name, expected in dense.named_parameters():
        path, _, key = name.rpartition(".")
        parameter = getattr(sparse.get_submodule(path), key)
        if isinstance(parameter, SparseParameter):
            stored = parameter.with_values(torch.ones(parameter.values.shape)).to_dense() != 0
            torch.testing.assert_close(parameter.grad.to_dense(), torch.where(stored, expected.grad.flatten(1), 0))
        else:
            torch.testing.assert_close(parameter.grad, expected.grad)


class Tied(torch.nn.Module):
    """A language model that shares one weight between embedding table and head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(10, 6), torch.nn.Linear(6, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.table(words))
        return logits


class Shared(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.again(self.first(x)))
        return result


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
    def test_results_and_gradients_equal_those_of_the_masked_model(self, name: str, training: bool) -> None:
        model, x = MODELS[name][0](), MODELS[name][1]()
        dense = masked(model).train(training)
        sparse, report = sparsified(model.train(training))
        assert all(row.is_sparse for row in report.rows if row.module not in ("LayerNorm", "BatchNorm2d"))
        torch.testing.assert_close(sparse(x), dense(x))
        sparse(x).square().sum().backward()
        dense(x).square().sum().backward()
        compare_gradients(sparse, dense)

    @pytest.mark.parametrize(
        "plan", [ALL, SparsityPlan().weight("*out_proj.weight", half), SparsityPlan().weight("layers.1.*.weight", half)]
    )
    @pytest.mark.parametrize("padded", [False, True])
    def test_encoders_with_sparse_weights_bypass_torchs_fused_kernel(self, plan: SparsityPlan, padded: bool) -> None:
        model, x = encoder().eval(), torch.randn(2, 5, 8)
        mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
        sparse, _ = sparsified(model, plan)
        dense = densify_model(copy.deepcopy(sparse))
        with torch.no_grad():
            expected, result = dense(x, src_key_padding_mask=mask), sparse(x, src_key_padding_mask=mask)
        torch.testing.assert_close(result[0], expected[0])
        torch.testing.assert_close(result[1, :3], expected[1, :3])

    @pytest.mark.parametrize("need_weights", [True, False])
    @pytest.mark.parametrize("batch_first", [True, False])
    @pytest.mark.parametrize("masks", ["none", "bool", "float", "each head", "padding", "both"])
    def test_attention_equals_torchs(self, need_weights: bool, batch_first: bool, masks: str) -> None:
        dense = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first)
        sparse = SparseMultiheadAttention.from_dense(dense, lambda weight: weight == weight)
        q, k = (torch.randn(*((3, n, 8) if batch_first else (n, 3, 8))) for n in (4, 5))
        attn = {"bool": torch.rand(4, 5) < 0.3, "float": torch.randn(4, 5), "each head": torch.randn(6, 4, 5), "both": torch.randn(4, 5)}
        padding = torch.arange(5).expand(3, 5) >= 4 if masks in ("padding", "both") else None
        options = {"need_weights": need_weights, "attn_mask": attn.get(masks), "key_padding_mask": padding}
        if masks == "both":
            options["key_padding_mask"] = torch.zeros(3, 5).masked_fill(padding, -torch.inf)
        for result, expected in zip(sparse(q, k, k, **options), dense(q, k, k, **options), strict=True):
            torch.testing.assert_close(result, expected)
        if masks == "none":
            one = sparse(q[0], q[0], q[0], need_weights=need_weights, average_attn_weights=False)
            for result, expected in zip(one, dense(q[0], q[0], q[0], need_weights=need_weights, average_attn_weights=False), strict=True):
                torch.testing.assert_close(result, expected)

    def test_encoders_with_sparse_weights_compile(self) -> None:
        sparse, x = sparsified(encoder(nested=False).eval())[0], torch.randn(2, 5, 8)
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(sparse, backend="eager", fullgraph=True)(x), sparse(x))

    def test_lookups_and_conversions_of_tables(self) -> None:
        dense = torch.nn.Embedding(10, 4, padding_idx=2)
        sparse = SparseEmbedding.from_dense(dense, half)
        words = torch.tensor([[1, 2], [9, 1]])
        expected = torch.where(half(dense.weight.detach()), dense.weight, 0)[words]
        torch.testing.assert_close(sparse(words), expected)
        sparse(words).sum().backward()
        gradient = sparse.weight.grad.to_dense()
        assert gradient.sum(1)[[0, 2]].tolist() == [0, 0]
        assert gradient.sum(1)[1] == 2 * half(dense.weight.detach())[1].sum()
        assert torch.equal(sparse.to_dense().weight, torch.where(half(dense.weight.detach()), dense.weight, 0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert sparse(words).dtype == dense(words).dtype
        with pytest.raises(ns.OperandError, match=r"input is a tensor \(2,\) of torch\.float32: indices"):
            sparse(torch.ones(2))
        with pytest.raises(ns.UnsupportedError, match=r"max_norm=1\.0 is not supported by SparseEmbedding"):
            SparseEmbedding.from_dense(torch.nn.Embedding(4, 4, max_norm=1.0), half)

    def test_a_layer_is_a_model_too(self) -> None:
        layer, report = sparsified(torch.nn.Linear(4, 4), SparsityPlan().weight("weight", half))
        assert isinstance(layer, SparseLinear)
        assert report["weight"].density == 0.5

    def test_inplace_false_leaves_the_model_unchanged(self) -> None:
        model = mlp()
        before = state(model)
        copied, _ = sparsified(model, inplace=False)
        assert same(before, state(model))
        assert isinstance(copied[0], SparseLinear)

    def test_the_state_of_the_random_generator_is_kept(self) -> None:
        torch.manual_seed(3)
        expected = torch.rand(2)
        model = mlp()
        torch.manual_seed(3)
        densify_model(sparsified(model, ALL, torch.randn(2, 6, generator=torch.Generator()), advise=False)[0])
        assert torch.equal(torch.rand(2), expected)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "AdamW, fused in one": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, foreach=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


class TestTrainedModels:
    @every
    def test_parameters_are_listed_in_the_order_of_the_dense_model(self, name: str) -> None:
        """The states of optimizers number parameters in this order."""
        model = MODELS[name][0]()
        names = [name for name, _ in model.named_parameters()]
        model, _ = sparsified(model, advise=False)
        assert [name.removesuffix(".values") for name, _ in model.named_parameters()] == names
        assert len(list(model.modules())) == len(dict(model.named_modules())) == len({id(module) for module in model.modules()})
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
    def test_an_optimizer_continues_with_the_stored_entries(self, optimizer: str) -> None:
        """It acts as a dense optimizer whose weights, gradients and state are 0 at unstored entries."""
        model, x = mlp(), torch.randn(5, 6)
        chosen = OPTIMIZERS[optimizer](model.parameters())
        self.step(model, chosen, x)
        dense, other = masked(model), None
        other = OPTIMIZERS[optimizer](dense.parameters())
        other.load_state_dict(copy.deepcopy(chosen.state_dict()))
        masks = {name: parameter != 0 for name, parameter in dense.named_parameters()}
        sparse, _ = sparsified(model, optimizer=chosen)
        held = {id(parameter) for group in chosen.param_groups for parameter in group["params"]}
        assert held == {id(parameter) for parameter in sparse.parameters()}
        assert set(map(id, chosen.state)) == held
        for _ in range(3):
            self.step(sparse, chosen, x)
            other.zero_grad()
            dense(x).square().sum().backward()
            for name, parameter in dense.named_parameters():
                parameter.grad *= masks[name]
            other.step()
            with torch.no_grad():
                for name, parameter in dense.named_parameters():
                    parameter *= masks[name]
        back = densify_model(sparse, chosen)
        for (name, parameter), expected in zip(back.named_parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(parameter, expected)
            for key, value in chosen.state[parameter].items():
                torch.testing.assert_close(value, other.state[expected][key] * (masks[name] if value.ndim else 1))
        self.step(back, chosen, x)

    def test_groups_keep_their_options_and_order(self) -> None:
        model = mlp()
        bias = model[0].bias
        optimizer = torch.optim.SGD([{"params": [bias, model[0].weight], "lr": 0.5}, {"params": model[2].parameters()}], lr=0.1)
        sparsified(model, optimizer=optimizer)
        parameters = optimizer.param_groups[0]["params"]
        assert [parameter is original for parameter, original in zip(parameters, (bias, model[0].weight.values), strict=True)] == [1, 1]
        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]

    def test_several_optimizers_and_one_without_a_weight(self) -> None:
        model = mlp()
        both = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())]
        sparsified(model, optimizer=both)
        firsts = [optimizer.param_groups[0]["params"][0] for optimizer in both]
        assert [parameter is layer.weight.values for parameter, layer in zip(firsts, (model[0], model[2]), strict=True)] == [1, 1]
        model = mlp()
        _, report = sparsified(model, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1))
        assert ["the optimizer doesn't hold it" in row.note for row in report.rows] == [False, True]
        for wrong in ([mlp()], 3):
            with pytest.raises(ns.OperandError, match=r"give an optimizer that trains the model"):
                sparsify_model(mlp(), ALL, optimizer=wrong)  # type: ignore[arg-type]

    def test_an_existing_gradient_follows(self) -> None:
        model = mlp()
        model(torch.ones(1, 6)).sum().backward()
        full, mask = model[0].weight.grad.clone(), half(model[0].weight.detach())
        sparse, _ = sparsified(model)
        assert torch.equal(sparse[0].weight.grad.to_dense(), full * mask)

    def test_optimizer_state_that_cannot_follow_is_refused_before_any_change(self) -> None:
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

    def test_an_optimizer_passed_as_example_inputs_is_refused(self) -> None:
        model = mlp()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        for given in (optimizer, [optimizer, optimizer]):
            with pytest.raises(ns.OperandError, match=r"the third argument is example_inputs; pass optimizer=optimizer"):
                sparsify_model(model, ALL, given)

    def test_the_report_notes_a_missing_optimizer(self) -> None:
        _, report = sparsified(mlp())
        assert report.notes
        assert "no optimizer was given" in str(report)
        model = mlp()
        assert sparsified(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))[1].notes == ()

    def test_frozen_parameters_stay_frozen(self) -> None:
        model = mlp()
        model[0].weight.requires_grad_(False)
        model[2].bias.requires_grad_(False)
        sparse, report = sparsified(model)
        assert [name for name, parameter in sparse.named_parameters() if not parameter.requires_grad] == ["0.weight.values", "2.bias"]
        assert report["0.weight"].note.startswith("frozen, and stays so")
        back = densify_model(sparse)
        assert [name for name, parameter in back.named_parameters() if not parameter.requires_grad] == ["0.weight", "2.bias"]


class TestModelState:
    @every
    def test_densify_model_restores_the_masked_model(self, name: str) -> None:
        model = MODELS[name][0]()
        expected = masked(model)
        back = densify_model(sparsified(model)[0])
        assert same(state(back), state(expected))
        assert [type(module) for module in back.modules() if not isinstance(module, torch.nn.Linear)] == [
            type(module) for module in expected.modules() if not isinstance(module, torch.nn.Linear)
        ]
        assert [name for name, _ in back.named_parameters()] == [name for name, _ in expected.named_parameters()]

    @every
    def test_state_is_saved_and_loaded(self, name: str) -> None:
        model, x = MODELS[name][0](), MODELS[name][1]()
        sparse, _ = sparsified(model.eval())
        other = copy.deepcopy(sparse)
        buffer = io.BytesIO()
        torch.save(sparse.state_dict(), buffer)
        buffer.seek(0)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        other.load_state_dict(torch.load(buffer, weights_only=True))
        torch.testing.assert_close(other(x), sparse(x), rtol=0, atol=0)

    @every
    def test_copies_and_pickles_are_independent(self, name: str) -> None:
        sparse, x = sparsified(MODELS[name][0]().eval())[0], MODELS[name][1]()
        expected = sparse(x)
        for other in (copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse))):
            torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
            assert not {id(parameter) for parameter in other.parameters()} & {id(parameter) for parameter in sparse.parameters()}
            assert len(list(other.parameters())) == len(list(sparse.parameters()))

    def test_hooks_are_kept_and_their_handles_remove_them(self) -> None:
        model, seen = mlp(), []
        handles = [
            model[0].register_forward_hook(lambda *_: seen.append("forward")),
            model[0].register_forward_pre_hook(lambda *_, **__: seen.append("before"), with_kwargs=True),
            model[0].register_full_backward_hook(lambda *_: seen.append("backward")),
            model[0].register_state_dict_post_hook(lambda *_: seen.append("state")),
        ]
        for convert in (sparsified, lambda model: (densify_model(model), None)):
            model, _ = convert(model)
            model(torch.ones(1, 6, requires_grad=True)).sum().backward()
            model.state_dict()
            assert seen == ["before", "forward", "backward", "state"]
            seen.clear()
        for handle in handles:
            handle.remove()
        model(torch.ones(1, 6)).sum().backward()
        assert seen == []

    def test_attributes_of_a_layer_are_kept(self) -> None:
        model = mlp().eval()
        model[2].train()
        model[0].tag, model[0].scale = "first", torch.nn.Parameter(torch.ones(1))
        model[0].register_buffer("count", torch.zeros(1), persistent=False)
        bias, scale = model[0].bias, model[0].scale
        for convert in (lambda model: sparsified(model)[0], densify_model):
            model = convert(model)
            assert (model[0].tag, model[0].scale is scale, model[0].bias is bias) == ("first", True, True)
            assert (model[0].training, model[2].training) == (False, True)
            assert "0.count" not in model.state_dict()
            assert "0.count" in dict(model.named_buffers())

    def test_a_module_at_two_places_is_replaced_at_both(self) -> None:
        sparse, report = sparsified(Shared(), SparsityPlan().weight("again.weight", half))
        assert isinstance(sparse.first, SparseLinear)
        assert sparse.first is sparse.again
        assert report["first.weight"].note.startswith("also again.weight")
        back = densify_model(sparse)
        assert back.first is back.again

    def test_tied_weights_stay_tied(self) -> None:
        sparse, report = sparsified(Tied())
        assert isinstance(sparse.table, SparseEmbedding)
        assert sparse.table.weight is sparse.head.weight
        assert [(row.name, row.note.split("; ")[0]) for row in report.rows] == [("table.weight", "also head.weight")]
        back = densify_model(sparse)
        assert back.table.weight is back.head.weight

    def test_a_weight_tied_to_an_unnamed_weight_stays_dense(self) -> None:
        model, report = sparsified(Tied(), SparsityPlan().weight("table.weight", half))
        assert isinstance(model.table, torch.nn.Embedding)
        assert report["table.weight"].note == "tied to head.weight, which no rule names; name both, or neither"

    def test_dense_weights_are_freed_layer_by_layer(self) -> None:
        """Peak memory is that of the dense model, the sparse weights and the conversion of one layer."""
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
        dense = [weakref.ref(layer.weight) for layer in model]
        alive: list[int] = []

        def convert(layer: torch.nn.Linear, sparsifier: Any, format: Any) -> SparseLinear:
            alive.append(sum(reference() is not None for reference in dense))
            return SparseLinear.from_dense(layer, sparsifier, format)

        with registered(torch.nn.Linear, convert):
            sparsified(model)
        assert alive == [8] * 8 + [8, 7, 6, 5, 4, 3, 2, 1]
        assert not any(reference() is not None for reference in dense)


class registered:
    """Registers a conversion within a with statement."""

    def __init__(self, kind: type[torch.nn.Module], convert: Any):
        self.kind, self.convert, self.before = kind, convert, dict(layers.VERSIONS)

    def __enter__(self) -> None:
        register_sparse_module(self.kind, self.convert)

    def __exit__(self, *_: object) -> None:
        layers.VERSIONS.clear()
        layers.VERSIONS.update(self.before)


class TestWhatStaysDense:
    @pytest.mark.parametrize("sparsifier", [half, lambda weight: weight > 0], ids=["magnitude", "callable"])
    def test_nan_is_an_error_with_the_layers_name_and_the_model_is_unchanged(self, sparsifier: Any) -> None:
        model = mlp()
        with torch.no_grad():
            model[2].weight[1, 3] = torch.nan
        optimizer = torch.optim.Adam(model.parameters())
        before, parameters = copy.deepcopy(optimizer.state_dict()), list(model.parameters())
        with pytest.raises(ns.OperandError, match=r"^2\.weight: the weight has NaN at \(1, 3\)"):
            sparsify_model(model, SparsityPlan().weight("*.weight", sparsifier).activation("0", half), optimizer=optimizer)
        assert [after is parameter for after, parameter in zip(model.parameters(), parameters, strict=True)] == [True] * 4
        assert optimizer.state_dict() == before
        assert not model[0]._forward_hooks

    def test_later_errors_leave_the_model_unchanged(self) -> None:
        wrong: dict[str, tuple[SparsityPlan, str]] = {
            "format": (ALL.weight("2.weight", lambda w: w == w, "NM(1, 4)"), r"2\.weight: "),
            "mask": (ALL.weight("2.weight", lambda w: w), r"2\.weight: .* returned a tensor of torch\.float32: a mask is a bool tensor"),
            "gradient": (ALL.gradient("2.weight", half, "COO(2)"), r'gradient\("2\.weight"\) in COO\(2\): a sparse weight'),
            "module": (ALL.gradient("2", half, "COO(2)"), r'gradient\("2"\) in COO\(2\): torch passes dense gradients to modules'),
        }
        model = mlp()
        for plan, message in wrong.values():
            with pytest.raises(ns.NumscorchError, match=message):
                sparsify_model(model, plan)
            assert [type(layer) for layer in model] == [torch.nn.Linear, torch.nn.ReLU, torch.nn.Linear]
        with pytest.raises(ns.OperandError, match="takes a SparsityPlan, not"):
            sparsify_model(model, half)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match=r"takes a model, not int"):
            sparsify_model(3, ALL)  # type: ignore[arg-type]

    def test_a_layer_of_zeros_becomes_sparse(self) -> None:
        model = mlp()
        torch.nn.init.zeros_(model[0].weight)
        sparse, report = sparsified(model)
        assert report["0.weight"].density == 0.5
        sparse(torch.ones(1, 6)).sum().backward()

    def test_the_report_says_why_weights_stay_dense(self) -> None:
        model = torch.nn.Sequential(
            torch.nn.LayerNorm(4),
            torch.nn.Conv2d(4, 4, 1, groups=2),
            parametrizations.orthogonal(torch.nn.Linear(4, 4)),
            torch.nn.Linear(4, 4),
            torch.nn.MultiheadAttention(4, 2, kdim=6),
            torch.nn.LazyLinear(4),
            torch.nn.Linear(4, 4, device="meta"),
        )
        model[3].weight.register_hook(lambda gradient: gradient)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ns.DenseFallbackWarning)
            _, report = sparsified(model, SparsityPlan().weight("*weight*", half))
        notes = {row.name: row.note for row in report.rows}
        assert not any(row.is_sparse for row in report.rows)
        assert notes["0.weight"] == "a vector, which stays dense"
        assert notes["1.weight"].startswith("groups=2 is not supported by SparseConv2d")
        assert notes["2.parametrizations.weight.original"].startswith("is parametrized")
        assert notes["3.weight"].startswith("has user-defined hooks")
        assert notes["4.out_proj.weight"].startswith("SparseMultiheadAttention has no kdim")
        assert notes["5.weight"] == "has no size yet; run the model once before sparsifying it"
        assert notes["6.weight"].startswith("is on the meta device, and has no values: call model.to_empty")

    def test_an_optimizer_of_replaced_weights_warns_at_its_next_step(self) -> None:
        """Once for each change; optimizers that hold other weights are silent."""

        def trained(model: torch.nn.Module, optimizer: Any) -> list[str]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    optimizer.zero_grad()
                    model(torch.ones(1, 4)).sum().backward()
                    optimizer.step()
            assert all(one.filename == __file__ for one in caught)
            return [str(one.message) for one in caught]

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
        passed, left_out = torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)
        copied, _ = sparsified(model, inplace=False)
        assert not trained(copied, torch.optim.Adam(copied.parameters()))
        assert not trained(model, left_out)
        model, _ = sparsified(model, SparsityPlan().weight("0.weight", half), optimizer=passed)
        assert not trained(model, passed)
        (message,) = trained(model, left_out)
        assert message.startswith("SGD holds 1 parameters that are no longer part of the model")
        assert message.endswith("pass optimizer= to that function, or make a new optimizer of model.parameters()")
        model = densify_model(model)
        assert [text.split(" ")[:3] for text in (*trained(model, passed), *trained(model, left_out))] == [
            ["Adam", "holds", "1"],
            ["SGD", "holds", "1"],
        ]

    @pytest.mark.parametrize("names", ["*.weight", "0.weight", "*", "*orig*"])
    @pytest.mark.parametrize("tool", ["prune", "ao"])
    def test_masks_of_torch_are_refused_before_any_change(self, names: str, tool: str) -> None:
        """A rule for weights names the pruned ones, too; it does not store only the layers that were not pruned."""
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
        if tool == "prune":
            prune.l1_unstructured(model[0], "weight", 0.5)
        else:
            pruning = WeightNormSparsifier(0.5, (1, 1), 1)
            pruning.prepare(model, [{"tensor_fqn": "0.weight"}])
            pruning.step()
        expected, layers = model[0].weight.detach().clone(), list(model)
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight is pruned by torch; .* leaves a plain weight; threshold\(0\.0\)"):
            sparsified(model, SparsityPlan().weight(names, threshold(0.0)))
        assert list(model) == layers
        with pytest.raises(ns.UnsupportedError, match=r"2\.weight is pruned by torch; .*prune\.remove\(module, 'bias'\)"):
            sparsified(torch.nn.ModuleDict({"2": prune.l1_unstructured(torch.nn.Linear(4, 4), "bias", 0.5)}))
        if tool == "prune":
            prune.remove(model[0], "weight")
        else:
            pruning.squash_mask()
        sparse, report = sparsified(model, SparsityPlan().weight("*.weight", threshold(0.0)))
        assert report["0.weight"].density == 0.5
        assert torch.equal(sparse[0].weight.to_dense(), expected)

    def test_sparse_weights_stay_unchanged(self) -> None:
        sparse, _ = sparsified(mlp(), SparsityPlan().weight("0.weight", half))
        weight = sparse[0].weight
        again, report = sparsified(sparse, SparsityPlan().weight("*.weight", magnitude(0.9)))
        assert again[0].weight is weight
        assert report["0.weight"].note == "is sparse already; densify_model makes it dense"
        assert report["2.weight"].density == pytest.approx(0.1, abs=0.02)

    def test_a_rule_that_names_only_sparse_weights_is_refused(self) -> None:
        """Without the error, the rule would silently do nothing."""
        sparse, _ = sparsified(mlp())
        with pytest.raises(
            ns.UnsupportedError, match=r'weight\("\*weight"\) names only weights that are sparse already, such as 0\.weight: call'
        ):
            sparsify_model(sparse, ALL, report=None)

    def test_modules_without_a_sparse_version_warn_once_with_code_to_paste(self) -> None:
        def model() -> torch.nn.Module:
            return torch.nn.Sequential(
                torch.nn.Bilinear(3, 3, 2), torch.nn.Linear(3, 3), torch.nn.Conv1d(2, 2, 3), torch.nn.Bilinear(3, 3, 2)
            )

        with ns.ledger() as led, pytest.warns(ns.DenseFallbackWarning) as records:
            sparse, report = sparsified(model())
        assert len(records) == 1
        text = str(records[0].message)
        assert "3 weights stay dense" in text
        assert "# 0.weight, 3.weight\ndef sparse_bilinear(layer, sparsifier, format):" in text
        assert "ns.sparsify.register_sparse_module(torch.nn.Conv1d, sparse_conv1d)" in text
        assert records[0].filename == __file__
        assert [entry.what for entry in led if not entry.asked] == [f"{at}.weight: {kind} has no sparse version" for at, kind in NO_VERSION]
        assert isinstance(sparse[1], SparseLinear)
        assert report["0.weight"].note == "Bilinear has no sparse version; register_sparse_module adds one"
        other = model()
        with ns.strict(), pytest.raises(ns.UnsupportedError, match=r"(?s)3 weights stay dense.*within ns\.strict\(\)"):
            sparsify_model(other, ALL)
        assert type(other[1]) is torch.nn.Linear

    def test_registered_modules_of_users_become_sparse(self) -> None:
        class Mine(torch.nn.Linear):
            pass

        model = torch.nn.Sequential(Mine(4, 4))
        with registered(Mine, SparseLinear.from_dense):
            assert isinstance(sparsified(model)[0][0], SparseLinear)
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
    """Notes of the report on weights that store other entries than their sparsifier keeps."""

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
        mask = sparsifier(model[0].weight.detach())
        model, report = sparsified(model, SparsityPlan().weight("0.weight", sparsifier, format))
        share = 100 * (model[0].weight.nnz / int(mask.sum()) - 1)
        note = f"stores {share:.0f} % more entries than the sparsifier keeps; training fills them"
        assert report["0.weight"].note == (note if is_padded else "")
        model(torch.randn(8, 64)).square().sum().backward()
        with torch.no_grad():
            model[0].weight.values.sub_(0.1 * model[0].weight.values.grad)
        assert bool(((model[0].weight.to_dense() != 0) & ~mask).any()) == is_padded

    def test_padding_of_a_frozen_weight_stays_0(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64)).requires_grad_(False)
        _, report = sparsified(model, SparsityPlan().weight("0.weight", n_m(1, 4), "NM(2, 4)"))
        assert report["0.weight"].note == "frozen, and stays so; stores 100 % more entries than the sparsifier keeps"

    def test_blocks_that_do_not_divide_a_weight(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.Linear(10, 24))
        plan = SparsityPlan().weight("0.weight", block_magnitude(64, 1, 0.5)).weight("1.weight", block_magnitude(16, 1, 0.5))
        _, report = sparsified(model, plan)
        assert report["0.weight"].note == "takes more bytes than dense"
        assert report["1.weight"].note == "keeps 67 % of the entries instead of 50 %: blocks of (16, 1) do not divide (24, 10)"


class TestAdvice:
    @pytest.fixture(autouse=True)
    def timed(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, ...]]:
        """Replaces timing: layers with 8 inputs are twice as fast dense, others three times as fast sparse. Both versions run."""
        calls: list[Any] = []

        def ratio(first: Callable[[], torch.Tensor], second: Callable[[], torch.Tensor]) -> SpeedUp:
            results = [result[0] if isinstance(result, tuple) else result for result in (first(), second())]
            calls.append(tuple(tuple(result.shape) for result in results))
            return SpeedUp(0.5 if calls[-1][0][-1] == 3 else 3.0)

        monkeypatch.setattr(settling, "ratio", ratio)
        return calls

    def test_layers_that_are_faster_dense_stay_dense_by_default(self, timed: list[Any]) -> None:
        x = torch.randn(5, 6)
        model, report = sparsified(mlp(), ALL, x)
        assert [type(layer) for layer in model] == [SparseLinear, torch.nn.ReLU, torch.nn.Linear]
        assert (report["0.weight"].speedup, report["2.weight"].speedup) == (3.0, 0.5)
        assert report["2.weight"].note == "dense is 2x faster here; always=True in its rule makes it sparse"
        assert timed == [((5, 8), (5, 8)), ((5, 3), (5, 3))]
        for plan, advise in ((ALL, False), (SparsityPlan().weight("*.weight", half, always=True), True)):
            model, report = sparsified(mlp(), plan, x, advise=advise)
            assert isinstance(model[2], SparseLinear)
            assert report["2.weight"].speedup == 0.5

    @pytest.mark.parametrize("given", [None, torch.tensor([1, 2])])
    def test_tables_become_sparse_where_that_saves_memory(self, timed: list[Any], given: Any) -> None:
        model = torch.nn.Sequential(torch.nn.Embedding(10, 3), torch.nn.Linear(3, 8))  # half: 15 values, 15 coordinates and 11 positions
        _, report = sparsified(model, ALL, given)
        assert report["0.weight"].note == "takes 164 bytes sparse and 120 bytes dense; always=True in its rule makes it sparse"
        assert (report["0.weight"].bytes_after, report["1.weight"].is_sparse) == (120, True)
        assert isinstance(model[0], torch.nn.Embedding)
        _, report = sparsified(model, SparsityPlan().weight("0.weight", magnitude(0.8)), given)  # 6 values
        assert (report["0.weight"].bytes_after, report["0.weight"].is_sparse) == (6 * 8 + 11 * 4, True)

    def test_tables_that_are_no_smaller_become_sparse_on_request(self) -> None:
        for plan, advise in ((ALL, False), (SparsityPlan().weight("*.weight", half, always=True), True)):
            model, _ = sparsified(torch.nn.Sequential(torch.nn.Embedding(10, 3)), plan, advise=advise)
            assert isinstance(model[0], SparseEmbedding)

    def test_a_weight_tied_to_a_table_is_timed_by_its_products(self, timed: list[Any]) -> None:
        sparsified(Tied(), ALL, (torch.tensor([1, 2]),))
        assert timed == [((2, 10), (2, 10))]

    def test_without_example_inputs_nothing_is_measured(self, timed: list[Any]) -> None:
        _, report = sparsified(mlp())
        assert [row.speedup for row in report.rows] == [None, None]
        assert "not measured" in str(report)
        assert timed == []

    def test_invalid_example_inputs_are_named(self) -> None:
        model = mlp().train()
        before = repr(model)
        for given, text in ((torch.ones(2, 5), "a tensor of shape \\(2, 5\\)"), ({"x": 3}, "3")):
            with pytest.raises(ns.OperandError, match=rf"does not run with example_inputs \({text}\): \w+: .*\n  give the model's inputs"):
                sparsify_model(model, ALL, given)
        assert (repr(model), model.training) == (before, True)
        assert not model[0]._forward_pre_hooks

    def test_timing_changes_nothing(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 8)).train()
        model[2].eval()
        mean, random = model[1].running_mean.clone(), torch.get_rng_state()
        sparse, _ = sparsified(model, SparsityPlan().weight("0.weight", half), {"input": torch.ones(2, 6)})
        assert torch.equal(sparse[1].running_mean, mean)
        assert torch.equal(torch.get_rng_state(), random)
        assert [layer.training for layer in sparse] == [True, True, False, True]
        assert not sparse[0]._forward_pre_hooks

    def test_equal_layers_are_timed_once(self, timed: list[Any]) -> None:
        model = encoder()
        _, report = sparsified(model, SparsityPlan().weight("layers.*weight", half), torch.randn(2, 5, 8))
        assert len(timed) == 4  # in_proj, out_proj, linear1 and linear2
        assert all(row.speedup == 3.0 for row in report.rows if row.is_sparse)

    def test_the_report_notes_layers_that_the_example_does_not_call(self) -> None:
        model = Tied()
        model.extra = torch.nn.Linear(4, 4)
        _, report = sparsified(model, ALL, (torch.tensor([1, 2]),))
        assert report["extra.weight"].note.startswith("not called by the example")
        assert report["extra.weight"].is_sparse

    def test_both_versions_are_timed_in_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        order: list[str] = []
        assert settling.ratio(lambda: order.append("dense"), lambda: order.append("sparse")).ratio > 0
        warm_up, turns = order[:6], order[6:]
        assert warm_up == ["dense"] * 3 + ["sparse"] * 3
        assert all({*turn} == {"dense", "sparse"} for turn in zip(turns[::2], turns[1::2], strict=True))

    def test_the_median_decides_where_timings_are_uncertain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Savings of memory do not decide, since the layer may be many times slower."""
        times = iter((SpeedUp(0.8, is_certain=False), SpeedUp(1.1, is_certain=False)))
        monkeypatch.setattr(settling, "ratio", lambda dense, sparse: next(times))
        plan = SparsityPlan().weight("0.weight", magnitude(0.9)).weight("2.weight", half)
        model, report = sparsified(mlp(), plan, torch.randn(5, 6))
        assert [type(layer) for layer in model] == [torch.nn.Linear, torch.nn.ReLU, SparseLinear]
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
            ([41.0, 34.0, 57.0, 38.0, 45.0], [38.0, 50.0, 31.0, 39.0, 43.0], False),  # on two cores at load 8; both waited
            ([0.9, 0.9, 0.9, 0.9, 0.9], [9.0, 1.0, 9.0, 0.2, 9.0], False),  # 10x slower sparse only by waiting
        ],
    )
    def test_a_ratio_of_scattered_timings_is_uncertain(self, dense: list[float], sparse: list[float], is_certain: bool) -> None:
        assert settling.compared(dense, sparse).is_certain == is_certain


class TestFlows:
    def test_activations_are_masked_and_so_are_their_gradients(self) -> None:
        model, x = mlp(), torch.randn(5, 6)
        plain = copy.deepcopy(model)
        model, _ = sparsified(model, SparsityPlan().activation("1", half))
        hidden = plain[1](plain[0](x))
        expected = plain[2](torch.where(half(hidden.detach()), hidden, 0))
        torch.testing.assert_close(model(x), expected)
        model(x).sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(model[0].weight.grad, plain[0].weight.grad)

    def test_activations_reach_sparse_layers_as_sparse_tensors(self) -> None:
        plan = SparsityPlan().weight("2.weight", half).activation("1", half, "CSR")
        model, x = sparsified(mlp(), plan)[0], torch.randn(5, 6)
        seen: list[Any] = []
        model[2].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        result = model(x)
        assert isinstance(seen[0], ns.SparseTensor)
        assert seen[0].nnz == 20
        result.sum().backward()
        assert model[0].weight.grad is not None
        plain = sparsified(densify_model(copy.deepcopy(model)), SparsityPlan().activation("1", half))[0]
        torch.testing.assert_close(plain(x), result)

    def test_gradients_of_results_and_of_weights_are_masked(self) -> None:
        keep = magnitude(0.75)
        model, x = mlp(), torch.randn(5, 6)
        plain = copy.deepcopy(model)
        sparsified(model, SparsityPlan().gradient("1", keep).gradient("2.weight", keep))
        for network in (model, plain):
            network(x).square().sum().backward()
        assert int((model[2].weight.grad != 0).sum()) == 6
        torch.testing.assert_close(model[2].weight.grad, plain[2].weight.grad * keep(plain[2].weight.grad))
        hidden = plain[1](plain[0](x)).detach().requires_grad_()
        plain[2](hidden).square().sum().backward()
        upstream = hidden.grad * keep(hidden.grad) * (hidden > 0)
        torch.testing.assert_close(model[0].weight.grad, upstream.T @ x)

    def test_a_sparse_weights_gradient_keeps_its_pattern(self) -> None:
        model, _ = sparsified(mlp(), ALL.gradient("0.weight", half))
        model(torch.randn(5, 6)).sum().backward()
        assert int((model[0].weight.values.grad != 0).sum()) == 12

    def test_a_dense_parameters_gradient_may_be_coo(self) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sparsified(model, SparsityPlan().gradient("0.weight", half, "COO(2)"))
        before = model[0].weight.detach().clone()
        for _ in range(2):  # gradients accumulate
            model(torch.randn(5, 6)).sum().backward()
            assert model[0].weight.grad.layout == torch.sparse_coo
        expected = before - 0.1 * model[0].weight.grad.to_dense()
        optimizer.step()
        torch.testing.assert_close(model[0].weight.detach(), expected)
        with pytest.raises(ns.UnsupportedError, match=r"grad of 0\.weight can be dense or COO\(2\)"):
            sparsify_model(mlp(), SparsityPlan().gradient("0.weight", half, "CSR"))

    def test_copies_and_pickles_keep_the_rules_and_another_plan_replaces_them(self) -> None:
        plan = SparsityPlan().activation("1", half).gradient("2", half).gradient("0.weight", magnitude(1.0))
        model, x = sparsified(mlp(), plan)[0], torch.randn(5, 6)
        model(x).sum().backward()
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other.zero_grad()
            other(x).sum().backward()
            assert not other[0].weight.grad.any()
            torch.testing.assert_close(other[2].weight.grad, model[2].weight.grad)
        sparsified(model, SparsityPlan().gradient("0.weight", magnitude(0.0)))
        assert len(model[0]._forward_pre_hooks) == 1
        model.zero_grad()
        model(x).sum().backward()
        assert model[0].weight.grad.any()

    def test_densify_model_removes_the_rules(self) -> None:
        model, x = mlp(), torch.randn(5, 6)
        expected = model(x)
        expected.sum().backward()
        gradient = model[0].weight.grad.clone()
        model.zero_grad()
        sparsified(model, SparsityPlan().activation("1", half).gradient("2", half).gradient("0.weight", half, "COO(2)"))
        model(x).sum().backward()
        densify_model(model)
        model.zero_grad()
        torch.testing.assert_close(model(x), expected)
        model(x).sum().backward()
        torch.testing.assert_close(model[0].weight.grad, gradient)

    def test_results_without_tensors_are_refused_and_the_first_of_a_tuple_is_masked(self) -> None:
        class Odd(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> Any:
                return {"result": x}

        model, _ = sparsified(torch.nn.Sequential(Odd()), SparsityPlan().activation("0", half))
        with pytest.raises(ns.OperandError, match="0 returns dict, not a tensor"):
            model(torch.ones(2))
        attend = torch.nn.Sequential(torch.nn.LSTM(3, 4))
        sparsified(attend, SparsityPlan().activation("0", half))
        assert int((attend(torch.randn(5, 3))[0] != 0).sum()) == 10


class TestReport:
    def test_the_report_is_printed_by_default(self, capsys: pytest.CaptureFixture[str]) -> None:
        sparsify_model(mlp(), ALL, report=None)
        assert capsys.readouterr().out == ""
        sparsify_model(mlp(), SparsityPlan().weight("*.weight", block_magnitude(4, 1, 0.5)))
        text = capsys.readouterr().out
        assert text.startswith("weight    module  density  format      before     after")
        assert "0.weight  Linear  0.5      BCSR(4, 1)  192 bytes" in text

    def test_bytes_count_values_and_index_arrays(self) -> None:
        _, report = sparsified(torch.nn.Sequential(torch.nn.Linear(16, 8)))
        row = report["0.weight"]
        assert (row.bytes_before, row.bytes_after) == (512, 64 * 4 + 64 * 4 + 9 * 4)
        assert (report.bytes_before, report.bytes_after) == (row.bytes_before, row.bytes_after)

    def test_the_progress_bar_is_shown_on_request(self, capsys: pytest.CaptureFixture[str]) -> None:
        sparsified(mlp(), progress=True)
        assert "sparsifying  [##############################] 100%" in capsys.readouterr().err
        sparsified(mlp())
        assert capsys.readouterr().err == ""
