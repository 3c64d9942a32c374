"""Names select the weights of sparse training as in a SparsityPlan, and layers are replaced as by sparsify_model."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.nn import SparseEmbedding, SparseLinear
from numscorch.sparsify import (
    SET,
    GradualPruning,
    MovementScores,
    RigL,
    SparsityPlan,
    block_magnitude,
    magnitude,
    movement,
    resparsify,
    schedules,
    settle,
    sparsify_model,
    straight_through,
)

pytestmark = pytest.mark.usefixtures("interpreted")
AT_ONCE = schedules.one_shot(0.5, at=1)
X = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(X).square().sum().backward()
    optimizer.step()


def encoder() -> Any:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2)


class TestNames:
    def test_pruning_gives_the_model_of_the_same_plan(self) -> None:
        """Attention's projections are included, and vectors among the named parameters are skipped."""
        pruned, planned = encoder(), encoder()
        optimizer = torch.optim.SGD(pruned.parameters(), lr=0.1)
        assert GradualPruning(pruned, optimizer, magnitude, AT_ONCE, weights="layers.*", sparse_from=0.5).step()
        sparsify_model(planned, SparsityPlan().weight("layers.*", magnitude(0.5)), report=None)
        assert repr(pruned) == repr(planned)
        x, padding = torch.randn(3, 5, 8), torch.arange(5) > torch.tensor([[2], [3], [4]])
        for mode in (True, False):
            result, expected = (model.train(mode)(x, src_key_padding_mask=padding) for model in (pruned, planned))
            torch.testing.assert_close(result, expected)
        assert {id(parameter) for parameter in optimizer.param_groups[0]["params"]} == set(map(id, pruned.parameters()))

    def test_embeddings_and_weights_that_are_tied(self) -> None:
        tied = torch.nn.ModuleDict({"embed": torch.nn.Embedding(6, 8), "head": torch.nn.Linear(8, 6)})
        tied["head"].weight = tied["embed"].weight
        GradualPruning(tied, None, magnitude, AT_ONCE, weights=["embed.*", "head.*"], sparse_from=0.5).step()
        assert isinstance(tied["embed"], SparseEmbedding)
        assert tied["embed"].weight is tied["head"].weight
        assert tied["head"].weight.nnz == 24

    def test_every_path_of_a_shared_layer_names_it(self) -> None:
        shared = SparseLinear(6, 6, density=0.5)
        model = torch.nn.ModuleDict({"a": shared, "b": shared})
        for weights in ("a.weight", "b.weight"):
            assert list(SET(model, None, weights=weights).weights) == ["a.weight"]
            assert list(RigL(model, None, until=9, weights=weights).weights) == ["a.weight"]
            assert list(GradualPruning(model, None, magnitude, AT_ONCE, weights=weights).sparse) == ["a.weight"]

    def test_weights_without_a_sparse_version_can_be_masked(self) -> None:
        lstm = torch.nn.LSTM(4, 8)
        with pytest.raises(ns.UnsupportedError, match="weight_ih_l0: LSTM has no sparse version; register_sparse_module adds one"):
            GradualPruning(lstm, None, magnitude, AT_ONCE, weights="weight_*")
        GradualPruning(lstm, None, magnitude, AT_ONCE, weights="weight_*", sparse_from=None).step()
        assert [int((weight == 0).sum()) for weight in (lstm.weight_ih_l0, lstm.weight_hh_l0)] == [64, 128]

    @pytest.mark.parametrize("start", [GradualPruning, straight_through, resparsify])
    def test_unknown_names_give_one_error_text(self, start: Any) -> None:
        options = (None, magnitude, AT_ONCE) if start is GradualPruning else (magnitude(0.5),)
        for call in (
            lambda: start(network(), *options, weights="3.weight"),
            lambda: sparsify_model(network(), SparsityPlan().weight("3.weight", magnitude(0.5))),
        ):
            with pytest.raises(
                ns.ExpressionError, match=r"weight\(\"3\.weight\"\) names no parameter: did you mean '2\.weight' or '0\.weight'"
            ):
                call()

    def test_unsupported_weights_and_sparsifiers_are_refused(self) -> None:
        def start(model: Any, sparsifier: Any = magnitude, **options: Any) -> GradualPruning:
            return GradualPruning(model, None, sparsifier, AT_ONCE, **options)

        sparse = torch.nn.Sequential(SparseLinear(2, 3, density=0.5))
        for error, message, call in (
            (ns.UnsupportedError, r"0\.bias: a vector, which stays dense", lambda: start(network(), weights="0.bias")),
            (ns.UnsupportedError, r"weight: the model itself would be replaced", lambda: start(torch.nn.Linear(2, 3))),
            (ns.ExpressionError, r"the model has no torch\.nn\.Linear or Conv2d", lambda: start(torch.nn.LSTM(2, 3))),
            (ns.OperandError, r"given by name already", lambda: start(network(), {"*": magnitude}, weights="*")),
            (ns.OperandError, r"0\.5 makes no sparsifiers: pass a function from a fraction", lambda: start(network(), 0.5)),
            (ns.UnsupportedError, r"0\.weight is sparse already", lambda: resparsify(sparse, magnitude(0.5), weights="*")),
        ):
            with pytest.raises(error, match=message):
                call()
        alone = torch.nn.Linear(4, 2)
        straight_through(alone, magnitude(0.5))
        with pytest.raises(ns.UnsupportedError, match="the model itself would be replaced"):
            settle(alone)
        assert int((alone.weight == 0).sum()) == 4


class TestLayersThatDiffer:
    def test_the_last_matching_pattern_selects_the_factory(self) -> None:
        model = network()
        factories = {"*.weight": magnitude, "0.weight": partial(block_magnitude, 2, 1)}
        GradualPruning(model, None, factories, AT_ONCE, sparse_from=0.5).step()
        assert [model[at].weight.format for at in (0, 2)] == [ns.BCSR(2, 1), ns.CSR]

    def test_movement_prunes_by_the_scores_of_each_layer(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scores = {name: MovementScores(parameter) for name, parameter in model.named_parameters() if parameter.ndim == 2}
        pruning = GradualPruning(
            model,
            optimizer,
            {name: partial(movement, scores=score) for name, score in scores.items()},
            schedules.one_shot(0.75, at=4),
            sparse_from=None,
        )
        for _ in range(4):
            step(model, optimizer)
            before = {name: (score.scores.clone(), model.get_parameter(name).detach().clone()) for name, score in scores.items()}
            pruning.step()
        for name, (score, weight) in before.items():
            mask = score >= score.flatten().topk(score.numel() // 4).values[-1]
            assert not torch.equal(mask, magnitude(0.75)(weight))
            assert torch.equal(model.get_parameter(name).detach(), weight * mask)

    def test_movement_of_a_convolution_becomes_sparse_with_the_last_fraction(self) -> None:
        model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with MovementScores(model[0].weight) as scores:
            model(torch.randn(1, 2, 6, 6)).square().sum().backward()
            pruning = GradualPruning(model, optimizer, partial(movement, scores=scores), AT_ONCE, sparse_from=0.5)
            pruning.step()
        mask = model[0].weight.tensor.with_values(torch.ones(27)).to_dense() != 0
        assert torch.equal(mask, movement(0.5, scores.scores.flatten(1))(torch.zeros(3, 18)))


class TestOneWayToReplace:
    def test_a_second_pruning_continues_the_first(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        GradualPruning(model, optimizer, magnitude, AT_ONCE, sparse_from=None).step()
        zeros = model[0].weight == 0
        GradualPruning(model, optimizer, magnitude, schedules.one_shot(0.9, at=1)).step()
        assert model[0].weight.nnz == 5
        assert not model[0].weight.to_dense()[zeros].any()

    def test_user_attributes_and_buffers_are_kept(self) -> None:
        """As with sparsify_model, attributes and buffers that users set on a layer move to the sparse layer."""
        model = network()
        model[0].note = "mine"
        model[0].register_buffer("seen", torch.ones(2))
        GradualPruning(model, None, magnitude, AT_ONCE, sparse_from=0.5).step()
        assert (model[0].note, model[0].seen.tolist()) == ("mine", [1.0, 1.0])

    def test_an_optimizer_that_joins_parameters_is_refused_by_both(self) -> None:
        for call in (
            lambda model, lbfgs: sparsify_model(model, SparsityPlan().weight("*.weight", magnitude(0.5)), optimizer=lbfgs),
            lambda model, lbfgs: GradualPruning(model, lbfgs, magnitude, AT_ONCE),
        ):
            model = network()
            before = copy.deepcopy(model)
            with pytest.raises(ns.UnsupportedError, match="LBFGS stores all parameters"):
                call(model, torch.optim.LBFGS(model.parameters()))
            assert repr(model) == repr(before)


def test_several_optimizers_may_hold_a_models_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[1].parameters())]
    pruner = GradualPruning(model, optimizers, magnitude, schedules.one_shot(0.9, at=1))
    assert pruner.step()
    for optimizer, layer in zip(optimizers, model, strict=True):
        assert any(parameter is layer.weight.values for parameter in optimizer.param_groups[0]["params"])


def test_settle_keeps_layers_frozen() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight.requires_grad_(False)
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad])
    straight_through(model, magnitude(0.5))
    settle(model, optimizer)
    assert model[1].weight.nnz == 32 and not model[1].weight.requires_grad


@pytest.mark.parametrize("share", [-0.5, 2.0])
def test_a_share_that_leaves_its_range_is_refused(share: float) -> None:
    model = torch.nn.Sequential(ns.nn.SparseLinear(8, 8, density=0.5))
    evolve = SET(model, torch.optim.SGD(model.parameters(), lr=0.1), every=1, fraction=lambda step: share)
    before = model[0].weight.to_dense()
    with pytest.raises(ns.SizeError, match="at step"):
        evolve.step()
    assert torch.equal(model[0].weight.to_dense(), before)
