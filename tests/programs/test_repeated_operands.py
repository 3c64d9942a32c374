"""Statements that read one tensor twice."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns


@pytest.mark.parametrize("statement", ["A[i,j] * B[i,j] + A[i,j]", "A[i,j] + A[i,j]", "relu(A[i,j]) * A[i,j]"])
@pytest.mark.parametrize(
    "fmt", ["(i, j) -> (j // 2: dense, i // 2: compressed, j % 2: dense, i % 2: dense)", ns.DIA, ns.BCSR(2, 2), ns.CSC], ids=str
)
def test_a_tensor_that_is_there_twice_is_one_operand(statement: str, fmt: ns.Format | str, plain: pytest.MonkeyPatch) -> None:
    """Its pattern is kept; two operands that look alike are united instead, which took the order of the blocks for another."""
    D = torch.arange(24.0).reshape(4, 6) * (torch.arange(24).reshape(4, 6) % 3 > 0)
    A, B = ns.from_torch(D, fmt), torch.arange(24.0).reshape(4, 6)
    given = {"A": A, "B": B} if "B" in statement else {"A": A}
    expected = {"A[i,j] * B[i,j] + A[i,j]": D * B + D, "A[i,j] + A[i,j]": 2 * D, "relu(A[i,j]) * A[i,j]": D * D}[statement]
    for wanted in (None, ns.CSR, ns.CSC, ns.DCSR, ns.COO(2), "dense"):
        found = ns.evaluate(f"C[i,j] = {statement}", format=wanted, **given)
        assert torch.equal(found.to_dense() if isinstance(found, ns.SparseTensor) else found, expected)
    assert ns.evaluate(f"C[i,j] = {statement}", **given).pattern is A.pattern
