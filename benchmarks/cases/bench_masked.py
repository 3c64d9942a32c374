"""Masked SpGEMM, and triangle counting, the sum of a masked SpGEMM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

import numscorch as ns
from numscorch.measuring.peers import GRAPHBLAS, in_graphblas
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Matrix, matrix
from ..peers import WHOLE_PRODUCT, graphblas, of_graphblas
from ..selection import cases
from .bench_spgemm import squares


@pytest.mark.parametrize("name", [name for name, _ in cases((), [None], takes=squares)])
def test_masked(name: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * A[j,k] at the stored entries of A."""
    case = matrix(name)
    A, in_scipy, pattern = case.tensor, case.tensor.to_scipy(), case.as_mask().tensor.to_scipy()
    peers = of_graphblas(threads, [case], lambda library, A: lambda: library.semiring.plus_times(A @ A).new(mask=A.S))
    compare(
        "masked",
        lambda: ns.einsum("ij,jk->ik", A, A, mask=A),
        peers,
        beside={WHOLE_PRODUCT: lambda: (in_scipy @ in_scipy).multiply(pattern)},
        case=case,
        threads=threads,
    )


@pytest.mark.parametrize("name", [name for name, _ in cases((), [None], takes=squares)])
def test_triangles(name: str, threads: int, compare: Compare) -> None:
    """t = L[i,j] * L[j,k] * L[i,k]; GraphBLAS computes row by row or, with the transpose, by dot products of rows."""
    case = _below_diagonal(matrix(name))
    L, in_scipy = case.tensor, case.tensor.to_scipy()
    peers = _counted(case, graphblas(threads))
    compare(
        "triangles",
        lambda: ns.einsum("ij,jk,ik->", L, L, L),
        peers,
        beside={WHOLE_PRODUCT: lambda: np.float32((in_scipy @ in_scipy).multiply(in_scipy).sum())},
        case=case,
        threads=threads,
        asked=("ij,jk,ik->", L, L, L),
    )


def _counted(case: Matrix, library: Any) -> dict[str, Function]:
    if library is None:
        return {}
    in_gb, pairs = in_graphblas(library, case.tensor), library.semiring.plus_pair
    upper = in_gb.T.new()
    return {
        f"{GRAPHBLAS}, rows": lambda: pairs(in_gb @ in_gb).new(mask=in_gb.S).reduce_scalar().new(),
        f"{GRAPHBLAS}, pairs of rows": lambda: pairs(in_gb @ upper.T).new(mask=in_gb.S).reduce_scalar().new(),
    }


def _below_diagonal(case: Matrix) -> Matrix:
    """The strictly lower triangle with values of 1: each edge of a graph once."""
    lower = ns.from_scipy(sparse.tril(case.tensor.to_scipy(), -1, format="csr"))
    return Matrix(case.name, lower.with_values(torch.ones(lower.nnz)))
