"""What reviews found, kept by name: each was wrong, read foreign memory, or ended in another library's error."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.runtime.result_arrays import ResultLayout

torch.manual_seed(0)
a = torch.randn(6, 5).double() * (torch.rand(6, 5) < 0.4)
b, c = torch.randn(6).double(), torch.randn(6).double()
q = -torch.diag(torch.arange(1.0, 7.0)).double()
A: Any  # torch's stubs know no tensors but its own
A, Q, EMPTY = ns.from_torch(a, ns.CSR), ns.from_torch(q, ns.CSR), ns.from_torch(a * 0, ns.CSR)
INFINITE: Any = ns.from_torch(torch.full((2, 2), -torch.inf).double())
square = (torch.rand(12, 12) < 0.5) * torch.randn(12, 12).double()
SQUARE = ns.from_torch(square, ns.CSR)
HASHED = ns.from_torch(square, ns.Format("(i, j) -> (i: dense, j: hash)"))
HASHED_COLUMNS = ns.from_torch(square, ns.Format("(i, j) -> (j: compressed, i: hash)"))
COMPLEX: Any = ns.from_torch(a + 0j)
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
def test_right(name: str, jit: bool, request: pytest.FixtureRequest) -> None:
    if not jit:
        request.getfixturevalue("plain")
    ours, theirs = RIGHT[name]
    made = ours()
    dense = made.to_dense() if isinstance(made, ns.SparseTensor) else made
    torch.testing.assert_close(dense, theirs(), equal_nan=True)


@pytest.mark.parametrize("fmt", [ns.CSR, ns.DCSR, ns.COO(2)], ids=lambda f: f.name)
def test_a_masked_semiring_has_its_own_zero(fmt: ns.Format, plain: None) -> None:
    mask = ns.from_torch(torch.ones(6, 6))
    infinite = torch.where(a != 0, a, torch.inf)
    made = ns.einsum("ij,kj->ik", A.to(fmt), A.to(fmt), reduce="min_plus", mask=mask)
    torch.testing.assert_close(made.values.reshape(6, 6), (infinite[:, None] + infinite[None]).amin(2))


def test_small_integers_do_not_overflow(plain: None) -> None:
    ones = ns.from_torch(torch.full((2, 3), 100, dtype=torch.int8))
    assert ns.sum(ones).item() == 600
    assert ns.sum(ones, 1).dtype == torch.int64


NOTHING: Any = None
WHOLE = ns.from_torch(torch.tensor([3, 0, 5], dtype=torch.int32))
HUGE = ns.from_coo([[0, 5], [2**39, 1]], [1.0, 2.0], (2**40, 2**40))
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a number that is too large": (lambda: WHOLE * 2**40, ns.UnsupportedError, "does not fit torch.int32"),
    "the mean of integers": (lambda: ns.mean(WHOLE), ns.UnsupportedError, "the mean of torch.int32 values"),
    "the largest of none": (lambda: ns.amax(ns.from_torch(torch.ones(0, 3), ns.CSR), 0), ns.SizeError, "of no entries"),
    "no tensor": (lambda: ns.evaluate("y = 2 * 3"), ns.ExpressionError, "the right side has no tensor"),
    "no text": (lambda: ns.evaluate(NOTHING, A=A), ns.ExpressionError, "not NoneType"),
    "a mask of another shape": (
        lambda: ns.einsum("ij,kj->ik", A, A, mask=A),
        ns.SizeError,
        "mask has shape (6, 5), but the result has (6, 6)",
    ),
    "a mask that is no tensor": (
        lambda: ns.einsum("ij,kj->ik", A, A, mask=[[1]]),
        ns.UnsupportedError,
        "mask must be a sparse tensor, not list",
    ),
    "a number beside a mask": (
        lambda: ns.einsum("ij,->ij", A, 2.0, mask=A),
        ns.UnsupportedError,
        "not float: wrap it with torch.as_tensor",
    ),
    "a number to reduce": (lambda: ns.einsum("ij,->ij", A, 2.0, reduce="max"), ns.UnsupportedError, "not float: wrap it with"),
    "a reduction that is no text": (lambda: ns.einsum("ij->i", A, reduce=["max"]), ns.ExpressionError, "unknown reduction ['max']"),
    "functions of complex numbers": (
        lambda: ns.evaluate("R[i,j] = exp(A[i,j])", A=COMPLEX),
        ns.UnsupportedError,
        "exp of complex128 values",
    ),
    "a sparse out": (lambda: ns.einsum("ij,kj->ik", A, A, out=A), ns.UnsupportedError, "out can't hold a sparse result"),
    "sizes in a statement": (lambda: ns.evaluate("D[i,j] = A[i,j] + Q[i,j]", A=A, Q=Q), ns.SizeError, "but 6 in Q\n  D[i,j] = A"),
    "a result too large to count": (lambda: ns.einsum("ij,jk->ik", HUGE, HUGE, format="dense"), ns.SizeError, "but the limit is"),
    "rows too many for a pos array": (
        lambda: HUGE.to(ns.BCSR(2, 2)),
        ns.SizeError,
        "level 1 (dense) of BCSR(2, 2): storing 549755813888 positions takes",
    ),
    "diagonals too long": (lambda: HUGE.to(ns.DIA), ns.SizeError, "level 2 (range) of DIA: storing 2199023255552 positions takes"),
    "a bitmap too large": (lambda: HUGE.to("(i, j) -> (i: compressed, j: bitmap)"), ns.SizeError, "use compressed levels"),
    "dense levels too large": (lambda: HUGE.to("dd"), ns.SizeError, "storing 1099511627776 positions takes"),
    "rows too many for CSR": (
        lambda: ns.einsum("ij,jk->ik", HUGE, HUGE, format=ns.CSR),
        ns.SizeError,
        "(i, j) -> (i: dense, j: compressed)     use compressed levels, which store just the entries, as in ns.DCSR",
    ),
    "rows too many to convert to": (lambda: HUGE.to(ns.CSR), ns.SizeError, "as in ns.DCSR"),
    "a dense result of three dimensions": (
        lambda: ns.einsum("ij,k->ijk", HUGE, torch.ones(8), format="dense"),
        ns.SizeError,
        "request a sparse result, as with format=ns.CSF(3)",
    ),
    "more entries than int32 counts": (
        lambda: ResultLayout(ns.CSR, (2, 3), np.float32, "int32").allocated(np.array([2**31])),
        ns.SizeError,
        "the result has 2147483648 entries, more than int32 can count",
    ),
    "in place": (lambda: A.clone().add_(1.0), ns.UnsupportedError, "add_ of a dense tensor or a number would store every entry"),
}


@pytest.mark.parametrize("level", ["fixed", "fixed(1000)", "bitmap"])
def test_padding_is_refused_before_it_is_made(level: str, plain: pytest.MonkeyPatch) -> None:
    plain.setattr("numscorch.machine.memory.ASK_FROM", 100)
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "40000000")
    row = np.stack([np.zeros(1000, dtype=np.int64), np.arange(1000)])
    tracemalloc.start()
    try:
        with pytest.raises(ns.SizeError, match="storing 10001000 positions takes"):
            ns.from_coo(row, torch.ones(1000), (10_001, 1000), f"(i, j) -> (i: dense, j: {level})")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, plain: None) -> None:
    call, kind, text = REFUSED[name]
    with pytest.raises(kind) as error:
        call()
    assert text in str(error.value)
