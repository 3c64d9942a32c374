"""What a call costs before and after its kernel: a 16 x 16 matrix on one thread."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns

from .conftest import Compare
from .data import Matrix
from .generated import uniform

CALLS = 100
PRODUCTS = {"SpMV": ("ij,j->i", (16,)), "SpMM, k = 16": ("ij,jk->ik", (16, 16))}
BARS: dict[str, dict[str, float]] = {
    "a SparseTensor": {"at_most": 9e-6},
    "torch's CSR, int64": {"above_peer": 0.0},
    "torch's CSR, int32": {"above_peer": 5e-6},
}


def operand(kind: str, matrix: Matrix) -> tuple[Any, torch.Tensor]:
    """What ours is called with, and what torch is."""
    if kind == "a SparseTensor":
        return matrix.tensor, matrix.in_torch
    native = matrix.in_torch_as(torch.int64 if "int64" in kind else torch.int32)
    return native, native


@pytest.mark.parametrize("product", list(PRODUCTS))
@pytest.mark.parametrize("kind", list(BARS))
@pytest.mark.parametrize("threads", [1], indirect=True, ids=["1t"])
def test_overhead(kind: str, product: str, threads: int, compare: Compare) -> None:
    """A whole warm call."""
    expression, shape = PRODUCTS[product]
    matrix = Matrix("uniform", uniform(16, 16, 4))
    A, peer = operand(kind, matrix)
    dense = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    index = "int64" if "int64" in kind else "int32"
    compare(
        "overhead",
        lambda: ns.einsum(expression, A, dense),
        {f"CSR {index}": lambda: peer @ dense},
        case=matrix,
        threads=threads,
        calls=CALLS,
        what=f"warm call on 16 x 16, {product}, {kind}",
        bar=BARS[kind],
    )
