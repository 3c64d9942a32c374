"""SpMM: a CSR matrix times a dense one."""

from __future__ import annotations

import pytest

import numscorch as ns

from .conftest import Compare
from .data import dense, matrix
from .selection import cases, skip_long

MAIN, OTHERS = (16, 64), (2, 7, 33, 128, 256)


@pytest.mark.parametrize(("name", "k"), cases(MAIN, OTHERS))
def test_spmm(name: str, k: int, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * B[j,k]"""
    case = matrix(name)
    skip_long(case, k)
    A, in_torch, in_scipy = case.tensor, case.in_torch, case.tensor.to_scipy()
    B = dense(A.shape[1], k)
    as_array = B.numpy()
    compare(
        "spmm",
        lambda: ns.einsum("ij,jk->ik", A, B),
        {"torch CSR int32": lambda: in_torch @ B, "SciPy CSR": lambda: in_scipy @ as_array},
        case=case,
        threads=threads,
        k=k,
    )
