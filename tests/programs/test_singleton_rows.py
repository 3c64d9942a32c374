"""Sums over the columns of matrices with one entry in each row, stored as a dense and a singleton level."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.tensors.validate import validate

pytestmark = pytest.mark.usefixtures("interpreted")
STATEMENTS = {
    "P[i,j] * B[j,k]": lambda P, A, B, x: P @ B,
    "maximum(P[i,j], A[i,j]) * B[j,k]": lambda P, A, B, x: torch.maximum(P, A) @ B,
    "relu(P[i,j] + A[i,j]) * B[j,k]": lambda P, A, B, x: (P + A).relu() @ B,
    "(P[i,j] + A[i,j]) * B[j,k]": lambda P, A, B, x: (P + A) @ B,
    "(P[i,j] + x[j]) * B[j,k]": lambda P, A, B, x: (P + x) @ B,
    "exp(P[i,j]) * B[j,k]": lambda P, A, B, x: P.exp() @ B,
    "maximum(P[i,j] * B[j,k], A[i,j] * B[j,k])": lambda P, A, B, x: torch.maximum(P[:, :, None] * B, A[:, :, None] * B).sum(1),
}
FORMATS = [None, ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, "dense"]


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("text", STATEMENTS)
def test_sums_over_the_column_of_the_only_entry(text: str, format: Any) -> None:
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        A, B = (torch.rand(size, generator=generator).mul(3).floor().double() for size in ((4, 5), (5, 3)))
        P = torch.zeros(4, 5, dtype=torch.float64).scatter_(1, torch.randint(5, (4, 1), generator=generator), 1.0)
        x = torch.rand(5, generator=generator, dtype=torch.float64)
        operands = {
            "P": ns.from_torch(P, "(i, j) -> (i: dense, j: singleton)"),
            "A": ns.from_torch(A, ns.CSR),
            "B": ns.from_torch(B, ns.CSR),
        }
        used = {name: operand for name, operand in {**operands, "x": x}.items() if f"{name}[" in text}
        result = ns.evaluate(f"C[i,k] = {text}", format=format, **used)
        if isinstance(result, ns.SparseTensor):
            validate(result.pattern)
        torch.testing.assert_close(as_dense(result), STATEMENTS[text](P, A, B, x))
