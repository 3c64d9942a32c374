"""Data types other than float32 and int32: our time and memory traffic relative to float32 and int32."""

from __future__ import annotations

from math import prod

import pytest
import torch

import numscorch as ns
from numscorch.measuring.comparison import check
from numscorch.measuring.turns import in_turns

from ..compat import traffic_of
from ..conftest import Record
from ..data import dense, matrix
from ..report import TYPES
from ..selection import cases

PRODUCTS: dict[str, tuple[str, tuple[int, ...]]] = {"SpMM, k = 64": ("ij,jk->ik", (64,)), "SpMV": ("ij,j->i", ())}
KINDS = {"float64": (torch.float64, torch.int32), "bfloat16": (torch.bfloat16, torch.int32), "int64 indices": (torch.float32, torch.int64)}
VARIANTS = {f"{product}, {kind}": (product, kind) for product in PRODUCTS for kind in KINDS}
FEWEST = 100_000  # nonzeros; call overhead dominates with fewer
ROUNDING = {torch.bfloat16: 1e-2}


@pytest.mark.parametrize(("name", "variant"), cases((), list(VARIANTS), takes=lambda case: case.nnz >= FEWEST))
def test_types(name: str, variant: str, threads: int, record: Record) -> None:
    """A product with another value or index type, compared with the same product in float32 and int32."""
    product, kind = VARIANTS[variant]
    expression, width = PRODUCTS[product]
    dtype, index = KINDS[kind]
    case = matrix(name)
    A, B = with_types(case.tensor, dtype, index), dense(case.shape[1], *width).to(dtype)
    plain, plain_B = with_types(A, torch.float32, torch.int32), B.float()
    check(ns.einsum(expression, A, B), ns.einsum(expression, plain, plain_B), "float32", ROUNDING.get(dtype, 1e-4))
    turns = in_turns(lambda: ns.einsum(expression, A, B), {"float32": lambda: ns.einsum(expression, plain, plain_B)})
    record(
        turns.ours,
        kernel=TYPES,
        what=product,
        **{"as": kind},
        variant=["what", "as"],
        time=1 / turns.ratio,
        moved=moved(A, B) / moved(plain, plain_B),
        shape=list(case.shape),
        nnz=case.nnz,
        matrix=name,
        threads=threads,
    )


def with_types(A: ns.SparseTensor, dtype: torch.dtype, index: torch.dtype) -> ns.SparseTensor:
    """The CSR matrix with these value and index types."""
    pos, crd = (array.to(index) for array in A.pattern.arrays[1])
    return ns.from_csr(pos, crd, A.values.to(dtype), A.shape)


def moved(A: ns.SparseTensor, B: torch.Tensor) -> int:
    """Bytes of both operands and the dense result, each counted once."""
    return traffic_of((A, B), None) + A.shape[0] * prod(B.shape[1:]) * B.itemsize
