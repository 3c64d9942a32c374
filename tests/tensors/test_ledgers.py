"""The ledger records hidden memory use with the line that caused it; strict mode refuses implicit densifications."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.tensors import ledgers

D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
X = torch.ones(3, 4)


@pytest.fixture(autouse=True)
def no_previous_warnings(plain: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run as Python, and the set of past warnings is empty."""
    plain.setattr(ledgers, "_warned", set())
    yield


def listed(call: Callable[[], Any]) -> list[tuple[str, str, int]]:
    with warnings.catch_warnings(), ns.ledger() as led:
        warnings.simplefilter("ignore", ns.DenseFallbackWarning)
        call()
    return [(entry.kind, entry.what, entry.bytes) for entry in led]


def csr() -> ns.SparseTensor:
    return ns.from_torch(D, ns.CSR)


def test_calls_without_copies_are_not_recorded() -> None:
    A = csr()
    assert listed(lambda: (A @ X, A * 2, A.t(), A + A, torch.relu(A), A.sum(1), A.to(ns.CSR), A.to_torch())) == []


def test_requested_and_implicit_densifications() -> None:
    A = csr()
    with pytest.warns(ns.DenseFallbackWarning, match="exp makes a tensor CSR"), ns.ledger() as led:
        A.to_dense()
        torch.exp(A)
    assert [(e.kind, e.what, e.bytes, e.asked) for e in led] == [
        ("densification", "CSR (2, 3)", 24, True),
        ("densification", "CSR (2, 3) by exp", 24, False),
    ]
    assert led.bytes == 48 and len(led.of("densification")) == 2


def test_the_size_of_a_dense_result_is_that_of_its_values() -> None:
    A = csr()
    with pytest.warns(ns.DenseFallbackWarning, match="where"), ns.ledger() as led:
        torch.where(A != 0, A, 2.0)
    assert [entry.bytes for entry in led.of("densification")] == [24]


def test_transpositions_and_conversions() -> None:
    A = csr()
    assert listed(lambda: A.to(ns.CSC)) == [
        ("transposition", "CSR to CSC (2, 3)", 4 * 4 + 3 * 4),
        ("copy", "values in the order of CSC (2, 3)", 12),
    ]
    assert listed(lambda: A.to(ns.CSC)) == [("copy", "values in the order of CSC (2, 3)", 12)], "the pattern is remembered"
    assert [kind for kind, _, _ in listed(lambda: A.to(ns.BCSR(2, 1)))] == ["conversion", "copy"]


def test_operands_converted_for_a_kernel() -> None:
    A, B = ns.from_torch(D, ns.CSC), csr()
    kinds = [kind for kind, _, _ in listed(lambda: ns.einsum("ij,ij->ij", A, B, format=ns.CSR))]
    assert kinds and set(kinds) <= {"transposition", "copy"}


def test_packed_tensors() -> None:
    assert listed(lambda: ns.from_torch(D, ns.CSR)) == [("conversion", "a strided tensor to CSR (2, 3)", 12 + 12 + 12)]
    unsorted = torch.sparse_coo_tensor([[1, 0, 1], [0, 1, 0]], [1.0, 2.0, 3.0], (2, 3))
    assert ("copy", "a coalesced COO tensor (2, 3)", 2 * 4 + 2 * 2 * 8) in listed(lambda: ns.from_torch(unsorted))
    assert listed(lambda: ns.from_coo([[0, 1], [1, 0]], torch.ones(2), (2, 3), ns.CSR)) == [
        ("conversion", "a list of entries to CSR (2, 3)", 8 + 12 + 8)
    ]


def test_widened_values_are_copies() -> None:
    A = csr().to(torch.bfloat16)
    assert ("copy", "torch.bfloat16 values of (2, 3) as torch.float32", 12) in listed(lambda: A @ X.to(torch.bfloat16))


def test_lines_of_conversions_for_a_kernel_are_the_callers() -> None:
    A, B = ns.from_torch(D, ns.CSC), csr()
    with ns.ledger() as led:
        ns.einsum("ij,ij->ij", A, B, format=ns.CSR)
    assert len(led) and all("ns.einsum(" in entry.line for entry in led), led


def test_the_line_of_a_call_and_of_backward() -> None:
    values = csr().values.clone().requires_grad_()
    A = ns.from_coo([[0, 1, 1], [1, 0, 2]], values, (2, 3), ns.CSC)
    loss = (torch.relu(A) @ X).sum()
    with ns.ledger() as led:
        A.to_dense()
        loss.backward()
    assert led[0].line.startswith("test_ledgers.py:") and led[0].line.endswith("A.to_dense()"), led[0].line
    for entry in led[1:]:
        assert entry.during == "backward" and "loss.backward()" in entry.line
    assert "CSC (2, 3)" in str(led) and "entries" in str(led)


@pytest.mark.parametrize(
    "call",
    [torch.exp, lambda A: A + 1, lambda A: A == 0, lambda A: torch.clamp(A, 1, 2), lambda A: 2.0**A, torch.sigmoid],
    ids=["exp", "A + 1", "A == 0", "clamp", "2 ** A", "sigmoid"],
)
def test_strict(call: Callable[[ns.SparseTensor], Any]) -> None:
    A = csr()
    with ns.strict():
        with pytest.raises(ns.UnsupportedError, match="dense"):
            call(A)
        A.to_dense(), A @ X, A * 2, A + D  # requested, or with a dense operand
        with ns.strict(False), pytest.warns(ns.DenseFallbackWarning):
            call(A)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(A)  # the warning appears once


def test_ledgers_nest_and_record_one_thread() -> None:
    A, seen = csr(), []

    def other() -> None:
        A.to_dense()
        with ns.ledger() as inside:
            A.to_dense()
        seen.append(len(inside))

    with ns.ledger() as outer:
        with ns.ledger() as inner:
            A.to_dense()
        A.to_dense()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    A.to_dense()
    assert (len(outer), len(inner), seen) == (2, 1, [1])
