"""MoE against dense reference einsums that multiply every token by every expert: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from random_tensors import leaf

import numscorch as ns
from numscorch.nn import MoE, functional as F
from numscorch.nn.moe import mixture, plan_dispatch, top_k_gates
from numscorch.tensors.validate import validate

pytestmark = pytest.mark.usefixtures("interpreted")

B, N, D, H = 37, 5, 8, 6
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def dense_moe(x: torch.Tensor, gates: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Dense dispatch, experts and combination."""
    dispatch = x.unsqueeze(1).expand(-1, len(experts), -1)
    outputs = torch.einsum("bnd,ndh->bnh", dispatch, experts)
    return torch.einsum("bnh,bn->bh", outputs, gates)


def check(x: torch.Tensor, gates: ns.SparseTensor, experts: torch.Tensor) -> None:
    """Values and gradients agree with those of dense gates."""
    values = gates.values.detach().requires_grad_()
    gates = gates.with_values(values)
    result, expected = mixture(x, gates, experts), dense_moe(x, gates.to_dense(), experts)
    close(result, expected)
    upstream = leaf(*expected.shape, seed=7, dtype=x.dtype).detach()
    close(torch.autograd.grad(result, (x, values, experts), upstream), torch.autograd.grad(expected, (x, values, experts), upstream))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("top_k", [1, 2, N])
def test_values_and_gradients_equal_the_dense_computation(top_k: int, dtype: torch.dtype) -> None:
    scores = leaf(B, N, seed=1, dtype=dtype).softmax(1)
    check(leaf(B, D, dtype=dtype), top_k_gates(scores, top_k), leaf(N, D, H, seed=2, dtype=dtype))


def test_one_hot_gates() -> None:
    x, experts = leaf(B, D), leaf(N, D, H, seed=2)
    scores = torch.rand(B, N, generator=torch.Generator().manual_seed(0))
    gates = F.one_hot(scores.argmax(1), N, sparse=True, dtype=torch.float32)
    check(x, gates, experts)
    close(mixture(x, gates.to(ns.CSC), experts), dense_moe(x, gates.to_dense(), experts))
    close(mixture(x, gates.to_torch(), experts), dense_moe(x, gates.to_dense(), experts))
    close(mixture(x, gates, experts), ns.einsum("bn,bd,ndh->bh", gates, x, experts))


def test_a_sparse_dispatch_gives_the_same_result() -> None:
    """Three einsums whose results store selected experts only."""
    x, experts, gates = (
        leaf(B, D).detach(),
        leaf(N, D, H, seed=2).detach(),
        top_k_gates(leaf(B, N, seed=1).softmax(1).detach(), 2),
    )
    dispatch = ns.einsum("bd,bn->bnd", x, gates, format="dsd")
    assert dispatch.nnz == gates.nnz * D
    outputs = ns.einsum("bnd,ndh->bnh", dispatch, experts, format="dsd")
    close(mixture(x, gates, experts), ns.einsum("bnh->bh", outputs, format="dense"))


@pytest.mark.parametrize("form", ["CSC", "torch CSR", "torch COO", "parameter"])
def test_gates_of_any_layout_get_their_gradient(form: str) -> None:
    x, experts, dense = (
        leaf(B, D).detach(),
        leaf(N, D, H, seed=2).detach(),
        top_k_gates(leaf(B, N, seed=1).softmax(1).detach(), 2).to_dense(),
    )
    source = dense.clone().requires_grad_()
    layouts: dict[str, Callable[[], Any]] = {
        "CSC": lambda: ns.from_torch(source, ns.CSC),
        "torch CSR": source.to_sparse_csr,
        "torch COO": source.to_sparse,
        "parameter": lambda: ns.nn.Parameter(ns.from_torch(dense)),
    }
    gates = layouts[form]()
    result = MoE(experts, gate=False)(x, gates)
    other = dense.clone().requires_grad_()
    expected = dense_moe(x, other, experts)
    close(result, expected)
    result.square().sum().backward()
    expected.square().sum().backward()
    gradient = gates.grad.to_dense() if form == "parameter" else source.grad.to_dense()
    close(gradient, other.grad * (dense != 0))


def test_experts_without_tokens_and_tokens_without_experts() -> None:
    gates = torch.zeros(B, N)
    gates[3:20, 1], gates[10, 4] = 0.5, 2.0
    x, experts = leaf(B, D), leaf(N, D, H, seed=2)
    check(x, ns.from_torch(gates), experts)
    assert not mixture(x, ns.from_torch(gates), experts)[0].any()


@pytest.mark.parametrize("tokens", [0, 1, 4, 5])
def test_few_tokens(tokens: int) -> None:
    check(leaf(tokens, D), top_k_gates(leaf(tokens, N, seed=1).softmax(1), 2), leaf(N, D, H, seed=2))


def test_no_gates_at_all() -> None:
    check(leaf(B, D), ns.from_torch(torch.zeros(B, N)), leaf(N, D, H, seed=2))


@pytest.mark.parametrize("tokens, top_k", [(37, 1), (37, 2), (1, 1), (0, 1), (64, 5)])
def test_each_gate_has_a_slot_in_a_group_of_its_expert(tokens: int, top_k: int) -> None:
    gates = top_k_gates(leaf(tokens, N, seed=3).detach(), top_k)
    patterns = plan_dispatch(gates.pattern)
    for pattern in patterns:
        validate(pattern)
    tokens_of_slots, experts_of_groups, slots_of_tokens = (
        ns.SparseTensor(pattern, torch.ones(pattern.nnz)).to_dense() for pattern in patterns
    )
    assert torch.equal(tokens_of_slots, slots_of_tokens.T)
    assert torch.all(tokens_of_slots.sum(1) <= 1)
    assert torch.equal(slots_of_tokens @ experts_of_groups.repeat_interleave(4, 0), (gates.to_dense() != 0).float())


def test_sizes_do_not_depend_on_the_selected_experts() -> None:
    choices = (torch.arange(B) % N, torch.zeros(B, dtype=torch.int64))
    plans = [plan_dispatch(F.one_hot(experts, N, sparse=True).pattern) for experts in choices]
    shapes = [[part.shape for part in plan] for plan in plans]
    assert shapes[0] == shapes[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
def test_torch_compiles_around_moe() -> None:
    layer, x = MoE(N, 2, D, H), leaf(B, D)
    close(torch.compile(layer, backend="eager")(x), layer(x))


def test_second_gradients() -> None:
    gates = top_k_gates(leaf(4, N, seed=1, dtype=torch.float64).softmax(1).detach(), 2)
    values = gates.values.clone().requires_grad_()
    given = leaf(4, 3, dtype=torch.float64), values, leaf(N, 3, 2, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda x, values, experts: mixture(x, gates.with_values(values), experts), given)


def test_the_gate_learns() -> None:
    """Tokens of two kinds need different linear maps, so one expert for both has a larger loss."""
    torch.manual_seed(0)
    x = torch.randn(64, D)
    x[:32, 0], x[32:, 0] = 3.0, -3.0
    maps = torch.randn(2, D, H)
    targets = torch.cat([x[:32] @ maps[0], x[32:] @ maps[1]])
    layer = MoE(N, top_k=2, d_in=D, d_out=H)
    adam = torch.optim.Adam(layer.parameters(), 0.05)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(layer(x), targets)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    assert layer.gate.weight.grad.any()


@pytest.mark.parametrize("normalize", [False, True])
def test_the_module_combines_gate_softmax_top_k_and_mixture(normalize: bool) -> None:
    torch.manual_seed(1)
    layer = MoE(N, 2, D, H, normalize=normalize)
    x = leaf(3, B, D)
    result = layer(x)
    scores = layer.gate(x.reshape(-1, D)).softmax(1)
    mask = scores >= scores.topk(2).values[:, -1:]
    gates = torch.where(mask, scores, torch.zeros(()))
    gates = gates / gates.sum(1, keepdim=True) if normalize else gates
    expected = dense_moe(x.reshape(-1, D), gates, layer.experts).reshape(3, B, H)
    close(result, expected)
    inputs = [x, *layer.parameters()]
    close(torch.autograd.grad(result.square().sum(), inputs), torch.autograd.grad(expected.square().sum(), inputs))


def test_given_experts_and_scores() -> None:
    weight, x = torch.nn.Parameter(leaf(N, D, H).detach()), leaf(B, D)
    layer = MoE(weight, top_k=1, gate=False)
    assert layer.experts is weight
    assert list(layer.state_dict()) == ["experts"]
    scores = torch.rand(B, N)
    best = F.one_hot(scores.argmax(1), N)
    close(layer(x, scores), dense_moe(x, best * scores, weight))
    close(layer(x, ns.from_torch(best.float())), dense_moe(x, best.float(), weight))
    assert MoE(leaf(N, D, H).detach().double()).gate.weight.dtype == torch.float64


def test_a_tensor_of_weights_is_copied() -> None:
    weight = leaf(N, D, H).detach()
    layer, before = MoE(weight), weight.clone()
    with torch.no_grad():
        layer.experts += 1
    assert torch.equal(weight, before)
    close(layer.experts.detach(), before + 1)


def test_top_k_is_any_integer() -> None:
    layer = MoE(N, np.int64(2), D, H)
    assert type(layer.top_k) is int
    assert layer(leaf(B, D)).shape == (B, H)


def test_repr() -> None:
    assert "experts=8, top_k=2, d_in=6, d_out=5, density=0.25" in repr(MoE(8, 2, 6, 5))


x, w = torch.ones(B, D), torch.ones(N, D, H)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "more than all": (lambda: MoE(4, 5, 2, 2), ns.SizeError, "top_k=5 of 4 experts: choose between 1 and 4"),
    "none": (lambda: MoE(4, 0, 2, 2), ns.SizeError, "top_k=0"),
    "a fraction": (lambda: MoE(4, 2.0, 2, 2), ns.UnsupportedError, "top_k=2.0 of 4 experts: give an integer between 1 and 4"),
    "a fraction of scores": (lambda: top_k_gates(torch.ones(3, 2), 1.0), ns.UnsupportedError, "give an integer"),
    "of scores": (lambda: top_k_gates(torch.ones(3, 2), 3), ns.SizeError, "top_k=3 of 2"),
    "scores of one token": (lambda: top_k_gates(torch.ones(3), 1), ns.SizeError, r"\(tokens, n\)"),
    "no sizes": (lambda: MoE(4), ns.UnsupportedError, "give d_in= and d_out="),
    "a matrix": (lambda: MoE(torch.ones(2, 3)), ns.SizeError, r"\(n, d_in, d_out\)"),
    "other sizes": (lambda: MoE(w, d_in=3), ns.SizeError, "leave them out"),
    "no gates": (lambda: MoE(w, gate=False)(x), ns.UnsupportedError, "scores"),
    "dense gates": (lambda: mixture(x, torch.ones(B, N), w), ns.UnsupportedError, "every expert"),
    "tokens": (lambda: mixture(x, top_k_gates(torch.rand(3, N), 1), w), ns.SizeError, "37 tokens and 3"),
    "experts": (lambda: mixture(x, top_k_gates(torch.rand(B, 4), 1), w), ns.SizeError, r"4 experts and 5.*\n  input: \(37, 8\)"),
    "features": (lambda: MoE(w)(x[:, 1:], torch.rand(B, N)), ns.SizeError, "7 features and 8"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    call, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        call()
