"""SET and RigL: dropped and grown entries against dense twins, optimizer state, micro-batches, checkpoints and copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from training_cases import dense, equal, read_back, stored

import numscorch as ns
from numscorch.nn import SparseConv2d, SparseEmbeddingBag, SparseLinear
from numscorch.sparsify import SET, RigL, magnitude, repattern, schedules
from numscorch.sparsify.dynamic import Units, drawn

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 4
FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(2, 2), ns.BCSR(3, 1)]
each_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
Start = Callable[..., Any]
STARTS: dict[str, Start] = {
    "SET": lambda model, optimizer, **options: SET(model, optimizer, **{"every": 2, "fraction": 0.5, **options}),
    "RigL": lambda model, optimizer, **options: RigL(model, optimizer, **{"every": 2, "fraction": 0.5, "until": 100, **options}),
}
each = pytest.mark.parametrize("kind", STARTS)


def network(format: ns.Format = ns.CSR, density: float = 0.4) -> torch.nn.Sequential:
    torch.manual_seed(2)
    first, last = SparseLinear(6, 8, density=density, format=format), SparseLinear(8, 4, density=density, format=format)
    return torch.nn.Sequential(first, torch.nn.ReLU(), last)


def adam(model: torch.nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def started(kind: str, **options: Any) -> tuple[torch.nn.Sequential, torch.optim.Adam, Any]:
    """A network, its optimizer, and its training of this kind."""
    model = network()
    optimizer = adam(model)
    return model, optimizer, STARTS[kind](model, optimizer, **options)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1, after: Callable[[], Any] = lambda: None) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(X), Y).backward()
        optimizer.step()
        after()


def dense_gradients(model: torch.nn.Sequential, x: torch.Tensor = X, y: torch.Tensor = Y) -> list[torch.Tensor]:
    """Gradients of the weights of a dense twin with the same parameters."""
    twin = torch.nn.Sequential(*(layer.to_dense() if isinstance(layer, SparseLinear) else layer for layer in model))
    cross_entropy(twin(x), y).backward()
    return [layer.weight.grad for layer in twin if isinstance(layer, torch.nn.Linear)]


def blocks(scores: torch.Tensor, format: ns.Format) -> torch.Tensor:
    """The sum of the scores of each block at all its entries, by loops over blocks."""
    height, width = Units(format, tuple(scores.shape)).block
    sums = torch.empty_like(scores)
    for i in range(0, scores.shape[0], height):
        for j in range(0, scores.shape[1], width):
            sums[i : i + height, j : j + width] = scores[i : i + height, j : j + width].sum()
    return sums


class TestRigL:
    @each_format
    def test_the_smallest_are_dropped_and_the_largest_dense_gradients_grown(self, format: ns.Format, interpreted: None) -> None:
        model = network(format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        rigl = RigL(model, optimizer, every=1, fraction=schedules.one_shot(0.5, at=0), until=10)
        layers = [model[0], model[2]]
        gradients = dense_gradients(model)
        before = [(stored(layer.weight), dense(layer.weight)) for layer in layers]
        train(model, optimizer)
        assert rigl.step()
        for layer, gradient, (stored_before, values) in zip(layers, gradients, before, strict=True):
            units = Units(format, tuple(stored_before.shape))
            count = int(0.5 * len(units.sums(layer.weight.pattern, layer.weight.values)[0]))
            assert count > 0
            per_unit = [units.dense_sums(scores) for scores in (stored_before.float(), values.abs(), gradient.abs())]
            active = per_unit[0] > 0
            dropped = torch.where(active, per_unit[1], torch.inf).argsort()[:count]
            remaining = active.clone()
            remaining[dropped] = False
            grown = torch.where(remaining, -1.0, per_unit[2]).argsort(descending=True)[:count]
            expected = remaining.clone()
            expected[grown] = True
            now = stored(layer.weight)
            assert torch.equal(units.dense_sums(now.float()) > 0, expected)
            assert bool(remaining.sum() + count == expected.sum() == active.sum())
            assert torch.equal(dense(layer.weight), torch.where(now & stored_before, values, 0))

    def test_gradients_of_small_batches_add_up(self, interpreted: None) -> None:
        """Either half of the batch alone selects other entries."""
        chosen = []
        for parts in (((X, Y, 1.0),), ((X[:6], Y[:6], 0.5), (X[6:], Y[6:], 0.5)), ((X[:6], Y[:6], 1.0),)):
            model = network()
            rigl = RigL(model, adam(model), every=1, fraction=0.9, until=100)
            for x, y, weight in parts:
                (weight * cross_entropy(model(x), y)).backward()
            rigl.step()
            chosen.append(torch.cat([stored(model[at].weight).flatten() for at in (0, 2)]))
        assert torch.equal(chosen[0], chosen[1])
        assert not torch.equal(chosen[0], chosen[2])

    def test_dense_gradients_are_stored_only_before_changes(self, interpreted: None) -> None:
        model = network()
        optimizer = adam(model)
        rigl = RigL(model, optimizer, every=3, until=6)
        seen = []
        for _ in range(7):
            train(model, optimizer)
            seen.append([probe.gradient is not None for probe in rigl.probes.values()])
            with torch.no_grad():
                model(X)
            rigl.step()
            assert not rigl.gradients
        assert seen == [[step == 3] * 2 for step in range(1, 8)]

    @pytest.mark.parametrize("rank", [3, 4])
    def test_convolutions(self, rank: int, interpreted: None) -> None:
        torch.manual_seed(0)
        conv = torch.nn.Conv2d(2, 3, 3, padding=1, stride=2)
        layer = SparseConv2d.from_dense(conv, magnitude(0.7))
        x = torch.randn((2, 2, 7, 6)[4 - rank :], generator=torch.Generator().manual_seed(0))
        twin = layer.to_dense()
        twin(x).square().sum().backward()
        rigl = RigL(layer, None, every=1, until=10)
        layer(x).square().sum().backward()
        torch.testing.assert_close(rigl.probes["weight"].gradient, twin.weight.grad.flatten(1))

    def test_autocast_and_inputs_of_other_ranks(self, interpreted: None) -> None:
        layer = SparseLinear(6, 4, density=0.5)
        rigl = RigL(layer, None, every=1, until=10)
        for x in (X, X[0], X.reshape(2, 6, 6)):
            rigl._prepare()
            layer(x).sum().backward()
            torch.testing.assert_close(rigl.probes["weight"].gradient, x.reshape(-1, 6).sum(0).expand(4, 6))
        rigl._prepare()
        with torch.autocast("cpu", torch.bfloat16):
            result = layer(input=X)
        result.float().sum().backward()
        gradient = rigl.probes["weight"].gradient
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, X.sum(0).expand(4, 6), rtol=0.02, atol=0.02)

    def test_a_weight_that_two_layers_share_gets_the_gradients_of_both(self, interpreted: None) -> None:
        model = torch.nn.Sequential(SparseLinear(6, 6, density=0.5), SparseLinear(6, 6, density=0.5))
        model[1].weight = model[0].weight
        rigl = RigL(model, None, every=1, until=10)
        x = X.clone().requires_grad_()
        inner = model[0](x)
        inner.retain_grad()
        model[1](inner).sum().backward()
        first = inner.grad.t() @ X
        torch.testing.assert_close(rigl.probes["0.weight"].gradient, first + inner.detach().sum(0).expand(6, 6))

    def test_layers_without_gradient_stay_and_no_gradient_at_all_is_an_error(self, interpreted: None) -> None:
        model = network()
        rigl = RigL(model, adam(model), every=1, until=10, fraction=0.9)
        with pytest.raises(ns.OperandError, match="found no gradient of any weight"):
            rigl.step()
        rigl = RigL(model, adam(model), every=1, until=10, fraction=0.9)
        before = [stored(model[at].weight) for at in (0, 2)]
        model[0](X).square().sum().backward()
        rigl.step()
        assert [torch.equal(stored(model[at].weight), mask) for at, mask in zip((0, 2), before, strict=True)] == [False, True]

    def test_an_overflow_delays_the_change_by_a_step(self, interpreted: None) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        rigl = RigL(model, optimizer, every=2, until=10)
        changed = []
        for step in range(1, 5):
            (cross_entropy(model(X), Y) * (torch.inf if step == 2 else 1)).backward()
            changed.append(rigl.step())
        assert changed == [False, False, True, True]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
    def test_compiled_programs_are_watched(self) -> None:
        models = [network(), network()]
        torch.compiler.reset()
        for model, called in ((models[0], models[0]), (models[1], torch.compile(models[1], backend="aot_eager", fullgraph=True))):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            train(called, optimizer, 5, RigL(called, optimizer, every=2, until=10).step)
        for at in (0, 2):
            assert torch.equal(stored(models[0][at].weight), stored(models[1][at].weight))
            torch.testing.assert_close(dense(models[0][at].weight), dense(models[1][at].weight))
        torch.compiler.reset()

    def test_backward_with_sparse_inputs_densifies_nothing(self, interpreted: None) -> None:
        """The probe's dense gradient needs a dense input; the ledger omits this internal conversion."""
        layer, x = SparseLinear(6, 4, density=0.5), torch.eye(6)[:3]
        rigl = RigL(layer, adam(layer), every=1, until=100)
        with ns.ledger() as entries:
            layer(ns.from_torch(x)).sum().backward()
        assert not entries.of("densification")
        assert torch.equal(rigl.probes["weight"].gradient, x.sum(0).expand(4, 6))


class TestSET:
    @each_format
    def test_the_smallest_are_dropped_and_unstored_entries_grown(self, format: ns.Format, interpreted: None) -> None:
        model = network(format)
        evolve = SET(model, adam(model), every=1, fraction=0.5)
        weight = model[0].weight
        stored_before, values = stored(weight), dense(weight)
        sums = blocks(values.abs(), format)
        evolve.step()
        now = stored(weight)
        units = Units(format, (8, 6))
        count = int(0.5 * int((units.dense_sums(stored_before.float()) > 0).sum()))
        assert int((units.dense_sums((now & ~stored_before).float()) > 0).sum()) == count
        assert torch.equal(dense(weight), torch.where(now & stored_before, values, 0))
        assert sums[stored_before & ~now].max() <= sums[stored_before & now].min()

    def test_draws_follow_the_seed(self, interpreted: None) -> None:
        chosen = []
        for seed in (0, 0, 1):
            model = network()
            SET(model, adam(model), every=1, fraction=0.5, seed=seed).step()
            chosen.append(stored(model[0].weight))
        assert torch.equal(chosen[0], chosen[1])
        assert not torch.equal(chosen[0], chosen[2])

    def test_sparse_weights_of_any_module_are_trained(self, interpreted: None) -> None:
        bag = SparseEmbeddingBag(6, 5, mode="sum")
        net = torch.nn.Module()
        net.weight = ns.nn.Parameter(ns.from_torch(torch.eye(4)))
        SET(net, None, every=1, fraction=0.5).step()
        assert net.weight.nnz == 4
        assert int((dense(net.weight) != 0).sum()) == 2
        with pytest.raises(ns.ExpressionError, match=r"weights='\*' names no sparse weight: the model has none"):
            SET(bag, None)

    def test_numbers_are_drawn_evenly_and_once(self) -> None:
        generator = torch.Generator().manual_seed(0)
        for most, count in ((10, 10), (1000, 3), (1000, 200), (5, 0), (0, 0)):
            numbers = drawn(most, count, generator)
            assert len(numbers.unique()) == count
            assert not count or 0 <= int(numbers.min()) <= int(numbers.max()) < most
        many = torch.cat([drawn(20, 2, generator) for _ in range(2000)]).bincount(minlength=20)
        assert 130 < int(many.min()) <= int(many.max()) < 270


class TestBoth:
    @each
    @each_format
    def test_the_number_of_stored_entries_is_constant(self, kind: str, format: ns.Format, interpreted: None) -> None:
        model = network(format)
        optimizer = adam(model)
        counts = [model[at].weight.values.numel() for at in (0, 2)]
        addresses = [model[at].weight.values.data_ptr() for at in (0, 2)]
        first = stored(model[0].weight)
        train(model, optimizer, 6, STARTS[kind](model, optimizer).step)
        assert [model[at].weight.values.numel() for at in (0, 2)] == counts
        assert [model[at].weight.values.data_ptr() for at in (0, 2)] == addresses
        assert not torch.equal(stored(model[0].weight), first)
        assert all(parameter.requires_grad for parameter in model.parameters())

    @each
    def test_the_optimizer_state_follows(self, kind: str, interpreted: None) -> None:
        model, optimizer, dynamic = started(kind)
        train(model, optimizer, 1, dynamic.step)
        train(model, optimizer)
        weight = model[0].weight
        state = optimizer.state[weight.values]
        stored_before, before = stored(weight), {name: dense(weight, state[name].clone()) for name in ("exp_avg", "exp_avg_sq")}
        assert dynamic.step()
        now = stored(weight)
        assert bool((now & ~stored_before).any())
        for name, moment in before.items():
            assert torch.equal(dense(weight, state[name]), torch.where(now & stored_before, moment, 0))
        assert float(state["step"]) == 2

    @each
    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_checkpoints_resume_bit_for_bit(self, kind: str, at: int, interpreted: None) -> None:
        runs = []
        for _ in range(2):
            model, optimizer, dynamic = started(kind)
            runs.append((dynamic, model, optimizer))
        (dynamic, model, optimizer), other = runs
        train(model, optimizer, at, dynamic.step)
        state = read_back([part.state_dict() for part in runs[0]])
        train(model, optimizer, 4, dynamic.step)
        for part, saved in zip(other, state, strict=True):
            part.load_state_dict(saved)
        train(other[1], other[2], 4, other[0].step)
        for part, expected in zip(other, runs[0], strict=True):
            assert equal(part.state_dict(), expected.state_dict())

    @each
    def test_copies_train_alike_and_leave_the_original_unchanged(self, kind: str, interpreted: None) -> None:
        model, optimizer, dynamic = started(kind)
        train(model, optimizer, 3, dynamic.step)
        before = copy.deepcopy(model.state_dict())
        copied = copy.deepcopy((model, optimizer, dynamic))
        train(copied[0], copied[1], 4, copied[2].step)
        assert equal(model.state_dict(), before)
        train(model, optimizer, 4, dynamic.step)
        assert equal(copied[0].state_dict(), model.state_dict())
        assert torch.equal(copy.deepcopy(model)(X), model(X))

    @each
    def test_frozen_weights_stay_as_they_are(self, kind: str, interpreted: None) -> None:
        model = network()
        model[0].weight.requires_grad = False
        optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
        first, last = copy.deepcopy(model[0].state_dict()), stored(model[2].weight)
        train(model, optimizer, 4, STARTS[kind](model, optimizer).step)
        assert torch.equal(first["weight.values"], model[0].weight.values)
        assert torch.equal(first["weight.level1_crd"], model[0].weight.level1_crd)
        assert not torch.equal(stored(model[2].weight), last)

    @each
    @pytest.mark.parametrize("density", [0.0, 0.9, 1.0])
    def test_nearly_full_and_empty_weights(self, kind: str, density: float, interpreted: None) -> None:
        """Nearly full weights have room for fewer entries than requested; empty weights have nothing to drop."""
        model = network(density=density)
        optimizer = adam(model)
        counts = [model[at].weight.nnz for at in (0, 2)]
        train(model, optimizer, 4, STARTS[kind](model, optimizer, fraction=schedules.one_shot(0.9, at=0)).step)
        assert [model[at].weight.nnz for at in (0, 2)] == counts

    @each
    def test_names_choose_weights(self, kind: str, interpreted: None) -> None:
        model, optimizer, dynamic = started(kind, weights=["2.*"])
        before = stored(model[0].weight)
        assert list(dynamic.weights) == ["2.weight"]
        train(model, optimizer, 2, dynamic.step)
        assert torch.equal(stored(model[0].weight), before)
        with pytest.raises(ns.ExpressionError, match=r"weights='4\.weight' names no .*did you mean .*2\.weight"):
            STARTS[kind](model, optimizer, weights="4.weight")

    @each
    def test_until(self, kind: str, interpreted: None) -> None:
        model, optimizer, dynamic = started(kind, until=4)
        changed: list[bool] = []
        train(model, optimizer, 6, lambda: changed.append(dynamic.step()))
        assert changed == [False, True, False, False, False, False]

    @each
    def test_invalid_arguments_and_states_are_refused(self, kind: str, interpreted: None) -> None:
        model, start = network(), STARTS[kind]
        with pytest.raises(ns.OperandError, match=r"0\.weight: Adam doesn't hold the values"):
            start(model, adam(network()))
        with pytest.raises(ns.UnsupportedError, match="LBFGS stores all parameters"):
            start(model, torch.optim.LBFGS(model.parameters()))
        with pytest.raises(ns.SizeError, match=r"every=0.*not a number of steps"):
            start(model, None, every=0)
        with pytest.raises(ns.SizeError, match="lies between 0 and 1"):
            start(model, None, fraction=1.5)
        padded = SparseLinear.from_dense(torch.nn.Linear(6, 4), lambda w: torch.arange(24).reshape(4, 6) % 3 > 0, ns.NM(2, 3))
        with pytest.raises(ns.UnsupportedError, match=r"a weight in NM\(2, 3\).*straight_through"):
            start(padded, None)
        dynamic = start(model, None)
        with pytest.raises(ns.OperandError, match=r"for other weights: it lacks 2\.weight"):
            dynamic.load_state_dict(start(model, None, weights="0.weight").state_dict())
        other = torch.nn.Sequential(SparseLinear(6, 8, density=0.5), torch.nn.ReLU(), SparseLinear(8, 5, density=0.5))
        with pytest.raises(ns.SizeError, match=r"a pattern of shape \(5, 8\) for 2\.weight, which has \(4, 8\)"):
            dynamic.load_state_dict(start(other, None).state_dict())

    @each
    def test_after_other_changes_of_the_pattern(self, kind: str, interpreted: None) -> None:
        model, optimizer, dynamic = started(kind)
        train(model, optimizer, 1, dynamic.step)
        repattern(model[0].weight, stored(model[0].weight) & magnitude(0.9)(dense(model[0].weight)), optimizer)
        nnz = model[0].weight.nnz
        train(model, optimizer, 3, dynamic.step)
        assert model[0].weight.nnz == nnz
