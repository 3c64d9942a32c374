"""sparsify_model of unusual models: unsupported layers stay dense with a note, and nothing keeps using replaced weights."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import (
    ModelReport,
    MovementScores,
    SparsityPlan,
    block_magnitude,
    compose,
    densify_model,
    keep_all,
    low_rank_plus_sparse,
    magnitude,
    movement,
    n_m,
    n_m_g,
    random,
    same_pattern,
    sparsify_model,
    threshold,
    topk,
    wanda,
)

pytestmark = [
    pytest.mark.usefixtures("seeded", "interpreted"),
    pytest.mark.filterwarnings("ignore:`?torch.(nn.utils.weight_norm|jit)", "ignore:Initializing zero-element"),
]
half = magnitude(0.5)
ALL = SparsityPlan().weight("*weight*", half)


def sparsified(model: nn.Module, plan: SparsityPlan = ALL) -> tuple[Any, ModelReport]:
    reports: list[ModelReport] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ns.DenseFallbackWarning)
        model = sparsify_model(model, plan, report=reports.append)
    return model, reports[0]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


class Doubled(nn.Linear):
    """A layer that computes something other than its base class."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class Twice(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def parametrized_bias() -> nn.Module:
    layer = nn.Linear(8, 8)
    parametrize.register_parametrization(layer, "bias", Twice())
    return layer


def compiled_in_place() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.compile(backend="eager")
    return layer


def with_instance_forward() -> nn.Module:
    layer = nn.Linear(8, 8)
    weight = layer.weight
    layer.forward = lambda x: x @ weight.t()  # type: ignore[method-assign]  # as libraries that wrap layers do
    return layer


def compiled_attention() -> nn.Module:
    attention = nn.MultiheadAttention(8, 2)
    attention.compile(backend="eager")
    return attention


DENSE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "groups": (lambda: nn.Conv2d(4, 4, 3, groups=2), "groups=2 is not supported by SparseConv2d"),
    "reflected": (lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect"), "padding_mode='reflect' is not supported by SparseConv2d"),
    "weight_norm": (lambda: weight_norm(nn.Linear(8, 8)), "is normalized by torch; torch.nn.utils.remove_weight_norm"),
    "spectral_norm": (lambda: spectral_norm(nn.Linear(8, 8)), "is normalized by torch; torch.nn.utils.remove_spectral_norm"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(8, 8)), "is parametrized"),
    "bias": (parametrized_bias, "ParametrizedLinear has no sparse version"),
    "subclass": (lambda: Doubled(8, 8), "Doubled has no sparse version"),
    "list": (lambda: nn.ParameterDict({"weight": torch.ones(2, 2)}), "ParameterDict has no sparse version"),
    "sparse gradients": (lambda: nn.Embedding(10, 8, sparse=True), "sparse=True is not supported by SparseEmbedding"),
    "recurrent": (lambda: nn.LSTM(8, 8), "LSTM has no sparse version"),
    "lazy": (lambda: nn.LazyLinear(8), "has no size yet"),
    "eight bits": (lambda: nn.Linear(8, 8).to(torch.float8_e4m3fn), "is torch.float8_e4m3fn, which is not supported"),
    "compile()": (compiled_in_place, "its module is compiled on its own, and would keep using this weight"),
    "torch.compile": (lambda: torch.compile(nn.Linear(8, 8), backend="eager"), "its module is compiled on its own"),  # type: ignore[return-value]
    "attention": (compiled_attention, "its module is compiled on its own"),
    "instance forward": (with_instance_forward, "its module has an instance attribute forward"),
}


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("nested", [False, True])
def test_unsupported_layers_stay_dense_with_a_note(name: str, nested: bool) -> None:
    make, note = DENSE[name]
    odd = make()
    model = nn.Sequential(odd, nn.Linear(8, 4)) if nested else odd
    modules = list(odd.modules())
    sparse, report = sparsified(model)
    notes = [row.note for row in report.rows if row.module != "Linear" or row.name not in ("1.weight",)]
    assert notes
    assert all(text.startswith(note) or text == "a vector, which stays dense" for text in notes)
    assert all(module is before for module, before in zip(odd.modules(), modules, strict=True))
    assert sparse is model
    if nested:
        assert isinstance(sparse[1], SparseLinear)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_models_use_their_sparse_layers() -> None:
    x, dense = torch.randn(3, 8), mlp()
    for wrap in (lambda model: torch.compile(model, backend="eager"), lambda model: model.compile(backend="eager") or model):
        model = wrap(copy.deepcopy(dense))
        model(x)
        model, report = sparsified(model)
        assert all(row.is_sparse for row in report.rows)
        expected = copy.deepcopy(dense)
        with torch.no_grad():
            for at in (0, 2):
                expected[at].weight *= half(expected[at].weight)
        torch.testing.assert_close(model(x), expected(x))
        model(x).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    torch.compiler.reset()


def test_a_sparse_layer_that_is_compiled_alone_stays_sparse() -> None:
    model, _ = sparsified(mlp())
    model[0].compile(backend="eager")
    with pytest.raises(ns.UnsupportedError, match="0: its module is compiled on its own"):
        densify_model(model)
    assert isinstance(model[2], SparseLinear)
    torch.compiler.reset()


def test_distributed_wrappers_are_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp())
        for call in (lambda: sparsify_model(model, ALL), lambda: densify_model(model)):
            with pytest.raises(ns.UnsupportedError, match=r"pass the wrapped model, its \.module"):
                call()
        assert type(model.module[0]) is nn.Linear
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("sparsifier", [half, n_m(2, 4), n_m_g(2, 4, 1), block_magnitude(4, 1, 0.5)], ids=repr)
def test_data_types_are_kept(sparsifier: Any, dtype: torch.dtype) -> None:
    dense, x = mlp().to(dtype), torch.randn(3, 8, dtype=dtype)
    model, _ = sparsified(copy.deepcopy(dense), SparsityPlan().weight("*.weight", sparsifier))
    with torch.no_grad():
        for at in (0, 2):
            dense[at].weight *= sparsifier(dense[at].weight)
    tolerance = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    result = model(x)
    torch.testing.assert_close(result, dense(x), atol=tolerance, rtol=tolerance)
    result.sum().backward()
    assert model[0].weight.values.grad.dtype == dtype


def test_containers_and_layers_without_entries() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.named = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 0)]), nn.ModuleDict({"a": nn.Linear(0, 4)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.named["a"](self.layers[1](self.layers[0](x)))
            return result

    model, report = sparsified(Listed())
    assert [(row.name, row.format) for row in report.rows] == [(f"{at}.weight", "CSR") for at in ("layers.0", "layers.1", "named.a")]
    assert model(torch.ones(2, 8)).shape == (2, 4)
    assert type(densify_model(model).layers[1]) is nn.Linear


W = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
SPARSIFIERS: list[Any] = [
    *(half, threshold(0.3), keep_all(), random(0.5), topk(2), n_m(2, 4), n_m_g(2, 4, 1), block_magnitude(4, 1, 0.5)),
    *(wanda(0.5, torch.rand(8)), movement(0.5, W), same_pattern(W > 0), same_pattern(ns.from_torch(W.relu())), compose(half, n_m(2, 4))),
]


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda sparsifier: repr(sparsifier).split("seed")[0])
def test_copied_and_pickled_plans_keep_their_sparsifiers_state(sparsifier: Any) -> None:
    layer = nn.Linear(8, 8)
    plan = SparsityPlan().weight("weight", sparsifier)
    expected, _ = sparsified(copy.deepcopy(layer), plan)
    for again in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        copied, _ = sparsified(copy.deepcopy(layer), again)
        assert copied.weight.format == expected.weight.format
        assert torch.equal(copied.weight.to_dense(), expected.weight.to_dense())


def test_a_copied_plan_has_the_current_scores_of_movement() -> None:
    layer = nn.Linear(8, 8)
    scores = MovementScores(layer.weight)
    layer(torch.randn(3, 8)).square().sum().backward()
    plan = SparsityPlan().weight("weight", movement(0.5, scores))
    for again in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        copied, _ = sparsified(copy.deepcopy(layer), again)
        assert torch.equal(copied.weight.to_dense() != 0, movement(0.5, scores.scores)(layer.weight))
    with pytest.raises(ns.UnsupportedError, match="a layer stores the sparse part only"):
        plan.weight("*", low_rank_plus_sparse(1, half))
