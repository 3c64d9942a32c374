"""Refused requests: data types, masks, texts, sizes, and results larger than memory or an index type."""

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
q = -torch.diag(torch.arange(1.0, 7.0)).double()
A: Any  # torch's stubs know only torch's tensors
A, Q, EMPTY = ns.from_torch(a, ns.CSR), ns.from_torch(q, ns.CSR), ns.from_torch(a * 0, ns.CSR)
COMPLEX: Any = ns.from_torch(a + 0j)
NOTHING: Any = None
WHOLE = ns.from_torch(torch.tensor([3, 0, 5], dtype=torch.int32))
HUGE = ns.from_coo([[0, 5], [2**39, 1]], [1.0, 2.0], (2**40, 2**40))
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a number that is too large": (lambda: WHOLE * 2**40, ns.UnsupportedError, "does not fit torch.int32"),
    "the mean of integers": (lambda: ns.mean(WHOLE), ns.UnsupportedError, "the mean of torch.int32 values"),
    "the largest of none": (lambda: ns.amax(ns.from_torch(torch.ones(0, 3), ns.CSR), 0), ns.SizeError, "of zero entries"),
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
def test_padding_is_refused_before_it_is_allocated(level: str, plain: pytest.MonkeyPatch) -> None:
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
def test_requests_are_refused(name: str, plain: None) -> None:
    call, kind, text = REFUSED[name]
    with pytest.raises(kind) as error:
        call()
    assert text in str(error.value)
