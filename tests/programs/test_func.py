"""torch.func transforms and second derivatives."""

from __future__ import annotations

import pytest
import torch
from dense_values import as_dense
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacrev, vmap

import numscorch as ns

FORMATS = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 2), ns.ELL, ns.DIA, ns.Format("(i, j) -> (i: dense, j: bitmap)"))
D = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
D = D * (torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) < 0.5)
X, B = torch.randn(4, 3, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)


@pytest.fixture
def A(interpreted: None) -> ns.SparseTensor:
    return ns.from_torch(D, ns.CSR)


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("expr", ["ij,jk->ik", "ij,jk->", "ij,ij->ij"])
def test_first_and_second_derivatives(expr: str, format: ns.Format, interpreted: None) -> None:
    A = ns.from_torch(D, format)
    other = X if "k" in expr else D + 1

    def call(values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        result = ns.einsum(expr, A.with_values(values), dense)
        return as_dense(result)

    operands = (A.values.clone().requires_grad_(), other.clone().requires_grad_())
    assert gradcheck(call, operands)
    assert gradgradcheck(call, operands)


@pytest.mark.parametrize(
    "text", ["relu(A[i,j] + B[i,j])", "A[i,j] / x[j]", "exp(A[i,j]) * x[j]", "sigmoid(A[i,j] * x[j])", "gelu(A[i,j]) + tanh(B[i,j])"]
)
def test_derivatives_of_statements(text: str, A: ns.SparseTensor) -> None:
    other = ns.from_torch(torch.roll(D, 1, 0), ns.CSC)
    names = [name for name in "ABx" if f"{name}[" in text]
    leaves = {"A": A.values, "B": other.values, "x": X[:, 0] + 3}

    def call(*args: torch.Tensor) -> torch.Tensor:
        from_values = {"A": A.with_values, "B": other.with_values, "x": lambda x: x}
        result = ns.evaluate(f"R[i,j] = {text}", **{name: from_values[name](arg) for name, arg in zip(names, args, strict=True)})
        return as_dense(result)

    operands = tuple(leaves[name].clone().requires_grad_() for name in names)
    assert gradcheck(call, operands)
    assert gradgradcheck(call, operands)


def test_complex_gradients_are_torchs(interpreted: None) -> None:
    full = torch.complex(D, D.flip(0) * (D != 0))
    A = ns.from_torch(full, ns.CSR)
    values, dense = A.values.clone().requires_grad_(), full.clone().requires_grad_()
    x = torch.complex(X, X.flip(0))
    (A.with_values(values) @ x).abs().square().sum().backward()
    (dense @ x).abs().square().sum().backward()
    torch.testing.assert_close(A.with_values(values.grad).to_dense(), dense.grad * (D != 0))


def test_grad(A: ns.SparseTensor) -> None:
    gradient = grad(lambda x: (A @ x).square().sum())(X)
    torch.testing.assert_close(gradient, grad(lambda x: (D @ x).square().sum())(X))
    gradient = grad(lambda values: (A.with_values(values) @ X).square().sum())(A.values)
    torch.testing.assert_close(A.with_values(gradient).to_dense(), grad(lambda full: (full @ X).square().sum())(D) * (D != 0))
    tree = grad(lambda A: (A @ X).square().sum())(A)  # torch.func treats A as a tree of tensors
    assert torch.equal(tree.values, gradient)


def test_vmap(A: ns.SparseTensor) -> None:
    torch.testing.assert_close(vmap(lambda b: A @ b)(B), B @ D.t())
    both = torch.stack([A.values, 2 * A.values])
    torch.testing.assert_close(vmap(lambda values: A.with_values(values) @ X)(both), torch.stack([D @ X, 2 * D @ X]))
    torch.testing.assert_close(vmap(grad(lambda b: (A @ b).square().sum()))(B), 2 * B @ D.t() @ D)
    torch.testing.assert_close(jacrev(lambda b: A @ b)(B[0]), D)


def test_vmap_over_an_empty_batch(A: ns.SparseTensor) -> None:
    empty = A.values.new_ones(0, len(A.values))
    assert vmap(lambda b: A @ b)(B[:0]).shape == (0, A.shape[0])
    assert vmap(lambda values: A.with_values(values) @ X)(empty).shape == (0, A.shape[0], X.shape[1])
    assert vmap(lambda values: torch.softmax(A.with_values(values), 1).values)(empty).shape == empty.shape
    assert vmap(lambda values: A.with_values(values).sum(1))(empty).shape == (0, A.shape[0])


@pytest.mark.parametrize("layout", ["to_sparse_csr", "to_sparse_coo"])
def test_native_leaves_have_gradients_of_their_own_layout(layout: str, interpreted: None) -> None:
    native = getattr(D, layout)().requires_grad_()
    ns.einsum("ij,jk->ik", native, X).square().sum().backward()
    assert native.grad.layout is native.layout
    torch.testing.assert_close(native.grad.to_dense(), grad(lambda full: (full @ X).square().sum())(D) * (D != 0))
