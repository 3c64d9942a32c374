"""SpGEMM: products of sparse matrices, with rows left in any order, as the peers leave them, and sorted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import numscorch as ns
from numscorch.measuring.turns import Function

from .conftest import Compare
from .data import Matrix, matrix
from .peers import GRAPHBLAS, graphblas, in_graphblas, rest
from .selection import MOST_PRODUCTS, cases

UNORDERED, SORTED = "unordered", "sorted"
TORCH, SCIPY = "torch CSR", "SciPy CSR"


def squares(case: Matrix) -> bool:
    """Whether A A can be measured."""
    return case.is_square and case.products() <= MOST_PRODUCTS


def few_with_transpose(case: Matrix) -> bool:
    """Whether A A^T can be."""
    return case.products(transposed=True) <= MOST_PRODUCTS


@pytest.mark.parametrize(("name", "rows"), cases([UNORDERED], [SORTED], takes=squares))
def test_square(name: str, rows: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * A[j,k]"""
    case = matrix(name)
    A, in_torch, in_scipy, in_gb = case.tensor, case.in_torch, case.tensor.to_scipy(), in_graphblas(case, threads)
    times = graphblas(threads).semiring.plus_times
    peers: dict[str, Function] = {
        TORCH: lambda: in_torch @ in_torch,
        SCIPY: lambda: in_scipy @ in_scipy,
        GRAPHBLAS: lambda: times(in_gb @ in_gb).new(),
    }
    compare(
        "spgemm",
        _ours("ij,jk->ik", A, rows),
        _in_order(peers) if rows == SORTED else peers,
        case=case,
        threads=threads,
        rest=rest(threads),
        product="A A",
        rows=rows,
    )


@pytest.mark.parametrize(("name", "rows"), cases((), [UNORDERED, SORTED], takes=few_with_transpose))
def test_times_transposed(name: str, rows: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * A[k,j]; torch is faster where it makes the transpose CSR first."""
    case = matrix(name)
    A, in_torch, in_scipy, in_gb = case.tensor, case.in_torch, case.tensor.to_scipy(), in_graphblas(case, threads)
    times = graphblas(threads).semiring.plus_times
    peers: dict[str, Function] = {
        TORCH: lambda: in_torch @ in_torch.t().to_sparse_csr(),
        SCIPY: lambda: in_scipy @ in_scipy.T,
        GRAPHBLAS: lambda: times(in_gb @ in_gb.T).new(),
    }
    compare(
        "spgemm",
        _ours("ij,kj->ik", A, rows),
        _in_order(peers) if rows == SORTED else peers,
        case=case,
        threads=threads,
        rest=rest(threads),
        product="A A^T",
        rows=rows,
    )


def _ours(expression: str, A: ns.SparseTensor, rows: str) -> Function:
    if rows == SORTED:
        return lambda: ns.einsum(expression, A, A, format=ns.CSR)
    return lambda: ns.einsum(expression, A, A)


def _in_order(peers: dict[str, Function]) -> dict[str, Function]:
    """The products with sorted rows; torch has no way to sort them but through COO."""
    return {SCIPY: _then(_sort_indices, peers[SCIPY]), GRAPHBLAS: _then(_wait, peers[GRAPHBLAS])}


def _then(last: Callable[[Any], Any], first: Function) -> Function:
    return lambda: last(first())


def _sort_indices(product: Any) -> Any:
    product.sort_indices()
    return product


def _wait(product: Any) -> Any:
    """GraphBLAS leaves rows unsorted until it is asked for them."""
    product.wait("materialize")
    return product
