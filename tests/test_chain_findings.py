"""Faults that were found in chains and pairs of programs, and in what sparse training does to models, as tests."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import numscorch as ns
from numscorch.sparsify import GradualPruning, RigL, SparsityPlan, magnitude, random, repattern, schedules, sparsify_model, threshold

G = torch.Generator().manual_seed(0)
A = ns.from_torch((torch.rand(90, 90, generator=G) < 0.05) * torch.randn(90, 90, generator=G), ns.CSR)
X, W = torch.randn(90, 80, generator=G), torch.randn(80, 2, generator=G)
TEXT = "y[i,k] = A[i,j] * x[j,f] * w[f,k]"


def expected(x: torch.Tensor = X) -> torch.Tensor:
    return A.to_dense() @ x @ W


def test_programs_compute_in_their_own_data_type_within_autocast() -> None:
    wanted = expected()
    for _ in range(2):
        for on in (True, False):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                made = ns.evaluate(TEXT, A=A, x=X, w=W)
                torch.testing.assert_close(made, wanted)
                ns.evaluate("h[j,k] = x[j,f] * w[f,k]; y[i,k] = A[i,j] * h[j,k]", A=A, x=X, w=W)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ns.einsum("ij,jk->ik", A, X, sparsifier=threshold(0.1)).dtype == torch.bfloat16


def test_transforms_go_through_programs_of_three_factors() -> None:
    run = lambda x: ns.evaluate(TEXT, A=A, x=x, w=W)  # noqa: E731
    run(X)
    torch.testing.assert_close(
        torch.func.vmap(run)(torch.stack([X, 2 * X])), torch.stack([expected(), 2 * expected()]), rtol=1e-4, atol=1e-4
    )
    gradient = torch.func.grad(lambda x: run(x).sum())(X)
    torch.testing.assert_close(gradient, A.to_dense().t().sum(1, keepdim=True) * W.sum(1), rtol=1e-4, atol=1e-4)


def test_16_bits_are_rounded_once() -> None:
    narrow = {"A": A.to(torch.bfloat16), "x": X.bfloat16(), "w": W.bfloat16()}
    exact = narrow["A"].to_dense().double() @ narrow["x"].double() @ narrow["w"].double()
    made = ns.evaluate(TEXT, **narrow)
    assert bool(((made.double() - exact).abs() <= (exact.bfloat16().double() - exact).abs() + 1e-5 * exact.abs().max()).all())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_refused_is_refused_in_our_words() -> None:
    with pytest.raises(RuntimeError):
        ns.einsum("ij,jj->ii", torch.ones(2, 2), torch.ones(2, 2))
    with forward_ad.dual_level(), pytest.raises(ns.UnsupportedError, match="forward-mode tangent"):
        ns.evaluate(TEXT, A=A, x=forward_ad.make_dual(X, X), w=W)


def test_a_chain_promotes_operands_of_another_dtype() -> None:
    for _ in range(2):
        assert ns.evaluate(TEXT, A=A, x=X, w=W).dtype == torch.float32
        assert ns.evaluate(TEXT, A=A, x=X, w=W.double()).dtype == torch.float64


def test_numbers_that_are_equal_are_told_apart() -> None:
    F = ns.from_torch(torch.eye(3), ns.CSR)
    for a in (0.0, -0.0, 0.0):
        assert float(ns.evaluate("y[i,j] = A[i,j] / a", A=F, a=a).values[0]) == math.copysign(math.inf, a)
    whole = F.to(torch.int32)
    for a in (1, 1.5, 1):
        made, expected = ns.evaluate("y[i,j] = A[i,j] * a", A=whole, a=a), whole.values * a
        assert made.dtype == expected.dtype
        assert torch.equal(made.values, expected)


@pytest.mark.parametrize("format", ["dense", "auto", "infer"])
def test_sparsified_results_take_the_formats_that_others_take(format: str) -> None:
    made = ns.evaluate(TEXT, A=A, x=X, w=W, sparsifier=threshold(0.5), format=format)
    whole = made.to_dense() if isinstance(made, ns.SparseTensor) else made
    torch.testing.assert_close(whole, torch.where(expected().abs() > 0.5, expected(), 0.0), rtol=1e-4, atol=1e-4)


def test_a_model_that_is_a_layer_is_refused_rather_than_left_behind() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ns.UnsupportedError, match="the model itself"):
        GradualPruning(model, optimizer, magnitude, schedules.linear(0.9, begin=0, end=2), sparse_from=0.5)


def test_rigl_sees_sparse_activations() -> None:
    model = nn.Sequential(ns.nn.SparseLinear(8, 16, density=0.5), nn.ReLU(), ns.nn.SparseLinear(16, 4, density=0.5))
    sparsify_model(model, SparsityPlan().activation("1", threshold(0.1), format="csr"), report=None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rigl = RigL(model, optimizer, until=100, every=1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
        rigl.step()


def test_new_entries_grow_under_rprop() -> None:
    layer = ns.nn.SparseLinear(8, 8, density=0.5)
    optimizer = torch.optim.Rprop(layer.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        (layer(torch.ones(2, 8)) - 5).square().sum().backward()
        optimizer.step()

    step()
    old: Any = layer.weight.to_dense() != 0
    repattern(layer.weight, ~old, optimizer)
    step()
    step()
    assert float(layer.weight.values.detach().abs().min()) > 5e-3


def test_masks_that_are_drawn_anew_are_refused() -> None:
    for seed in (0, None):
        model = nn.Sequential(nn.Linear(20, 20))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        draw = lambda fraction, seed=seed: random(fraction, seed=seed)  # noqa: E731
        pruner = GradualPruning(model, optimizer, draw, schedules.linear(0.8, begin=0, end=4), sparse_from=None)
        pruner.step()
        if seed is None:
            with pytest.raises(ns.OperandError, match="a random sparsifier has to draw the same entries each time"):
                pruner.step()
        else:
            pruner.step()
            assert float((model[0].weight == 0).float().mean()) == pytest.approx(0.4, abs=0.01)
