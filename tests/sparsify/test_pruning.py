"""Training of sparse weights: fixed masks against dense twins, pattern changes in place, gradual pruning, straight-through training."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from training_cases import at_entries, dense, equal, read_back

import numscorch as ns
from numscorch.nn import SparseConv2d, SparseLinear
from numscorch.sparsify import (
    GradualPruning,
    block_magnitude,
    magnitude,
    n_m,
    random,
    repattern,
    resparsify,
    schedules,
    settle,
    straight_through,
)

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 3
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
each_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)


def network(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1, after: Callable[[], Any] = lambda: None
) -> torch.Tensor:
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(X), Y)  # the last step's graph is alive until here
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        after()
    return loss


def test_a_schedule_that_ends_below_sparse_from_warns() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    text = r"ends below sparse_from=0\.8: weights \(2\) are masked and stay dense.*give sparse_from=0\.7 to"
    with pytest.warns(UserWarning, match=text) as seen:
        pruning = GradualPruning(model, optimizer, magnitude, schedules.cubic(0.7, begin=0, end=2))
        pruning.step()
    assert len(seen) == 1
    assert seen[0].filename == __file__
    for schedule, sparse_from in ((schedules.cubic(0.7, begin=0, end=2), 0.7), (schedules.cubic(0.7, begin=0, end=2), None), (float, 0.8)):
        GradualPruning(network(), None, magnitude, schedule, sparse_from=sparse_from)


class TestFixedMask:
    """A SparseLinear trains as a dense layer whose weight is multiplied by a mask."""

    def twins(self) -> tuple[torch.nn.Sequential, torch.nn.Sequential, torch.Tensor]:
        masked, sparse = network(), network()
        mask = magnitude(0.5)(masked[0].weight.detach())
        sparse[0] = SparseLinear.from_dense(sparse[0], magnitude(0.5))
        with torch.no_grad():
            masked[0].weight.mul_(mask)
        masked[0].weight.register_hook(lambda gradient: gradient * mask)
        return masked, sparse, mask

    @each_optimizer
    def test_values_equal_those_of_the_twin(self, kind: str, interpreted: None) -> None:
        """Gradient norms agree too, since clipping by norm changes both alike."""
        masked, sparse, mask = self.twins()
        optimizers = [OPTIMIZERS[kind](model.parameters()) for model in (masked, sparse)]
        losses = [train(model, optimizer, 5) for model, optimizer in zip((masked, sparse), optimizers, strict=True)]
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(dense(sparse[0].weight), masked[0].weight.detach())
        assert sparse[0].weight.nnz == int(mask.sum())
        for name, state in optimizers[1].state[sparse[0].weight.values].items():
            expected = optimizers[0].state[masked[0].weight][name]
            torch.testing.assert_close(state, at_entries(sparse[0].weight, expected) if state.ndim else expected)

    def test_gradients_of_small_batches_add_up(self, interpreted: None) -> None:
        masked, sparse, _ = self.twins()
        for model in (masked, sparse):
            for part, labels in zip(X.split(4), Y.split(4), strict=True):
                (cross_entropy(model(part), labels) / 3).backward()
        whole = self.twins()[1]
        cross_entropy(whole(X), Y).backward()
        torch.testing.assert_close(sparse[0].weight.values.grad, whole[0].weight.values.grad)
        torch.testing.assert_close(sparse[0].weight.values.grad, at_entries(sparse[0].weight, masked[0].weight.grad))

    def test_autocast(self, interpreted: None) -> None:
        masked, sparse, _ = self.twins()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (masked, sparse)]
        for model, optimizer in zip((masked, sparse), optimizers, strict=True):
            for _ in range(3):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    result = model(X)
                assert result.dtype == torch.bfloat16
                cross_entropy(result.float(), Y).backward()
                optimizer.step()
        assert sparse[0].weight.values.dtype == torch.float32
        torch.testing.assert_close(dense(sparse[0].weight), masked[0].weight.detach(), rtol=0.05, atol=0.005)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
    def test_compiled(self) -> None:
        _, sparse, _ = self.twins()
        other = copy.deepcopy(sparse)
        torch.compiler.reset()
        compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
        for original, called in ((sparse, sparse), (other, compiled)):
            train(called, OPTIMIZERS["Adam"](original.parameters()), 3)
        torch.testing.assert_close(other[0].weight.values, sparse[0].weight.values)
        torch.compiler.reset()

    @each_optimizer
    def test_checkpoints_resume_bit_for_bit(self, kind: str, interpreted: None) -> None:
        _, model, _ = self.twins()
        optimizer = OPTIMIZERS[kind](model.parameters())
        train(model, optimizer, 2)
        state = read_back([model.state_dict(), optimizer.state_dict()])
        train(model, optimizer, 2)
        _, other, _ = self.twins()
        resumed = OPTIMIZERS[kind](other.parameters())
        other.load_state_dict(state[0])
        resumed.load_state_dict(state[1])
        train(other, resumed, 2)
        assert equal(other.state_dict(), model.state_dict())
        assert equal(resumed.state_dict(), optimizer.state_dict())


FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 2), ns.BCSR(3, 4), ns.NM(2, 3), ns.Format("(i, j) -> (i: dense, j: bitmap)")]


class TestRepattern:
    def layer(self, format: ns.Format = ns.CSR) -> SparseLinear:
        torch.manual_seed(0)
        layer = torch.nn.Linear(6, 5)
        return SparseLinear.from_dense(layer, lambda w: torch.arange(30).reshape(5, 6) % 3 != 0, format)

    NEW = torch.arange(30).reshape(5, 6) % 3 != 1

    @each_optimizer
    @pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
    def test_kept_entries_keep_their_values_and_new_entries_start_at_0(self, kind: str, format: ns.Format, interpreted: None) -> None:
        layer = self.layer(format)
        optimizer = OPTIMIZERS[kind](layer.parameters())
        train(layer, optimizer, 2)
        values = layer.weight.values
        names = [name for name, tensor in optimizer.state[values].items() if tensor.ndim]
        assert names
        tensors = {"values": values.detach(), "grad": values.grad, **{name: optimizer.state[values][name] for name in names}}
        before = {name: layer.weight.tensor.with_values(tensor.clone()).to_dense() for name, tensor in tensors.items()}
        earlier = layer.weight.tensor.with_values(torch.ones(values.numel())).to_dense() != 0
        repattern(layer.weight, self.NEW, optimizer)
        stored = layer.weight.tensor.with_values(torch.ones(values.numel())).to_dense() != 0
        assert bool((stored | ~self.NEW).all())
        assert layer.weight.values is values
        assert layer.weight.format == format
        tensors = {"values": values.detach(), "grad": values.grad, **{name: optimizer.state[values][name] for name in names}}
        for name, tensor in tensors.items():
            assert tensor.shape == values.shape
            assert torch.equal(layer.weight.tensor.with_values(tensor).to_dense(), torch.where(stored & earlier, before[name], 0)), name
        train(layer, optimizer, 1)
        assert SparseLinear(6, 5, pattern=layer.weight.tensor, format=format).load_state_dict(layer.state_dict()) == ([], [])

    def test_a_parameter_stays_valid_for_the_graph_of_the_last_step(self, interpreted: None) -> None:
        """Autograd remembers the size that a parameter had in the forward pass."""
        layer = self.layer()
        arrived: list[int] = []
        layer.weight.values.register_hook(lambda gradient: arrived.append(gradient.numel()))
        loss = layer(X).sum()
        loss.backward(retain_graph=True)
        repattern(layer.weight, torch.ones(5, 6, dtype=torch.bool))
        layer(X).sum().backward()
        assert loss.requires_grad
        assert arrived == [20, 30]
        assert layer.weight.values.grad.shape == (30,)

    def test_memory_is_reused_where_the_number_of_entries_is_equal(self) -> None:
        layer = self.layer()
        layer.weight.values.grad = torch.ones(20)
        before = [layer.weight.values.data_ptr(), layer.weight.values.grad.data_ptr()]
        repattern(layer.weight, self.NEW)
        assert [layer.weight.values.data_ptr(), layer.weight.values.grad.data_ptr()] == before
        assert sorted(layer.weight.values.grad.tolist()) == [0.0] * 10 + [1.0] * 10

    def test_index_arrays_of_a_given_pattern_are_copied(self) -> None:
        """Buffers may be written to, and the pattern may belong to another weight."""
        given = ns.from_torch(self.NEW.float())
        for pattern in (given, given.pattern, given.to(ns.CSC)):
            layer, again = self.layer(), self.layer()
            for target in (layer, again):
                repattern(target.weight, pattern)
            for array, other in zip(layer.weight.buffers(), again.weight.buffers(), strict=True):
                array.zero_()
                assert other.any()
        assert torch.equal(given.to_dense() != 0, self.NEW)

    def test_copies_from_before_keep_their_pattern(self, interpreted: None) -> None:
        layer = self.layer()
        other, expected = copy.deepcopy(layer), layer(X)
        repattern(layer.weight, self.NEW)
        assert torch.equal(other(X), expected)
        assert torch.equal(other.weight.indices(), self.layer().weight.indices())

    def test_patterns_in_every_form(self) -> None:
        stored = ns.from_torch(self.NEW, ns.CSC)
        for given in (self.NEW, stored, stored.pattern, ns.from_torch(self.NEW), ns.nn.Parameter(ns.from_torch(self.NEW.float())).tensor):
            layer = self.layer()
            repattern(layer.weight, given)
            assert torch.equal(dense(layer.weight) != 0, self.NEW & (dense(self.layer().weight) != 0))
            assert layer.weight.format == ns.CSR

    @pytest.mark.parametrize("size", [0, 1])
    def test_all_entries_and_none(self, size: int, interpreted: None) -> None:
        layer = self.layer()
        repattern(layer.weight, torch.full((5, 6), bool(size)))
        assert layer.weight.nnz == 30 * size
        repattern(layer.weight, self.NEW)
        assert layer(X).shape == (12, 5)

    def test_requires_grad_is_kept(self) -> None:
        layer = self.layer()
        repattern(layer.weight, torch.ones(5, 6, dtype=torch.bool))
        assert layer.weight.requires_grad
        layer.weight.requires_grad = False
        repattern(layer.weight, self.NEW)
        assert not layer.weight.requires_grad

    def test_errors_change_nothing(self, interpreted: None) -> None:
        layer = self.layer(ns.NM(2, 3))
        adam, other = torch.optim.Adam(layer.parameters()), torch.optim.Adam(self.layer().parameters())
        train(layer, adam, 1)
        before = copy.deepcopy([layer.state_dict(), adam.state_dict()])
        lbfgs = torch.optim.LBFGS(layer.parameters())
        wrong: list[tuple[type[Exception], str, Any, Any]] = [
            (ns.SizeError, r"has shape \(6, 5\), but the weight has \(5, 6\)", self.NEW.t(), adam),
            (ns.FormatError, "holds 2 coordinates", torch.ones(5, 6, dtype=torch.bool), adam),
            (ns.OperandError, r"a bool mask, as in mask != 0, not a tensor of torch\.float32", self.NEW.float(), adam),
            (ns.OperandError, "Adam doesn't hold the values of this weight", self.NEW, [other]),
            (ns.OperandError, r"str is not a torch\.optim\.Optimizer", self.NEW, "adam"),
            (ns.UnsupportedError, "LBFGS stores all parameters", self.NEW, lbfgs),
        ]
        for error, message, pattern, optimizer in wrong:
            with pytest.raises(error, match=message):
                repattern(layer.weight, pattern, optimizer)
        adam.state[layer.weight.values]["rows"] = torch.ones(5)
        with pytest.raises(ns.UnsupportedError, match=r"Adam stores 'rows', a tensor \(5,\), for a parameter \(20,\)"):
            repattern(layer.weight, self.NEW, adam)
        del adam.state[layer.weight.values]["rows"]
        assert equal([layer.state_dict(), adam.state_dict()], before)
        with pytest.raises(ns.OperandError, match=r"repattern takes a SparseParameter, .*not Parameter"):
            repattern(torch.nn.Parameter(X), self.NEW)  # type: ignore[arg-type]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
    def test_compiled_programs_see_the_new_pattern(self) -> None:
        layer = self.layer()
        torch.compiler.reset()
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        compiled(X).sum().backward()
        for mask in (self.NEW, torch.ones(5, 6, dtype=torch.bool)):
            repattern(layer.weight, mask)
            with torch.no_grad():
                layer.weight.values.fill_(1.0)
            layer.zero_grad()
            result = compiled(X)
            torch.testing.assert_close(result, X @ mask.float().t() + layer.bias)
            result.sum().backward()
            torch.testing.assert_close(layer.weight.values.grad, at_entries(layer.weight, X.sum(0).expand(5, 6)))
        torch.compiler.reset()


class TestSchedules:
    def test_fractions(self) -> None:
        fraction = schedules.cubic(0.9, begin=10, end=110, every=10, start=0.1)
        assert [fraction(step) for step in (0, 9, 10)] == [0.1] * 3
        assert fraction(20) == fraction(29) == pytest.approx(0.1 + 0.8 * (1 - 0.9**3))
        assert [fraction(step) for step in (110, 10**6)] == [0.9] * 2
        assert schedules.linear(0.8, begin=0, end=4)(3) == pytest.approx(0.6)
        assert [schedules.one_shot(0.5, at=3)(step) for step in (2, 3, 4)] == [0, 0.5, 0.5]
        assert [round(schedules.cosine(0.3, until=9)(step), 6) for step in (0, 3, 6, 9, 12)] == [0.3, 0.225, 0.075, 0, 0]

    def test_schedules_compare_and_pickle_by_value(self) -> None:
        schedule = schedules.cubic(0.9, begin=1, end=5)
        assert pickle.loads(pickle.dumps(schedule)) == schedule != schedules.linear(0.9, begin=1, end=5)
        assert repr(schedule) == "cubic(final=0.9, begin=1, end=5, every=1, start=0.0)"

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: schedules.cubic(90, begin=0, end=1), r"cubic\(final=90.*lies between 0 and 1"),
            (lambda: schedules.linear(0.9, begin=5, end=5), "give a smaller begin=, or a larger end="),
            (lambda: schedules.linear(0.9, begin=0, end=5, every=0), "0 is not a number of steps"),
            (lambda: schedules.one_shot(0.9, at=-1), "at= has to be the number of a step, at least 0"),
            (lambda: schedules.cosine(0.9, until=0), "0 is not a number of steps"),
        ],
    )
    def test_invalid_schedules_are_refused(self, make: Callable[[], Any], message: str) -> None:
        with pytest.raises(ns.SizeError, match=message):
            make()


def pruning_of(model: torch.nn.Module, optimizer: Any, final: float = 0.9, end: int = 6, **options: Any) -> GradualPruning:
    sparsifier = options.pop("sparsifier", magnitude)
    return GradualPruning(model, optimizer, sparsifier, schedules.linear(final, begin=0, end=end), **options)


class TestGradualPruning:
    @each_optimizer
    @pytest.mark.parametrize("sparsifier", [magnitude, lambda f: block_magnitude(2, 1, f)], ids=["magnitude", "blocks"])
    def test_masked_and_sparse_training_agree(self, kind: str, sparsifier: Any, interpreted: None) -> None:
        """Layers that stay masked end with the values and optimizer state of layers that become sparse half-way."""
        models, optimizers = [network(), network()], []
        for model, sparse_from in zip(models, (None, 0.5), strict=True):
            optimizer = OPTIMIZERS[kind](model.parameters())
            pruning = pruning_of(model, optimizer, sparsifier=sparsifier, weights="0.*", sparse_from=sparse_from)
            train(model, optimizer, 8, pruning.step)
            optimizers.append(optimizer)
        masked, sparse = models
        assert (type(masked[0]), type(sparse[0]), type(sparse[2])) == (torch.nn.Linear, SparseLinear, torch.nn.Linear)
        mask = masked[0].weight != 0
        assert int(mask.sum()) == sparse[0].weight.nnz == int(sparsifier(0.9)(X[:8]).sum())
        torch.testing.assert_close(dense(sparse[0].weight), masked[0].weight.detach())
        for name, state in optimizers[1].state[sparse[0].weight.values].items():
            expected = optimizers[0].state[masked[0].weight][name]
            torch.testing.assert_close(state, at_entries(sparse[0].weight, expected) if state.ndim else expected)
            assert not state.ndim or not expected[~mask].any()

    def test_the_schedule_is_followed_and_pruned_entries_stay_pruned(self, interpreted: None) -> None:
        model = network()
        optimizer = OPTIMIZERS["Adam"](model.parameters())
        pruning = pruning_of(model, optimizer, 0.75, 6, sparse_from=0.5)
        mask = torch.ones(8, 6, dtype=torch.bool)
        for step in range(1, 9):
            train(model, optimizer)
            changed = pruning.step()
            weight = dense(model[0].weight) if step >= 4 else model[0].weight.detach()
            assert int((weight != 0).sum()) == 48 - round(min(step / 6, 1) * 0.75 * 48)
            assert not (weight != 0)[~mask].any()
            mask = weight != 0
            assert changed == (4 <= step <= 6)
        assert repr(pruning) == "GradualPruning(step 8, 0.75 of 0 dense and 2 sparse weights)"

    def test_the_optimizer_holds_the_values_in_place_of_the_weight(self, interpreted: None) -> None:
        model = network()
        groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        bias, handle = model[0].bias, model[0].register_forward_hook(lambda *_: seen.append(1))
        seen: list[int] = []
        pruning = pruning_of(model, optimizer, weights="0.weight")
        train(model, optimizer, 6, pruning.step)
        assert [id(parameter) for parameter in optimizer.param_groups[0]["params"]] == [id(model[0].weight.values), id(bias)]
        assert (optimizer.param_groups[0]["lr"], model[0].bias) == (0.5, bias)
        assert len(optimizer.state) == 4
        before, count = model[0].weight.values.clone(), len(seen)
        train(model, optimizer)
        assert bool((before != model[0].weight.values).all())
        assert len(seen) == count + 1
        handle.remove()
        train(model, optimizer)
        assert len(seen) == count + 1

    @pytest.mark.parametrize(
        ("sparsifier", "format"),
        [(lambda f: block_magnitude(2, 1, f), None), (lambda f: n_m(1 + (f < 0.7), 4), "CSR")],
        ids=["blocks", "n of every m"],
    )
    def test_steps_record_no_densification(self, sparsifier: Any, format: str | None, interpreted: None) -> None:
        """The sparsifiers read a dense copy of the weight; users could not avoid it."""
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
        options = {"sparsifier": sparsifier, "format": format, "sparse_from": 0.5, "weights": "0.weight"}
        pruning = pruning_of(model, OPTIMIZERS["SGD"](model.parameters()), **options)
        with warnings.catch_warnings(), ns.strict(), ns.ledger() as entries:
            warnings.simplefilter("error")
            for _ in range(6):
                pruning.step()
        assert model[0].weight.nnz == int(sparsifier(0.9)(torch.rand(8, 8)).sum())
        assert not entries.of("densification")

    @pytest.mark.parametrize("start", ["dense", "sparse"])
    def test_padding_that_training_fills_warns_once(self, start: str, interpreted: None) -> None:
        model = network()
        if start == "sparse":
            model[0] = SparseLinear.from_dense(model[0], magnitude(0.2), "BCSR(2, 2)")
        pruning = pruning_of(model, OPTIMIZERS["SGD"](model.parameters()), weights=["0.weight", "2.weight"], format="BCSR(2, 2)")
        text = r"[02]\.weight stores \d+ % more entries than the sparsifier keeps in BCSR\(2, 2\), and training fills them"
        with pytest.warns(UserWarning, match=text) as records:
            train(model, pruning.optimizer[0], 6, pruning.step)
        assert len(records) == 1
        assert records[0].filename == __file__
        frozen = network().requires_grad_(False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pruning_of(frozen, None, end=1, format="BCSR(2, 2)").step()

    def test_gradients_of_pruned_entries_are_0(self, interpreted: None) -> None:
        model = network()
        pruning = pruning_of(model, OPTIMIZERS["SGD"](model.parameters()), 0.5, 1, weights="0.weight", sparse_from=None)
        pruning.step()
        cross_entropy(model(X), Y).backward()
        assert not model[0].weight.grad[model[0].weight == 0].any()
        assert model[0].weight.grad[model[0].weight != 0].any()

    @pytest.mark.parametrize("at", [1, 3, 5, 7])
    @each_optimizer
    def test_checkpoints_resume_bit_for_bit(self, kind: str, at: int, interpreted: None) -> None:
        """Checkpoints from masked layers, from new sparse layers, and from layers with changed patterns."""

        def begin() -> tuple[torch.nn.Sequential, torch.optim.Optimizer, GradualPruning]:
            model = network()
            optimizer = OPTIMIZERS[kind](model.parameters())
            return model, optimizer, pruning_of(model, optimizer, sparse_from=0.45)

        model, optimizer, pruning = begin()
        train(model, optimizer, at, pruning.step)
        state = read_back([pruning.state_dict(), model.state_dict(), optimizer.state_dict()])
        train(model, optimizer, 3, pruning.step)
        resumed = begin()
        for part, saved in zip((resumed[2], resumed[0], resumed[1]), state, strict=True):
            part.load_state_dict(saved)
        train(*resumed[:2], 3, resumed[2].step)
        assert equal(resumed[0].state_dict(), model.state_dict())
        assert equal(resumed[1].state_dict(), optimizer.state_dict())
        assert equal(resumed[2].state_dict(), pruning.state_dict())

    @pytest.mark.parametrize("at", [2, 5])
    def test_copies_train_alike(self, at: int, interpreted: None) -> None:
        model = network()
        optimizer = OPTIMIZERS["Adam"](model.parameters())
        pruning = pruning_of(model, optimizer, sparse_from=0.5)
        train(model, optimizer, at, pruning.step)
        copied = copy.deepcopy((model, optimizer, pruning))
        if at == 2:
            cross_entropy(copied[0](X), Y).backward()
            assert not copied[0][0].weight.grad[copied[0][0].weight == 0].any()
        for run in ((model, optimizer, pruning), copied):
            train(*run[:2], 4, run[2].step)
        assert equal(copied[0].state_dict(), model.state_dict())
        assert copied[2].fraction == pruning.fraction == 0.9

    def test_frozen_weights_are_pruned_and_stay_frozen(self, interpreted: None) -> None:
        model = network()
        model[0].weight.requires_grad_(False)
        optimizer = OPTIMIZERS["SGD"]([parameter for parameter in model.parameters() if parameter.requires_grad])
        pruning = pruning_of(model, optimizer, sparse_from=0.7)
        train(model, optimizer, 8, pruning.step)
        assert (model[0].weight.requires_grad, model[2].weight.requires_grad) == (False, True)
        assert model[0].weight.nnz == 5

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
    def test_compiled_programs_follow_changes_of_masks_layers_and_patterns(self) -> None:
        models = [network(), network()]
        torch.compiler.reset()
        for model, called in ((models[0], models[0]), (models[1], torch.compile(models[1], backend="aot_eager"))):
            optimizer = OPTIMIZERS["Adam"](model.parameters())
            train(called, optimizer, 7, pruning_of(called, optimizer, sparse_from=0.5).step)
        assert isinstance(models[1][0], SparseLinear)
        for tensor, other in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
            torch.testing.assert_close(tensor, other)
        torch.compiler.reset()

    def test_layers_at_several_places_and_convolutions(self, interpreted: None) -> None:
        shared = torch.nn.Linear(6, 6)
        model = torch.nn.ModuleDict({"a": shared, "b": torch.nn.Sequential(shared), "c": torch.nn.Conv2d(2, 3, 3)})
        pruning = pruning_of(model, None, 0.8, 1, sparse_from=0.8)
        pruning.step()
        assert isinstance(model["a"], SparseLinear)
        assert model["a"] is model["b"][0]
        assert isinstance(model["c"], SparseConv2d)
        assert model["c"].weight.nnz == 54 - round(0.8 * 54)

    def test_errors_change_nothing(self, interpreted: None) -> None:
        model = network()
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        with pytest.raises(ns.ExpressionError, match=r'weight\("0\.wieght"\) names no parameter: did you mean \'0\.weight\''):
            pruning_of(model, optimizer, weights="0.wieght")
        with pytest.raises(ns.OperandError, match=r"0\.weight: SGD doesn't hold the values of this weight"):
            pruning_of(network(), optimizer)
        with pytest.raises(ns.SizeError, match=r"sparse_from=8: the share"):
            pruning_of(model, optimizer, sparse_from=8)
        tied = torch.nn.ModuleDict({"embed": torch.nn.Embedding(3, 4), "head": torch.nn.Linear(4, 3)})
        tied["head"].weight = tied["embed"].weight
        with pytest.raises(ns.UnsupportedError, match=r"embed\.weight, head\.weight: tied to embed\.weight"):
            pruning_of(tied, None)
        pruning = pruning_of(model, optimizer, sparse_from=0.1)
        with torch.no_grad():
            model[2].weight[0, 0] = torch.nan
        with pytest.raises(ns.OperandError, match=r"NaN at \(0, 0\)"):
            pruning.step()
        assert (type(model[0]), pruning.count, bool((model[0].weight != 0).all())) == (torch.nn.Linear, 0, True)
        falling = GradualPruning(model, optimizer, magnitude, lambda step: 0.5 / step, weights="0.weight")
        falling.step()
        with pytest.raises(ns.SizeError, match=r"falls from 0\.5 to 0\.25 at step 2"):
            falling.step()

    def test_loading_an_early_state_removes_masks(self, interpreted: None) -> None:
        model = network()
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        pruning = pruning_of(model, optimizer, 0.5, 1, sparse_from=None)
        early = pruning.state_dict()
        pruning.step()
        pruning.load_state_dict(early)
        with torch.no_grad():
            model[0].weight.fill_(0.1)
        cross_entropy(model(X), Y).backward()
        assert int((model[0].weight.grad != 0).all(1).sum()) > 0
        assert (pruning.count, pruning.fraction) == (0, 0)

    def test_states_of_other_models_are_refused(self, interpreted: None) -> None:
        model = network()
        pruning, other = pruning_of(model, None, 0.9, 1), pruning_of(network(), None, 0.9, 1, weights="0.weight")
        early = pruning.state_dict()
        pruning.step()
        with pytest.raises(ns.OperandError, match=r"for other weights: it has 2\.weight"):
            other.load_state_dict(pruning.state_dict())
        with pytest.raises(ns.UnsupportedError, match=r"0\.weight is dense in the state, but sparse in the model"):
            pruning.load_state_dict(early)
        wide = pruning_of(
            torch.nn.Sequential(torch.nn.Linear(7, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), None, 0.9, 2, sparse_from=None
        )
        wide.step()
        with pytest.raises(ns.SizeError, match=r"a mask of shape \(8, 7\) for 0\.weight, which has \(8, 6\)"):
            pruning_of(network(), None).load_state_dict(wide.state_dict())


class TestMaskedAnew:
    def test_sr_ste_is_the_papers_formula(self) -> None:
        layer = torch.nn.Linear(8, 3)
        weight = layer.weight
        straight_through(layer, n_m(2, 4), decay=0.5)
        mask = n_m(2, 4)(weight.detach())
        upstream = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
        result = layer(x)
        torch.testing.assert_close(result, x @ (weight * mask).t() + layer.bias)
        result.backward(upstream)
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, upstream.t() @ x + 0.5 * ~mask * weight)

    def test_masks_follow_the_weight_and_settle(self, interpreted: None) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        optimizer = OPTIMIZERS["Adam"](model.parameters())
        straight_through(model, n_m(2, 4), weights="2.weight", decay=2e-4)
        first = n_m(2, 4)(model[2].weight.detach())
        for _ in range(30):
            train(model, optimizer)
            assert int((model[2].weight != 0).sum()) == 12
        assert not torch.equal(model[2].weight != 0, first)
        whole, expected = model[2].parametrizations.weight.original, model(X)
        moments = optimizer.state[whole]["exp_avg"].clone()
        settle(model, optimizer)
        assert model[2].weight.format == ns.NM(2, 4)
        torch.testing.assert_close(model(X), expected)
        values = model[2].weight.values
        assert torch.equal(optimizer.state[values]["exp_avg"], at_entries(model[2].weight, moments))
        train(model, optimizer, 2)
        assert not torch.equal(model(X), expected)
        with pytest.raises(ns.OperandError, match="no layer of the model is trained by straight_through"):
            settle(model)

    def test_checkpoints_resume_bit_for_bit(self) -> None:
        runs = []
        for _ in range(2):
            model = network()
            straight_through(model, magnitude(0.5))
            runs.append((model, OPTIMIZERS["Adam"](model.parameters())))
        (model, optimizer), (other, resumed) = runs
        train(model, optimizer, 2)
        state = read_back([model.state_dict(), optimizer.state_dict()])
        other.load_state_dict(state[0])
        resumed.load_state_dict(state[1])
        train(model, optimizer, 2)
        train(other, resumed, 2)
        assert equal(other.state_dict(), model.state_dict())

    def test_pruned_entries_come_back(self) -> None:
        """The number of kept entries is the same after every step."""
        model = network()
        optimizer, masks = OPTIMIZERS["Adam"](model.parameters()), []

        def after() -> None:
            resparsify(model, magnitude(0.5), weights="0.weight")
            masks.append(model[0].weight != 0)

        train(model, optimizer, 30, after)
        assert {int(mask.sum()) for mask in masks} == {24}
        assert bool((masks[-1] & ~masks[0]).any())

    def test_a_random_mask_is_drawn_once(self) -> None:
        model, sparsifier = network(), random(0.5, seed=0)
        optimizer, masks = OPTIMIZERS["SGD"](model.parameters()), []

        def after() -> None:
            resparsify(model, sparsifier, weights="0.weight")
            masks.append(model[0].weight != 0)

        train(model, optimizer, 5, after)
        assert int(masks[0].sum()) == 24
        assert all(torch.equal(mask, masks[0]) for mask in masks)

    def test_invalid_arguments_are_refused(self) -> None:
        model = network()
        with pytest.raises(ns.OperandError, match=r"0\.5 is not a sparsifier"):
            straight_through(model, 0.5)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match=r"0\.5 is not a sparsifier"):
            resparsify(model, 0.5)  # type: ignore[arg-type]
        with pytest.raises(ns.OperandError, match="no sparsifier is registered as 'magnitud'"):
            resparsify(model, "magnitud")
        with pytest.raises(ns.SizeError, match="decay=-1"):
            straight_through(model, magnitude(0.5), decay=-1)
        with torch.no_grad():
            model[2].weight[0, 0] = torch.nan
        with pytest.raises(ns.OperandError, match="NaN"):
            resparsify(model, magnitude(0.5))
        assert bool((model[0].weight != 0).all())
