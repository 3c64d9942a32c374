"""SpMV: a matrix times a vector, in formats that torch and SciPy also support."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.measuring.peers import DENSE
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Matrix, dense, matrix, names
from ..generated import UNIFORM
from ..peers import of_graphblas, of_pydata, of_torch
from ..selection import cases, worth_dense

FORMATS = {"CSR": ns.CSR, "CSC": ns.CSC, "COO": ns.COO(2)}
REAL = [name for name in names() if name not in UNIFORM]


@pytest.mark.parametrize(("name", "format"), cases(["CSR"], ["CSC", "COO"], names=REAL) + cases(list(FORMATS), names=UNIFORM))
def test_spmv(name: str, format: str, threads: int, compare: Compare) -> None:
    """y[i] = A[i,j] * x[j]"""
    case = matrix(name)
    A, x = case.tensor.to(FORMATS[format]), dense(case.shape[1])
    in_scipy, as_array = A.to_scipy(), x.numpy()
    peers: dict[str, Function] = {f"SciPy {format}": lambda: in_scipy @ as_array}
    if format == "CSR":
        peers |= _of_csr(case, x, threads)
    else:
        in_torch = A.to_torch()
        peers[f"torch {format}"] = lambda: in_torch @ x
    compare(
        "spmv",
        lambda: ns.einsum("ij,j->i", A, x),
        peers,
        beside=_dense(case, x) if format == "CSR" else None,
        case=case,
        threads=threads,
        format=format,
        facts={"uniform": name in UNIFORM},
    )


def _of_csr(case: Matrix, x: torch.Tensor, threads: int) -> dict[str, Function]:
    """Peers that store the matrix in CSR."""
    as_array = x.numpy()

    def by_graphblas(library: Any, matrix: Any) -> Function:
        vector, times = library.Vector.from_dense(as_array), library.semiring.plus_times
        return lambda: times(matrix @ vector).new()

    def by_pydata(_: Any, rows: Any) -> Function:
        return lambda: rows @ as_array

    return of_torch(lambda A: A @ x, case) | of_graphblas(threads, [case], by_graphblas) | of_pydata([case], by_pydata)


def _dense(case: Matrix, x: torch.Tensor) -> dict[str, Function]:
    """The dense product, if the matrix is dense enough for it."""
    if not worth_dense(case):
        return {}
    full = case.tensor.to_dense()
    return {DENSE: lambda: full @ x}
