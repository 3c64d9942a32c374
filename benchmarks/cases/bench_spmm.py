"""SpMM: a CSR matrix times a dense matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.measuring.peers import DENSE, SCIPY
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Matrix, dense, matrix
from ..peers import of_graphblas, of_pydata, of_torch
from ..selection import cases, skip_long, worth_dense

MAIN, OTHERS = (16, 64), (2, 7, 33, 128, 256)


@pytest.mark.parametrize(("name", "k"), cases(MAIN, OTHERS))
def test_spmm(name: str, k: int, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * B[j,k]"""
    case = matrix(name)
    skip_long(case, k)
    A, B = case.tensor, dense(case.shape[1], k)
    peers = _peers(case, B, threads)
    compare(
        "spmm",
        lambda: ns.einsum("ij,jk->ik", A, B),
        peers,
        beside=_dense(case, B),
        case=case,
        threads=threads,
        k=k,
    )


def _peers(case: Matrix, B: torch.Tensor, threads: int) -> dict[str, Function]:
    in_scipy, as_array = case.tensor.to_scipy(), B.numpy()

    def by_graphblas(library: Any, matrix: Any) -> Function:
        full, times = library.Matrix.from_dense(as_array), library.semiring.plus_times
        return lambda: times(matrix @ full).new()

    def by_pydata(_: Any, rows: Any) -> Function:
        return lambda: rows @ as_array

    peers = of_torch(lambda A: A @ B, case) | {SCIPY: lambda: in_scipy @ as_array}
    return peers | of_graphblas(threads, [case], by_graphblas) | of_pydata([case], by_pydata)


def _dense(case: Matrix, B: torch.Tensor) -> dict[str, Function]:
    """The dense product, if the matrix is dense enough for it."""
    if not worth_dense(case):
        return {}
    full = case.tensor.to_dense()
    return {DENSE: lambda: full @ B}
