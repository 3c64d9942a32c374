"""Gradients of einsums with reductions other than sums."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
import torch
from dense_values import as_dense

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")

FORMATS = (None, ns.CSR, ns.CSC, ns.COO(2))
PAIRS = [pair for pair in product(FORMATS, repeat=2) if pair != (None, None)]


class Leaf:
    """A tensor with explicit zeros and ties, in a format or dense (None), and its dense copy with the mask of stored entries."""

    def __init__(self, rows: int, columns: int, format: ns.Format | None, generator: torch.Generator):
        full = torch.randint(-2, 3, (rows, columns), generator=generator).double()
        self.stored = torch.rand(rows, columns, generator=generator) < (0.5 if format else 2)
        self.full, self.format = full.clone().requires_grad_(), format
        self.values = (full[self.stored] if format else full).clone().requires_grad_()
        tensor = ns.from_coo(self.stored.nonzero().T, self.values, full.shape, ns.COO(2)) if format else self.values
        self.tensor = tensor.to(format) if format else tensor

    def gradients(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        full_gradient = self.full.grad
        return self.values.grad, full_gradient[self.stored] if self.format and full_gradient is not None else full_gradient


@pytest.mark.parametrize("reduce", ["min_plus", "max_plus"])
@pytest.mark.parametrize("formats", PAIRS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_semirings(formats: tuple[ns.Format | None, ns.Format | None], reduce: str, seed: int) -> None:
    """The gradient flows to the shortest paths, and is divided between equal ones."""
    generator = torch.Generator().manual_seed(seed)
    A, B = Leaf(4, 5, formats[0], generator), Leaf(5, 3, formats[1], generator)
    stored = A.stored[:, :, None] & B.stored
    output = ns.einsum("ij,jk->ik", A.tensor, B.tensor, reduce=reduce)
    terms = torch.where(stored, A.full[:, :, None] + B.full, inf if reduce == "min_plus" else -inf)
    expected = terms.amin(1) if reduce == "min_plus" else terms.amax(1)
    full = as_dense(output)
    weight = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    for result in (full, expected):
        torch.where(stored.any(1), result * weight, 0.0).nan_to_num().sum().backward()
    for leaf in (A, B):
        gradient, expected_gradient = leaf.gradients()
        torch.testing.assert_close(gradient, expected_gradient)


PRODUCTS = {
    "ij->i": lambda A, x: A.prod(1),
    "ij->": lambda A, x: A.prod(),
    "ij,j->i": lambda A, x: (A * x).prod(1),
    "ij,j->j": lambda A, x: (A * x).prod(0),
}


@pytest.mark.parametrize("expression", list(PRODUCTS))
@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(2, 2)], ids=lambda f: f.name)
@pytest.mark.parametrize("seed", range(3))
def test_products(expression: str, format: ns.Format, seed: int) -> None:
    """The gradient at a term is the product of the other terms, some of which are 0, stored or not."""
    generator = torch.Generator().manual_seed(seed)
    full = torch.randint(-2, 4, (3, 3), generator=generator).double()
    stored = torch.rand(3, 3, generator=generator) < 0.9
    A = ns.from_coo(stored.nonzero().T, full[stored], (3, 3), ns.COO(2)).to(format)
    A.values = A.values.requires_grad_()
    dense = A.to_dense().detach().requires_grad_()
    x = torch.randint(-1, 3, (3,), generator=generator).double().requires_grad_()
    y = x.detach().clone().requires_grad_()
    result = ns.einsum(expression, *((A, x) if "," in expression else (A,)), reduce="prod", format="dense")
    expected = PRODUCTS[expression](dense, y)
    torch.testing.assert_close(result, expected)
    weight = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    (result * weight).sum().backward()
    (expected * weight).sum().backward()
    assert A.grad is not None and dense.grad is not None
    inside = ns.ne(A.with_values(torch.ones_like(A.values)), 0).to_dense()
    torch.testing.assert_close(A.grad.to_dense(), dense.grad * inside)
    torch.testing.assert_close(x.grad, y.grad)


def test_second_derivatives_of_products() -> None:
    values = torch.tensor([2.0, -3.0, 4.0, 5.0], dtype=torch.float64, requires_grad=True)

    def function(values: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = ns.prod(ns.from_coo([[0, 0, 1, 1], [0, 1, 0, 1]], values, (2, 2), ns.CSR), 1)
        return product

    assert torch.autograd.gradcheck(function, values) and torch.autograd.gradgradcheck(function, values)


def test_gradients_of_a_product_make_nothing_dense() -> None:
    A = ns.from_torch(torch.eye(3))
    A.values = A.values.requires_grad_()
    with ns.strict():
        ns.prod(A, 1).sum().backward()
    statement = ns.evaluate("y[i] *= A[i,j] + x[j]", A=A, x=torch.ones(3))
    torch.testing.assert_close(statement, (A.to_dense() + 1).prod(1))


@pytest.mark.parametrize("reduce", ["any", "all", "or_and"])
@pytest.mark.parametrize("operands", [(ns.CSR, None), (ns.CSR, ns.CSR), (None, None)], ids=str)
def test_results_of_tests_do_not_require_grad(operands: tuple[ns.Format | None, ns.Format | None], reduce: str) -> None:
    generator = torch.Generator().manual_seed(0)
    leaves = [Leaf(5, 5, format, generator) for format in operands]
    result = ns.einsum("ij,jk->ik", *[leaf.tensor for leaf in leaves], reduce=reduce)
    assert not result.requires_grad
    expected = ns.einsum("ij,jk->ik", *[as_dense(leaf.tensor).detach() for leaf in leaves], reduce=reduce)
    assert torch.equal(as_dense(result), expected)
