"""Statements that read one tensor twice."""

from __future__ import annotations

import pytest
import torch
from dense_values import as_dense

import numscorch as ns


@pytest.mark.parametrize("statement", ["A[i,j] * B[i,j] + A[i,j]", "A[i,j] + A[i,j]", "relu(A[i,j]) * A[i,j]"])
@pytest.mark.parametrize(
    "fmt", ["(i, j) -> (j // 2: dense, i // 2: compressed, j % 2: dense, i % 2: dense)", ns.DIA, ns.BCSR(2, 2), ns.CSC], ids=str
)
def test_a_repeated_tensor_is_one_operand(statement: str, fmt: ns.Format | str, interpreted: None) -> None:
    """The pattern is kept. Once, two similar operands were merged instead, in a wrong order of blocks."""
    D = torch.arange(24.0).reshape(4, 6) * (torch.arange(24).reshape(4, 6) % 3 > 0)
    A, B = ns.from_torch(D, fmt), torch.arange(24.0).reshape(4, 6)
    named = {"A": A, "B": B} if "B" in statement else {"A": A}
    expected = {"A[i,j] * B[i,j] + A[i,j]": D * B + D, "A[i,j] + A[i,j]": 2 * D, "relu(A[i,j]) * A[i,j]": D * D}[statement]
    for requested in (None, ns.CSR, ns.CSC, ns.DCSR, ns.COO(2), "dense"):
        result = ns.evaluate(f"C[i,j] = {statement}", format=requested, **named)
        assert torch.equal(as_dense(result), expected)
    assert ns.evaluate(f"C[i,j] = {statement}", **named).pattern is A.pattern
