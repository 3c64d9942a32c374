"""Gradients of einsums whose terms are joined otherwise than by adding them up."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
import torch

import numscorch as ns

FORMATS = (None, ns.CSR, ns.CSC, ns.COO(2))
PAIRS = [pair for pair in product(FORMATS, repeat=2) if pair != (None, None)]


@pytest.fixture(autouse=True)
def unjitted(plain: pytest.MonkeyPatch) -> None:
    """Kernels run as Python here."""


class Leaf:
    """A tensor with explicit zeros and ties, stored in a format, dense for None; and the same one dense, with what is stored."""

    def __init__(self, rows: int, columns: int, format: ns.Format | None, made: torch.Generator):
        full = torch.randint(-2, 3, (rows, columns), generator=made).double()
        self.stored = torch.rand(rows, columns, generator=made) < (0.5 if format else 2)
        self.full, self.format = full.clone().requires_grad_(), format
        self.values = (full[self.stored] if format else full).clone().requires_grad_()
        listed = ns.from_coo(self.stored.nonzero().T, self.values, full.shape, ns.COO(2)) if format else self.values
        self.tensor = listed.to(format) if format else listed

    def gradients(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        theirs = self.full.grad
        return self.values.grad, theirs[self.stored] if self.format and theirs is not None else theirs


@pytest.mark.parametrize("reduce", ["min_plus", "max_plus"])
@pytest.mark.parametrize("formats", PAIRS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_semirings(formats: tuple[ns.Format | None, ns.Format | None], reduce: str, seed: int) -> None:
    """A gradient goes to the shortest paths, and is shared out between equal ones."""
    made = torch.Generator().manual_seed(seed)
    A, B = Leaf(4, 5, formats[0], made), Leaf(5, 3, formats[1], made)
    there = A.stored[:, :, None] & B.stored
    found = ns.einsum("ij,jk->ik", A.tensor, B.tensor, reduce=reduce)
    terms = torch.where(there, A.full[:, :, None] + B.full, inf if reduce == "min_plus" else -inf)
    expected = terms.amin(1) if reduce == "min_plus" else terms.amax(1)
    full = found.to_dense() if isinstance(found, ns.SparseTensor) else found
    weight = torch.randn(4, 3, generator=made, dtype=torch.float64)
    for result in (full, expected):
        torch.where(there.any(1), result * weight, 0.0).nan_to_num().sum().backward()
    for leaf in (A, B):
        ours, theirs = leaf.gradients()
        torch.testing.assert_close(ours, theirs)


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
    """The gradient at a term is the product of the others, of which some, stored or not, are 0."""
    made = torch.Generator().manual_seed(seed)
    full = torch.randint(-2, 4, (3, 3), generator=made).double()
    stored = torch.rand(3, 3, generator=made) < 0.9
    A = ns.from_coo(stored.nonzero().T, full[stored], (3, 3), ns.COO(2)).to(format)
    A.values = A.values.requires_grad_()
    dense = A.to_dense().detach().requires_grad_()
    x = torch.randint(-1, 3, (3,), generator=made).double().requires_grad_()
    y = x.detach().clone().requires_grad_()
    found = ns.einsum(expression, *((A, x) if "," in expression else (A,)), reduce="prod", format="dense")
    expected = PRODUCTS[expression](dense, y)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(expected.shape, generator=made, dtype=torch.float64)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    assert A.grad is not None and dense.grad is not None
    there = ns.ne(A.with_values(torch.ones_like(A.values)), 0).to_dense()
    torch.testing.assert_close(A.grad.to_dense(), dense.grad * there)
    torch.testing.assert_close(x.grad, y.grad)


def test_second_derivatives_of_products() -> None:
    values = torch.tensor([2.0, -3.0, 4.0, 5.0], dtype=torch.float64, requires_grad=True)

    def function(values: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = ns.prod(ns.from_coo([[0, 0, 1, 1], [0, 1, 0, 1]], values, (2, 2), ns.CSR), 1)
        return product

    assert torch.autograd.gradcheck(function, values) and torch.autograd.gradgradcheck(function, values)


def test_a_product_takes_no_dense_tensor() -> None:
    A = ns.from_torch(torch.eye(3))
    A.values = A.values.requires_grad_()
    with ns.strict():
        ns.prod(A, 1).sum().backward()
    statement = ns.evaluate("y[i] *= A[i,j] + x[j]", A=A, x=torch.ones(3))
    torch.testing.assert_close(statement, (A.to_dense() + 1).prod(1))
