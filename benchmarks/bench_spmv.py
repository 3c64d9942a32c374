"""SpMV: a matrix times a vector, in the formats that torch and SciPy have too."""

from __future__ import annotations

import pytest

import numscorch as ns

from .conftest import Compare
from .data import dense, matrix, names
from .generated import UNIFORM
from .selection import cases

FORMATS = {"CSR": ns.CSR, "CSC": ns.CSC, "COO": ns.COO(2)}
REAL = [name for name in names() if name not in UNIFORM]


@pytest.mark.parametrize(("name", "format"), cases(["CSR"], ["CSC", "COO"], names=REAL) + cases(list(FORMATS), names=UNIFORM))
def test_spmv(name: str, format: str, threads: int, compare: Compare) -> None:
    """y[i] = A[i,j] * x[j]"""
    case = matrix(name)
    A = case.tensor.to(FORMATS[format])
    in_torch, in_scipy = A.to_torch(), A.to_scipy()
    x = dense(A.shape[1])
    as_array = x.numpy()
    compare(
        "spmv",
        lambda: ns.einsum("ij,j->i", A, x),
        {f"torch {format}": lambda: in_torch @ x, f"SciPy {format}": lambda: in_scipy @ as_array},
        case=case,
        threads=threads,
        format=format,
        uniform=name in UNIFORM,
    )
