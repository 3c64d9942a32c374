"""Results in corner cases: zero factors, diagonals, unordered levels, conjugates, infinities, semirings, small integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dense_values import as_dense

import numscorch as ns

torch.manual_seed(0)
a = torch.randn(6, 5).double() * (torch.rand(6, 5) < 0.4)
b, c = torch.randn(6).double(), torch.randn(6).double()
q = -torch.diag(torch.arange(1.0, 7.0)).double()
A: Any  # torch's stubs know only torch's tensors
A, Q, EMPTY = ns.from_torch(a, ns.CSR), ns.from_torch(q, ns.CSR), ns.from_torch(a * 0, ns.CSR)
INFINITE: Any = ns.from_torch(torch.full((2, 2), -torch.inf).double())
square = (torch.rand(12, 12) < 0.5) * torch.randn(12, 12).double()
SQUARE = ns.from_torch(square, ns.CSR)
HASHED = ns.from_torch(square, ns.Format("(i, j) -> (i: dense, j: hash)"))
HASHED_COLUMNS = ns.from_torch(square, ns.Format("(i, j) -> (j: compressed, i: hash)"))
z = torch.randn(5, 8, dtype=torch.complex128)
RIGHT: dict[str, tuple[Callable[[], Any], Callable[[], torch.Tensor]]] = {
    "an operand that is multiplied by 0 isn't read": (lambda: ns.evaluate("y[i,j] = A[i,j] + 0 * B[i,j]", A=A, B=EMPTY), lambda: a),
    "a result that is 0 everywhere is written": (lambda: ns.evaluate("y[i,j] = 0 * A[i,j]", A=A, format="dense"), lambda: a * 0),
    "a chain of factors": (
        lambda: ns.evaluate("y[i] = exp(A[i,j]) * b[i] * C[i,j]", A=A, b=b, C=A),
        lambda: (a.exp() * b[:, None] * a).sum(1),
    ),
    "a divisor inside a chain": (
        lambda: ns.evaluate("y[i] = b[i] / (abs(B[i,j]) + 1) * C[i,j]", b=b, B=A, C=A),
        lambda: (b[:, None] / (a.abs() + 1) * a).sum(1),
    ),
    "a sum inside a product": (lambda: ns.evaluate("y[i] = (A[i,k] + b[i]) * c[i]", A=A, b=b, c=c), lambda: (a.sum(1) + b) * c),
    "the largest of a diagonal": (lambda: ns.einsum("ii->i", Q, reduce="max", format="dense"), q.diagonal),
    "the product of a diagonal": (lambda: ns.einsum("ii->", Q, reduce="prod"), lambda: q.diagonal().prod()),
    "the largest of a diagonal, as a statement": (lambda: ns.evaluate("y max= A[i,i]", A=Q), lambda: q.diagonal().max()),
    "a diagonal whose rows come in no order": (lambda: ns.einsum("ii->", HASHED), square.trace),
    "an unordered level beside one that is stored otherwise first": (
        lambda: ns.einsum("ij,ij->", HASHED_COLUMNS, SQUARE),
        lambda: (square * square).sum(),
    ),
    "a pattern that is kept, unordered, beside another sparse tensor": (
        lambda: ns.einsum("ij,jk->ij", HASHED, SQUARE),
        lambda: square * square.sum(1),
    ),
    "a kept pattern whose blocks are unordered and reach over the edge": (
        lambda: torch.relu(A.to(ns.Format("(i, j) -> (i // 4: dense, j: dense, i % 4: compressed(ordered=False))"))),
        lambda: a.relu(),
    ),
    "strided conjugates": (
        lambda: ns.einsum("ij,jk->ik", ns.from_torch(a + 0j, ns.CSR), z[:, ::2].conj()),
        lambda: (a + 0j) @ z[:, ::2].conj(),
    ),
    "the mean with a broadcast operand": (
        lambda: ns.einsum("ij,jk->ik", A, torch.ones(1, 4).double(), reduce="mean"),
        lambda: a.mean(1, keepdim=True).expand(6, 4),
    ),
    "a function that is NaN where nothing is stored": (lambda: ns.evaluate("y[i,j] = sqrt(A[i,j] - 1)", A=A), lambda: (a - 1).sqrt()),
    "relu of -inf": (lambda: torch.relu(INFINITE), lambda: torch.zeros(2, 2).double()),
    "out for a sparse result": (lambda: ns.einsum("ij,kj->ik", A, A, out=torch.empty(6, 6).double()), lambda: a @ a.T),
}


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", RIGHT)
def test_results_equal_dense_references(name: str, jit: bool, request: pytest.FixtureRequest) -> None:
    if not jit:
        request.getfixturevalue("plain")
    compute, reference = RIGHT[name]
    result = compute()
    dense = as_dense(result)
    torch.testing.assert_close(dense, reference(), equal_nan=True)


@pytest.mark.parametrize("fmt", [ns.CSR, ns.DCSR, ns.COO(2)], ids=lambda f: f.name)
def test_a_masked_semiring_fills_with_its_zero(fmt: ns.Format, interpreted: None) -> None:
    mask = ns.from_torch(torch.ones(6, 6))
    infinite = torch.where(a != 0, a, torch.inf)
    result = ns.einsum("ij,kj->ik", A.to(fmt), A.to(fmt), reduce="min_plus", mask=mask)
    torch.testing.assert_close(result.values.reshape(6, 6), (infinite[:, None] + infinite[None]).amin(2))


def test_small_integers_do_not_overflow(interpreted: None) -> None:
    ones = ns.from_torch(torch.full((2, 3), 100, dtype=torch.int8))
    assert ns.sum(ones).item() == 600
    assert ns.sum(ones, 1).dtype == torch.int64
