"""Gradients of fused programs, including second derivatives, equal those of dense torch for each operand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import numscorch as ns
from numscorch.programs import fused_calls
from numscorch.programs.adjoints import Adjoint
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
    values = torch.rand(N, M, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    values[torch.rand(N, M, generator=torch.Generator().manual_seed(2)) < 0.5] = 0
    values[0], values[-1], values[:, 2] = 0, 1.5, 0
    return values


def random_leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def attention(A: ns.SparseTensor | Tensor, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    if isinstance(A, ns.SparseTensor):
        return ns.evaluate(ATTENTION, A=A, Q=Q, K=K, V=V)
    scores = (0.5 * Q @ K.mT).masked_fill(A == 0, -torch.inf)
    scores = torch.where((A == 0).all(1, keepdim=True), 0.0, scores)  # rows without entries are masked below
    return (scores.softmax(-1) * (A != 0)) @ V


def graph_attention(A: ns.SparseTensor | Tensor, s: Tensor, t: Tensor, X: Tensor) -> Tensor:
    if isinstance(A, ns.SparseTensor):
        return ns.evaluate(GRAPH_ATTENTION, A=A, s=s, t=t, X=X)
    scores = torch.nn.functional.leaky_relu(s.T[:, None] + t.T[:, :, None], 0.2)  # h, i, j
    weights = A * scores.exp()
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("hij,jhc->ihc", weights / torch.where(total == 0, 1.0, total), X)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "attention": (attention, (random_leaf(H, N, K, seed=3), random_leaf(H, M, K, seed=4), random_leaf(H, M, 5, seed=5))),
    "graph attention": (graph_attention, (random_leaf(M, H, seed=6), random_leaf(N, H, seed=7), random_leaf(M, H, 4, seed=8))),
}


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_dense_torch(name: str, format: ns.Format) -> None:
    function, operands = CASES[name]
    with uncompiled():
        output, expected = function(ns.from_torch(matrix(), format), *operands), function(matrix(), *operands)
        torch.testing.assert_close(output, expected)
        upstream = torch.randn_like(output)
        gradients = torch.autograd.grad(output, operands, upstream)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, operands, upstream))


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients(name: str) -> None:
    function, operands = CASES[name]
    A = ns.from_torch(matrix(), ns.CSR)
    with uncompiled():
        small = [operand[..., :2].detach().requires_grad_() for operand in operands]
        assert torch.autograd.gradcheck(lambda *inputs: function(A, *inputs), small, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda *inputs: function(A, *inputs), small, fast_mode=True)


def test_gradients_of_the_matrix_in_compiled_kernels() -> None:
    function, operands = CASES["graph attention"]
    values = ns.from_torch(matrix(), ns.CSR)
    leaf = values.values.clone().requires_grad_()
    dense = matrix().requires_grad_()
    upstream = torch.randn(N, H, 4, dtype=torch.float64)
    gradients = torch.autograd.grad(function(values.with_values(leaf), *operands), (leaf, *operands), upstream)
    expected = torch.autograd.grad(function(dense, *operands), (dense, *operands), upstream)
    torch.testing.assert_close(gradients[0], expected[0][matrix() != 0])
    torch.testing.assert_close(gradients[1:], expected[1:])


def test_no_entries_are_saved_for_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    n, width = 40, 10
    A, operands = ns.nn.patterns.sliding_window(n, width), [random_leaf(1, n, 3).float().detach().requires_grad_() for _ in range(3)]
    with uncompiled(), torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
        ns.evaluate(ATTENTION, A=A, Q=operands[0], K=operands[1], V=operands[2])
    assert sum(saved) == 3 * n * 3 + A.nnz + 2 * n  # operands, and two numbers per row: the maximum score and the sum
    assert max(saved) == A.nnz  # the values of the pattern, which exist anyway


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_the_gradient_of_a_sparse_softmax_is_one_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream gradient has the pattern of the matrix; the backward kernel computes each exponential once."""
    adjoints: list[Adjoint | None] = []
    adjoint_of = fused_calls.adjoint_of
    monkeypatch.setattr(fused_calls, "adjoint_of", lambda *args: (adjoints.append(adjoint_of(*args)), adjoints[-1])[1])
    A, stored = ns.from_torch(matrix(), ns.CSR), matrix() != 0
    leaf, full = A.values.clone().requires_grad_(), matrix().masked_fill(~stored, -torch.inf)[1:].requires_grad_()  # row 0 is empty

    def function(values: Tensor) -> Tensor:
        return getattr(torch, name)(A.with_values(values), 1).values

    upstream = torch.randn_like(leaf)
    with uncompiled():
        output = function(leaf)
        (gradient,) = torch.autograd.grad(output, leaf, upstream)
        expected = torch.where(stored[1:], getattr(torch, name)(full, 1), 0)
        torch.testing.assert_close(output, expected[stored[1:]])
        torch.testing.assert_close(gradient, torch.autograd.grad(expected[stored[1:]], full, upstream)[0][stored[1:]])
        assert torch.autograd.gradcheck(function, leaf, fast_mode=True) and torch.autograd.gradgradcheck(function, leaf, fast_mode=True)
    assert adjoints[0] is not None
    (run,) = adjoints[0].runs
    assert " ".join(str(value) for value in run.request.read).count("exp(") == 1


def test_the_gradient_of_a_sum_of_functions() -> None:
    """A softmax whose exponentials have no name: their sum does not take the place of an exponential in the derivative."""
    text = """
        S[i,j] = A[i,j] * Q[i,k] * K[j,k]
        s[i] += stored(S[i,j]) * exp(S[i,j])
        P[i,j] = stored(S[i,j]) * exp(S[i,j]) / s[i]
        O[i,d] = P[i,j] * V[j,d]
    """
    A, leaves = ns.from_torch(matrix(), ns.CSR), tuple([random_leaf(n, K, seed=n) for n in (N, M, M + 1)])
    Q, keys, V = leaves[0], leaves[1], leaves[2][:M]
    stored = A.to_dense() != 0
    weights = torch.where(stored, (A.to_dense() * (Q @ keys.T)).exp(), 0)
    expected = (weights[1:] / weights[1:].sum(1, keepdim=True)) @ V  # row 0 is empty
    upstream = torch.randn_like(expected)
    with uncompiled():
        output = ns.evaluate(text, A=A, Q=Q, K=keys, V=V)[1:]
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(torch.autograd.grad(output, leaves, upstream), torch.autograd.grad(expected, leaves, upstream))


def test_several_operands_with_one_pattern() -> None:
    """Each operand gets its gradient, as in the backward pass of a softmax written by hand."""
    text = "s[i] += R[i,j] * G[i,j]; E[i,j] = R[i,j] * (G[i,j] - s[i]); y[i] = E[i,j] * E[i,j]"
    R = ns.from_torch(matrix(), ns.CSR)
    leaves = R.values.clone().requires_grad_(), random_leaf(R.nnz, seed=9)

    def function(r: Tensor, g: Tensor) -> Tensor:
        return ns.evaluate(text, R=R.with_values(r), G=R.with_values(g))

    with uncompiled():
        full = [R.with_values(leaf).to_dense() for leaf in leaves]
        share = full[0] * (full[1] - (full[0] * full[1]).sum(1, keepdim=True))
        expected = torch.autograd.grad((share * share).sum(), leaves)
        torch.testing.assert_close(torch.autograd.grad(function(*leaves).sum(), leaves), expected)
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_rows_of_dense_tensors_are_stored_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    adjoints: list[object] = []
    adjoint_of = fused_calls.adjoint_of
    monkeypatch.setattr(fused_calls, "adjoint_of", lambda *args: (adjoints.append(adjoint_of(*args)), adjoints[-1])[1])
    X = random_leaf(M, 3)
    with uncompiled():
        output = ns.evaluate("D[i,k] = relu(A[i,j] * X[j,k] + b[k])", A=ns.from_torch(matrix(), ns.CSR), X=X, b=torch.ones(3).double())
        (gradient,) = torch.autograd.grad(output.sum(), X)
    expected = torch.autograd.grad(torch.relu(matrix() @ X + 1).sum(), X)[0]
    assert adjoints == [None]
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("names", [("every_l", "l", "E"), ("m", "l", "grad_S"), ("m_value", "l_row", "S_row"), ("m_returned", "m", "x")])
def test_names_do_not_collide(names: tuple[str, str, str]) -> None:
    maximum, total, exponentials = names
    text = ATTENTION.replace("m[", f"{maximum}[").replace("l[", f"{total}[").replace("E[", f"{exponentials}[")
    operands = CASES["attention"][1]
    A = ns.from_torch(matrix(), ns.CSR)
    with uncompiled():
        gradients = torch.autograd.grad(ns.evaluate(text, A=A, Q=operands[0], K=operands[1], V=operands[2]).square().sum(), operands)
        expected = torch.autograd.grad(attention(A, *operands).square().sum(), operands)
    torch.testing.assert_close(gradients, expected)
