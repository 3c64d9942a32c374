"""Overhead of a call outside its kernel, on a 16 x 16 matrix with one thread."""

from __future__ import annotations

from collections.abc import Callable
from operator import matmul
from typing import Any

import pytest
import torch

import numscorch as ns

from .. import compat
from ..conftest import Compare
from ..data import Matrix, dense
from ..generated import uniform

CALLS = 100
PRODUCTS = {"SpMV": ("ij,j->i", (16,)), "SpMM, k = 16": ("ij,jk->ik", (16, 16))}
BARS: dict[str, dict[str, float]] = {
    "a SparseTensor": {"at_most": 6.5e-6},
    "torch's CSR, int64": {"above_peer": 0.0},
    "torch's CSR, int32": {"above_peer": 2.5e-6},
    "torch's COO": {"above_peer": 2.5e-6},
}


def operand(kind: str, matrix: Matrix) -> tuple[Any, torch.Tensor]:
    """The operands of numscorch and of torch."""
    if kind == "a SparseTensor":
        return matrix.tensor, matrix.in_torch
    if kind == "torch's COO":
        native = matrix.in_torch.to_sparse_coo().coalesce()
    else:
        native = matrix.in_torch_as(torch.int64 if "int64" in kind else torch.int32)
    return native, native


@pytest.mark.parametrize("product", list(PRODUCTS))
@pytest.mark.parametrize("kind", list(BARS))
@pytest.mark.parametrize("threads", [1], indirect=True, ids=["1t"])
def test_overhead(kind: str, product: str, threads: int, compare: Compare) -> None:
    """A warm call of ``einsum``."""
    expression, shape = PRODUCTS[product]
    matrix = Matrix("uniform", uniform(16, 16, 4))
    A, peer = operand(kind, matrix)
    B = dense(*shape)
    compare(
        "overhead",
        lambda: ns.einsum(expression, A, B),
        {kind.replace("torch's", "torch") if A is peer else "torch CSR, int32": lambda: peer @ B},
        case=matrix,
        threads=threads,
        calls=CALLS,
        what=f"warm call on 16 x 16, {product}, {kind}",
        facts={"bar": BARS[kind]},
    )


@pytest.mark.parametrize("product", list(PRODUCTS))
@pytest.mark.parametrize("kind", ["a SparseTensor", "torch's CSR, int32"])
@pytest.mark.parametrize("threads", [1], indirect=True, ids=["1t"])
def test_plans(kind: str, product: str, threads: int, compare: Compare) -> None:
    """A call of a plan."""
    if not compat.HAS_PLANS:
        pytest.skip("this commit binds no expressions")
    expression, shape = PRODUCTS[product]
    matrix = Matrix("uniform", uniform(16, 16, 4))
    A, peer = operand(kind, matrix)
    B = dense(*shape)
    plan = ns.plan(expression, A, B)
    compare(
        "overhead",
        lambda: plan(A, B),
        {"torch CSR, int32": lambda: peer @ B, "ours, einsum": lambda: ns.einsum(expression, A, B)},
        case=matrix,
        threads=threads,
        calls=CALLS,
        asked=(expression, A, B),
        what=f"call of a plan on 16 x 16, {product}, {kind}",
        facts={"bar": {"above_peer": 0.0}},
    )


OPERATORS: dict[str, tuple[str, Callable[..., Any], int]] = {
    "torch.matmul(A, X)": ("ij,jk->ik", torch.matmul, 2),
    "torch.mv(A, x)": ("ij,j->i", torch.mv, 1),
    "A @ X": ("ij,jk->ik", matmul, 2),
    "F.linear(X, A)": ("ij,kj->ki", lambda A, X: torch.nn.functional.linear(X, A), 2),
    "torch.sum(A, 1)": ("ij->i", lambda A: torch.sum(A, 1), 0),
    "torch.mul(A, X)": ("ij,ij->ij", torch.mul, 2),
}


@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("threads", [1], indirect=True, ids=["1t"])
def test_operators(name: str, threads: int, compare: Compare) -> None:
    """Overhead of a torch function or operator compared with the equivalent ``einsum``."""
    expression, operator, order = OPERATORS[name]
    matrix = Matrix("uniform", uniform(16, 16, 4))
    operands = (matrix.tensor, *([dense(*[16] * order)] if order else []))
    compare(
        "overhead",
        lambda: operator(*operands),
        {"ours, einsum": lambda: ns.einsum(expression, *operands)},
        case=matrix,
        threads=threads,
        calls=CALLS,
        what=f"warm {name} on 16 x 16, beside einsum",
        facts={"bar": {"above_peer": 3e-6}},
    )
