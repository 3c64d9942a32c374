"""SpGEMM under a mask, and triangle counting, which sums one up."""

from __future__ import annotations

import pytest
import torch
from scipy import sparse

import numscorch as ns

from .bench_spgemm import squares
from .conftest import Compare
from .data import Matrix, matrix
from .peers import GRAPHBLAS, graphblas, in_graphblas, rest
from .selection import cases


@pytest.mark.parametrize("name", [name for name, _ in cases((), [None], takes=squares)])
def test_masked(name: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * A[j,k], where A has an entry."""
    case = matrix(name)
    A, in_gb = case.tensor, in_graphblas(case, threads)
    times = graphblas(threads).semiring.plus_times
    compare(
        "masked",
        lambda: ns.einsum("ij,jk->ik", A, A, mask=A),
        {GRAPHBLAS: lambda: times(in_gb @ in_gb).new(mask=in_gb.S)},
        case=case,
        threads=threads,
        rest=rest(threads),
    )


@pytest.mark.parametrize("name", [name for name, _ in cases((), [None], takes=squares)])
def test_triangles(name: str, threads: int, compare: Compare) -> None:
    """t = L[i,j] * L[j,k] * L[i,k]; GraphBLAS adds up rows, or, with the transpose, multiplies them in pairs."""
    case = _below_diagonal(matrix(name))
    L, in_gb = case.tensor, in_graphblas(case, threads)
    pairs, upper = graphblas(threads).semiring.plus_pair, in_gb.T.new()
    compare(
        "triangles",
        lambda: ns.einsum("ij,jk,ik->", L, L, L),
        {
            f"{GRAPHBLAS}, rows": lambda: pairs(in_gb @ in_gb).new(mask=in_gb.S).reduce_scalar().new(),
            f"{GRAPHBLAS}, pairs of rows": lambda: pairs(in_gb @ upper.T).new(mask=in_gb.S).reduce_scalar().new(),
        },
        case=case,
        threads=threads,
        rest=rest(threads),
    )


def _below_diagonal(case: Matrix) -> Matrix:
    """The edges of a graph, each once, with value 1."""
    lower = ns.from_scipy(sparse.tril(case.tensor.to_scipy(), -1, format="csr"))
    return Matrix(case.name, lower.with_values(torch.ones(lower.nnz)))
