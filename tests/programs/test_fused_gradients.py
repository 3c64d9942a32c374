"""Gradients of programs that one kernel computes: those of dense torch, of each operand, and of gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import numscorch as ns
from numscorch.programs import fused_gradients
from numscorch.runtime.plans import uncompiled

ATTENTION = """
    S[h,i,j] = stored(A[i,j]) * (Q[h,i,k] * K[h,j,k]) * 0.5
    m[h,i] stored max= stored(A[i,j]) * S[h,i,j]
    E[h,i,j] = stored(A[i,j]) * exp(S[h,i,j] - m[h,i])
    l[h,i] = stored(A[i,j]) * E[h,i,j]
    P[h,i,j] = stored(A[i,j]) * E[h,i,j] / l[h,i]
    O[h,i,e] = stored(A[i,j]) * P[h,i,j] * V[h,j,e]
"""
GRAPH_ATTENTION = """
    Z[i,h,j] = stored(A[i,j]) * (s[j,h] + t[i,h])
    S[i,h,j] = stored(A[i,j]) * where(Z[i,h,j] > 0, Z[i,h,j], 0.2 * Z[i,h,j])
    m[i,h] stored max= stored(A[i,j]) * S[i,h,j]
    E[i,h,j] = A[i,j] * exp(S[i,h,j] - m[i,h])
    l[i,h] = stored(A[i,j]) * E[i,h,j]
    P[i,h,j] = stored(A[i,j]) * E[i,h,j] / l[i,h]
    D[i,h,c] = stored(A[i,j]) * P[i,h,j] * X[j,h,c]
"""
H, N, M, K = 2, 6, 7, 3


def matrix() -> Tensor:
    """A matrix with an empty row, an empty column and a full row."""
    made = torch.rand(N, M, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    made[torch.rand(N, M, generator=torch.Generator().manual_seed(2)) < 0.5] = 0
    made[0], made[-1], made[:, 2] = 0, 1.5, 0
    return made


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def attention(A: ns.SparseTensor | Tensor, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    if isinstance(A, ns.SparseTensor):
        return ns.evaluate(ATTENTION, A=A, Q=Q, K=K, V=V)
    scores = (0.5 * Q @ K.mT).masked_fill(A == 0, -torch.inf)
    scores = torch.where((A == 0).all(1, keepdim=True), 0.0, scores)  # rows without entries, which are left out below
    return (scores.softmax(-1) * (A != 0)) @ V


def graph_attention(A: ns.SparseTensor | Tensor, s: Tensor, t: Tensor, X: Tensor) -> Tensor:
    if isinstance(A, ns.SparseTensor):
        return ns.evaluate(GRAPH_ATTENTION, A=A, s=s, t=t, X=X)
    scores = torch.nn.functional.leaky_relu(s.T[:, None] + t.T[:, :, None], 0.2)  # h, i, j
    weights = A * scores.exp()
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("hij,jhc->ihc", weights / torch.where(total == 0, 1.0, total), X)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "attention": (attention, (drawn(H, N, K, seed=3), drawn(H, M, K, seed=4), drawn(H, M, 5, seed=5))),
    "graph attention": (graph_attention, (drawn(M, H, seed=6), drawn(N, H, seed=7), drawn(M, H, 4, seed=8))),
}


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_dense_torch(name: str, format: ns.Format) -> None:
    function, given = CASES[name]
    with uncompiled():
        made, expected = function(ns.from_torch(matrix(), format), *given), function(matrix(), *given)
        torch.testing.assert_close(made, expected)
        upstream = torch.randn_like(made)
        found = torch.autograd.grad(made, given, upstream)
    torch.testing.assert_close(found, torch.autograd.grad(expected, given, upstream))


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients(name: str) -> None:
    function, given = CASES[name]
    A = ns.from_torch(matrix(), ns.CSR)
    with uncompiled():
        small = [own[..., :2].detach().requires_grad_() for own in given]
        assert torch.autograd.gradcheck(lambda *own: function(A, *own), small, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda *own: function(A, *own), small, fast_mode=True)


def test_compiled_and_of_the_matrix_too() -> None:
    function, given = CASES["graph attention"]
    values = ns.from_torch(matrix(), ns.CSR)
    own = values.values.clone().requires_grad_()
    dense = matrix().requires_grad_()
    upstream = torch.randn(N, H, 4, dtype=torch.float64)
    found = torch.autograd.grad(function(values.with_values(own), *given), (own, *given), upstream)
    expected = torch.autograd.grad(function(dense, *given), (dense, *given), upstream)
    torch.testing.assert_close(found[0], expected[0][matrix() != 0])
    torch.testing.assert_close(found[1:], expected[1:])


def test_no_entry_is_kept_for_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    n, width = 40, 10
    A, own = ns.nn.patterns.sliding_window(n, width), [drawn(1, n, 3).float().detach().requires_grad_() for _ in range(3)]
    with uncompiled(), torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
        ns.evaluate(ATTENTION, A=A, Q=own[0], K=own[1], V=own[2])
    assert sum(saved) == 3 * n * 3 + A.nnz + 2 * n  # operands, and two numbers of each row: the largest score, and the sum
    assert max(saved) == A.nnz  # the pattern's values, which the caller has


def test_rows_of_dense_tensors_are_stored_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real = fused_gradients.adjoint_of
    monkeypatch.setattr(fused_gradients, "adjoint_of", lambda *given: (asked.append(real(*given)), asked[-1])[1])
    X = drawn(M, 3)
    with uncompiled():
        made = ns.evaluate("D[i,k] = relu(A[i,j] * X[j,k] + b[k])", A=ns.from_torch(matrix(), ns.CSR), X=X, b=torch.ones(3).double())
        (found,) = torch.autograd.grad(made.sum(), X)
    expected = torch.autograd.grad(torch.relu(matrix() @ X + 1).sum(), X)[0]
    assert asked == [None]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("names", [("every_l", "l", "E"), ("m", "l", "grad_S"), ("m_value", "l_row", "S_row"), ("m_returned", "m", "x")])
def test_names_do_not_collide(names: tuple[str, str, str]) -> None:
    largest, total, exponentials = names
    text = ATTENTION.replace("m[", f"{largest}[").replace("l[", f"{total}[").replace("E[", f"{exponentials}[")
    given = CASES["attention"][1]
    A = ns.from_torch(matrix(), ns.CSR)
    with uncompiled():
        found = torch.autograd.grad(ns.evaluate(text, A=A, Q=given[0], K=given[1], V=given[2]).square().sum(), given)
        expected = torch.autograd.grad(attention(A, *given).square().sum(), given)
    torch.testing.assert_close(found, expected)
