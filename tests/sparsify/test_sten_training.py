"""Training with sparsifiers: optimizers, whole models, several processes, and controllers of masks.

The tests restate STen's own tests and cover its known failures; ``test_sten_behaviours.py`` has the rest.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from sten_cases import HALF, OPTIMIZERS, W, X, each_format, each_sparsifier, generator, linear, steps
from torch import nn
from torch.nn import functional as F
from training_cases import equal, read_back, stored
from two_processes import together, two_processes

import numscorch as ns
from numscorch.nn import SparseConv2d
from numscorch.sparsify import (
    SET,
    GradualPruning,
    RigL,
    SparsityPlan,
    densify_model,
    keep_all,
    magnitude,
    n_m,
    n_m_g,
    random,
    resparsify,
    schedules,
    settle,
    sparsify,
    sparsify_model,
    straight_through,
    threshold,
)

pytestmark = pytest.mark.usefixtures("plain_unless_compiled")


class TestSparseTraining:
    @each_format
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_every_format_trains_with_every_optimizer(self, optimizer: str, format: str) -> None:
        """Weights in COO and weights that store every entry train too."""
        layer = linear(keep_all() if "j: dense" in format else HALF, format)
        before, pattern = layer.weight.values.detach().clone(), layer.weight.pattern
        losses = steps(layer, getattr(torch.optim, optimizer)(layer.parameters(), **OPTIMIZERS[optimizer]), X, 5)
        assert losses[-1] < losses[0]
        assert not torch.equal(layer.weight.values, before)
        assert layer.weight.pattern is pattern

    @each_format
    def test_gradients_have_the_layout_of_the_weight_in_every_step(self, format: str) -> None:
        layer = linear(HALF, format)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
        for _ in range(10):
            steps(layer, optimizer, X, 1)
            gradient = layer.weight.grad
            assert isinstance(gradient, ns.SparseTensor)
            assert gradient.pattern is layer.weight.pattern
            assert gradient.format == ns.Format(format)

    @each_sparsifier
    def test_no_weight_is_frozen_silently(self, sparsifier: Any) -> None:
        """Weights in every format require gradients, also after `sparsify`."""
        layer = linear(sparsifier)
        assert layer.weight.requires_grad
        assert ns.nn.Parameter(sparsify(W, sparsifier)).requires_grad
        full = W.clone().requires_grad_()
        sparsify(full, sparsifier).values.sum().backward()
        assert torch.equal(full.grad != 0, sparsifier(W))
        before = layer.weight.values.detach().clone()
        steps(layer, torch.optim.SGD(layer.parameters(), lr=0.1), X, 1)
        assert not torch.equal(layer.weight.values, before)

    @each_sparsifier
    def test_weights_stay_sparse_and_masks_are_drawn_once(self, sparsifier: Any) -> None:
        """Drawing a random mask again in every step would drop more entries each time."""
        layer = linear(sparsifier)
        mask, count = stored(layer.weight), layer.weight.nnz
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05, weight_decay=0.1)
        steps(layer, optimizer, X, 10)
        assert layer.weight.nnz == count
        assert torch.equal(stored(layer.weight), mask)
        assert not layer.to_dense().weight[~mask].any()

    def test_sparsifying_again_with_a_random_mask_keeps_the_same_entries(self) -> None:
        keep = random(0.5)
        weight = sparsify(W, keep, "CSC")
        for _ in range(10):
            weight = sparsify(weight.to_dense() + 1.0, keep, "CSC")
        assert weight.nnz == 12
        assert torch.equal(stored(weight), keep(W))

    @each_format
    def test_weight_gradients_record_no_densification(self, format: str) -> None:
        """The gradient is computed at stored entries, not as a full matrix."""
        layer = linear(HALF, format)
        with ns.ledger() as led:
            layer(X).square().sum().backward()
        assert not [entry for entry in led if entry.kind == "densification"]

    def test_clipping_and_accumulated_gradients(self) -> None:
        layer = linear()
        for rows in (X[:1], X[1:]):
            layer(rows).square().sum().backward()
        accumulated = layer.weight.grad.to_dense()
        layer.zero_grad()
        layer(X).square().sum().backward()
        torch.testing.assert_close(layer.weight.grad.to_dense(), accumulated)
        nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
        assert torch.cat([parameter.grad.reshape(-1) for parameter in layer.parameters()]).norm() <= 0.1001

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_convolutions_and_products_under_autocast(self, dtype: torch.dtype) -> None:
        conv = SparseConv2d.from_dense(nn.Conv2d(2, 3, 3), HALF)
        for layer, x in ((conv, torch.randn(1, 2, 5, 5, generator=generator())), (linear(), X)):
            with torch.autocast("cpu", dtype):
                result = layer(x)
            assert result.dtype == dtype
            result.float().sum().backward()
            assert layer.weight.values.grad.dtype == torch.float32
            torch.testing.assert_close(result.float(), layer(x), rtol=0.05, atol=0.05)


def encoder(layers: int = 1) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


TOKENS = torch.randn(2, 3, 8, generator=generator())
TO_SPARSE = SparsityPlan().weight("layers.*.linear?.weight", magnitude(0.7))


class TestWholeModels:
    """Torch's modules get sparse weights, activations and gradients by name, in place."""

    def test_an_encoder_trains_as_its_masked_twin(self) -> None:
        model, twin = encoder(), encoder()
        matrices = {name: weight for name, weight in twin.named_parameters() if "linear" in name and weight.ndim == 2}
        masks = {name: magnitude(0.7)(weight.detach()) for name, weight in matrices.items()}
        for name, mask in masks.items():
            matrices[name].data *= mask
            matrices[name].register_hook(lambda gradient, mask=mask: gradient * mask)
        assert sparsify_model(model, TO_SPARSE, report=None) is model
        losses, expected = (steps(net, torch.optim.SGD(net.parameters(), lr=0.1), TOKENS, 4) for net in (model, twin))
        assert losses == pytest.approx(expected, rel=1e-4)
        for name, mask in masks.items():
            assert torch.equal(stored(model.get_submodule(name)), mask)
            torch.testing.assert_close(model.get_submodule(name).to_dense(), twin.get_parameter(name).detach())

    def test_activations_and_gradients_are_sparse_too(self) -> None:
        """Weights, activations and gradients have separate rules."""
        model = encoder()
        plan = TO_SPARSE.activation("layers.0.linear1", threshold(0.3)).gradient("layers.0.linear2", magnitude(0.5))
        seen: list[torch.Tensor] = []
        sparsify_model(model, plan, report=None)
        layer = model.layers[0]
        layer.linear1.register_forward_hook(lambda module, args, result: seen.append(result.detach()))
        layer.linear2.weight.values.register_hook(lambda gradient: seen.append(gradient))
        before = stored(layer.linear2.weight)
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1), TOKENS, 2)
        for hidden, gradient in zip(seen[::2], seen[1::2], strict=True):
            assert not ((hidden.abs() <= 0.3) & (hidden != 0)).any()
            assert bool((hidden == 0).any())
            assert gradient.shape == layer.linear2.weight.values.shape
        assert torch.equal(stored(layer.linear2.weight), before)

    def test_a_state_is_saved_loaded_and_densified(self) -> None:
        model, other = (sparsify_model(encoder(), TO_SPARSE, report=None) for _ in range(2))
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1), TOKENS, 2)
        assert other.load_state_dict(read_back(model.state_dict())) == ([], [])
        expected = model(TOKENS)
        assert torch.equal(other(TOKENS), expected)
        torch.testing.assert_close(densify_model(other)(TOKENS), expected)
        assert repr(other) == repr(encoder())

    def test_a_module_without_a_sparse_version_warns_with_code_to_paste(self) -> None:
        """The completed code registers a sparse version."""
        model = nn.Sequential(nn.Bilinear(3, 3, 2))
        with pytest.warns(ns.DenseFallbackWarning, match=r"register_sparse_module\(torch\.nn\.Bilinear, sparse_bilinear\)"):
            sparsify_model(model, SparsityPlan().weight("0.weight", HALF), report=None)
        assert type(model[0]) is nn.Bilinear

    @pytest.mark.parametrize(("n", "m", "g"), [(3, 6, 4), (1, 4, 2)])
    def test_an_encoder_of_grouped_n_m_weights_runs_and_trains(self, n: int, m: int, g: int) -> None:
        """Weights of n:m:g have gradients."""
        model = encoder()
        sparsify_model(model, SparsityPlan().weight("layers.*.linear?.weight", n_m_g(n, m, g)), report=None)
        weights = [model.layers[0].linear1.weight, model.layers[0].linear2.weight]
        assert [weight.format for weight in weights] == [ns.NMG(n, m, g)] * 2
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(TOKENS), densify_model(copy.deepcopy(model))(TOKENS))
        masks = [stored(weight) for weight in weights]
        losses = steps(model.train(), torch.optim.Adam(model.parameters(), lr=0.01), TOKENS, 5)
        assert losses[-1] < losses[0]
        assert all(torch.equal(stored(weight), mask) for weight, mask in zip(weights, masks, strict=True))

    @pytest.mark.parametrize("shape", [(1, 5), (5, 17), (17, 1), (17, 17)])
    @pytest.mark.parametrize(("n", "m", "g"), [(1, 4, 2), (5, 12, 2)])
    def test_grouped_n_m_takes_any_shape_in_either_direction(self, shape: tuple[int, int], n: int, m: int, g: int) -> None:
        """n:m:g keeps at most as much magnitude as n:m, and products use the same matrix."""
        for weight in (torch.randn(shape, generator=generator(sum(shape))), torch.randn(shape[::-1], generator=generator(sum(shape))).t()):
            A, mask = sparsify(weight, n_m_g(n, m, g)), n_m_g(n, m, g)(weight)
            assert torch.equal(A.to_dense(), weight * mask)
            assert weight[mask].abs().sum() <= (weight * n_m(n, m)(weight.t()).t()).abs().sum() + 1e-4
            torch.testing.assert_close(F.linear(torch.ones(3, shape[1]), A), torch.ones(3, shape[1]) @ A.to_dense().t())


class TestControllers:
    """SET, RigL and GradualPruning keep weights sparse and trained, with the density that they promise."""

    def net(self, *, sparse: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        return sparsify_model(model, SparsityPlan().weight("*.weight", HALF), report=None) if sparse else model

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    @pytest.mark.parametrize("kind", [SET, RigL, GradualPruning])
    def test_weights_stay_sparse_and_trained_through_ten_steps(self, kind: Any, optimizer: str) -> None:
        model = self.net(sparse=kind is not GradualPruning)
        trainer = getattr(torch.optim, optimizer)(model.parameters(), **OPTIMIZERS[optimizer])
        if kind is GradualPruning:
            control: Any = GradualPruning(model, trainer, magnitude, schedules.linear(0.5, begin=0, end=4), sparse_from=0.5)
        else:
            control = kind(model, trainer, every=2, until=100)
        losses = []
        for _ in range(10):
            losses += steps(model, trainer, X, 1)
            control.step()
        assert losses[-1] < losses[0]
        for at in (0, 2):
            assert model[at].weight.nnz == model[at].weight.numel() // 2
            assert model[at].weight.requires_grad
            assert model[at].weight.grad.format == model[at].weight.format

    def test_a_mask_computed_from_the_weight_in_every_step(self) -> None:
        """The largest entries are selected again after each step, so pruned entries may come back, as in STen's masked tensors."""
        for start in (lambda net: None, lambda net: straight_through(net, HALF)):
            model = self.net(sparse=False)
            start(model)
            trainer = torch.optim.Adam(model.parameters(), lr=0.05)
            masks = []
            for _ in range(8):
                steps(model, trainer, X, 1)
                if not hasattr(model[0], "parametrizations"):
                    resparsify(model, HALF)
                masks.append(model[0].weight != 0)
            assert {int(mask.sum()) for mask in masks} == {24}
            assert not torch.equal(masks[0], masks[-1])
        settle(model, trainer)
        assert torch.equal(stored(model[0].weight), magnitude(0.5)(model[0].weight.to_dense()))

    def test_random_masks_under_gradual_pruning_only_lose_entries(self) -> None:
        """Drawing the mask again at each step would prune more than the scheduled share."""
        model = self.net(sparse=False)
        control = GradualPruning(model, None, lambda f: random(f, seed=0), schedules.linear(0.75, begin=0, end=3), sparse_from=None)
        for share in (0.25, 0.5, 0.75, 0.75):
            control.step()
            assert int((model[0].weight == 0).sum()) == round(share * 48)

    def test_a_checkpoint_of_a_whole_run_resumes_bit_for_bit(self) -> None:
        runs = []
        for _ in range(2):
            model = self.net(sparse=True)
            trainer = torch.optim.AdamW(model.parameters(), lr=0.01)
            runs.append((SET(model, trainer, every=2), model, trainer))
        (control, model, trainer), other = runs

        def go(run: Any, count: int) -> None:
            for _ in range(count):
                steps(run[1], run[2], X, 1)
                run[0].step()

        go(runs[0], 3)
        state = read_back([part.state_dict() for part in runs[0]])
        go(runs[0], 4)
        for part, saved in zip(other, state, strict=True):
            part.load_state_dict(saved)
        go(other, 4)
        assert equal([part.state_dict() for part in other], [part.state_dict() for part in (control, model, trainer)])


@pytest.mark.process
@two_processes
def test_ten_steps_in_two_processes_leave_weights_and_gradients_alike(tmp_path: Path) -> None:
    """Models sparsified by name in both processes keep gradients sparse, and steps leak no tensors."""
    program = """
        import gc
        from numscorch.sparsify import SparsityPlan, sparsify_model

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        sparsify_model(model, SparsityPlan().weight("*.weight", magnitude(0.5)), report=None)
        ddp, optimizer = data_parallel(model), adam(model)
        counts = []
        with ns.ledger() as led:
            for _ in range(10):
                train(ddp, optimizer)
                gc.collect()
                counts.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
        assert not [entry for entry in led if entry.kind == "densification"], led
        alike(model)
        for at in (0, 2):
            weight = model[at].weight
            gathered = [torch.empty_like(weight.values.grad) for _ in range(2)]
            dist.all_gather(gathered, weight.values.grad)
            assert torch.equal(*gathered)
        given["nnz"] = [model[at].weight.nnz for at in (0, 2)]
        given["counts"] = counts
        """
    for given in together(program, tmp_path):
        assert given["nnz"] == [24, 16]
        assert given["counts"][-1] <= given["counts"][3]
