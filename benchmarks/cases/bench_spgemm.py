"""SpGEMM: products of sparse matrices, with unordered result rows, the default of the peers, and with sorted rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.measuring.peers import GRAPHBLAS, PYDATA, SCIPY
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Matrix, matrix
from ..peers import TORCH_COO, of_graphblas, of_pydata, of_torch
from ..selection import MOST_PRODUCTS, cases

UNORDERED, SORTED = "unordered", "sorted"
MOST_COO = 500_000  # scalar products up to which torch's COO is measured too


def squares(case: Matrix) -> bool:
    """Whether the product A A is small enough to measure."""
    return case.is_square and case.products() <= MOST_PRODUCTS


def few_with_transpose(case: Matrix) -> bool:
    """Whether the product A A^T is small enough to measure."""
    return case.products(transposed=True) <= MOST_PRODUCTS


@pytest.mark.parametrize(("name", "rows"), cases([UNORDERED], [SORTED], takes=squares))
def test_square(name: str, rows: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * A[j,k]"""
    case = matrix(name)
    in_scipy = case.tensor.to_scipy()

    peers = of_torch(lambda A: A @ A, case) | {SCIPY: lambda: in_scipy @ in_scipy}
    peers |= of_graphblas(threads, [case], lambda library, A: lambda: library.semiring.plus_times(A @ A).new())
    peers |= of_pydata([case], lambda _, A: lambda: A @ A)
    compare(
        "spgemm",
        _ours("ij,jk->ik", case.tensor, rows),
        _in_order(peers) if rows == SORTED else peers,
        beside=_coo(case) if rows == UNORDERED else None,
        case=case,
        threads=threads,
        product="A A",
        rows=rows,
    )


@pytest.mark.parametrize(("name", "rows"), cases((), [UNORDERED, SORTED], takes=few_with_transpose))
def test_times_transposed(name: str, rows: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * A[k,j]. numscorch caches the columns of A, so the transpose for peers is computed before the timing."""
    case = matrix(name)
    transposed = Matrix(name, case.tensor.t().to(ns.CSR))
    in_scipy, by_rows = case.tensor.to_scipy(), transposed.tensor.to_scipy()
    peers = of_torch(lambda A, B: A @ B, case, transposed) | {SCIPY: lambda: in_scipy @ by_rows}
    peers |= of_graphblas(threads, [case], lambda library, A: lambda: library.semiring.plus_times(A @ A.T).new())
    prepared = of_graphblas(threads, [case, transposed], lambda library, A, B: lambda: library.semiring.plus_times(A @ B).new())
    peers |= {f"{name}, transposed before": peer for name, peer in prepared.items()}
    compare(
        "spgemm",
        _ours("ij,kj->ik", case.tensor, rows),
        _in_order(peers) if rows == SORTED else peers,
        case=case,
        threads=threads,
        product="A A^T",
        rows=rows,
    )


REDUCED = ("bool", "min_plus", "max_plus")


@pytest.mark.parametrize(("name", "reduce"), cases((), REDUCED, takes=squares))
def test_reduced_square(name: str, reduce: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * A[j,k] with boolean values and over semirings."""
    case = matrix(name)
    if reduce == "bool":
        case = Matrix(name, case.tensor.with_values(torch.ones(case.nnz, dtype=torch.bool)))
        in_scipy = case.tensor.to_scipy()
        peers: dict[str, Function] = {SCIPY: lambda: in_scipy @ in_scipy}
    else:
        peers = of_graphblas(threads, [case], lambda library, A: lambda: getattr(library.semiring, reduce)(A @ A).new())
    A = case.tensor
    compare(
        "spgemm, reduced",
        lambda: ns.einsum("ij,jk->ik", A, A, reduce="sum" if reduce == "bool" else reduce),
        peers,
        case=case,
        threads=threads,
        reduce=reduce,
    )


def _ours(expression: str, A: ns.SparseTensor, rows: str) -> Function:
    if rows == SORTED:
        return lambda: ns.einsum(expression, A, A, format=ns.CSR)
    return lambda: ns.einsum(expression, A, A)


def _in_order(peers: dict[str, Function]) -> dict[str, Function]:
    """The peers with sorted rows. torch can sort only via COO and is left out; pydata/sparse always sorts."""
    sorting: dict[str, Callable[[Any], Any]] = {SCIPY: _sort_indices, GRAPHBLAS: _wait, PYDATA: lambda product: product}
    return {name: _then(sorting[library], peer) for name, peer in peers.items() if (library := name.partition(",")[0]) in sorting}


def _coo(case: Matrix) -> dict[str, Function]:
    """torch's product of COO tensors."""
    if case.products() > MOST_COO:
        return {}
    coordinates = case.in_torch.to_sparse_coo().coalesce()
    return {TORCH_COO: lambda: coordinates @ coordinates}


def _then(last: Callable[[Any], Any], first: Function) -> Function:
    return lambda: last(first())


def _sort_indices(product: Any) -> Any:
    product.sort_indices()
    return product


def _wait(product: Any) -> Any:
    """Sort the rows, which GraphBLAS defers until the result is materialized."""
    product.wait("materialize")
    return product
