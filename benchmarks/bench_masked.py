"""SpGEMM under a mask, and triangle counting, which sums one up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

import numscorch as ns
from numscorch.measuring.peers import GRAPHBLAS, in_graphblas
from numscorch.measuring.turns import Function

from .bench_spgemm import squares
from .conftest import Compare
from .data import Matrix, matrix
from .peers import WHOLE_PRODUCT, graphblas, of_graphblas
from .selection import cases


@pytest.mark.parametrize("name", [name for name, _ in cases((), [None], takes=squares)])
def test_masked(name: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * A[j,k], where A has an entry."""
    case = matrix(name)
    A, in_scipy, pattern = case.tensor, case.tensor.to_scipy(), case.as_mask().tensor.to_scipy()
    peers = of_graphblas(threads, [case], lambda library, own: lambda: library.semiring.plus_times(own @ own).new(mask=own.S))
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
    """t = L[i,j] * L[j,k] * L[i,k]; GraphBLAS adds up rows, or, with the transpose, multiplies them in pairs."""
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
    """The edges of a graph, each once, with value 1."""
    lower = ns.from_scipy(sparse.tril(case.tensor.to_scipy(), -1, format="csr"))
    return Matrix(case.name, lower.with_values(torch.ones(lower.nnz)))
