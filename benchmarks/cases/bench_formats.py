"""SpMM in formats other than CSR, against the same layout in torch, or against SciPy's CSR if torch lacks the layout."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.measuring.peers import SCIPY
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Matrix, dense, matrix
from ..peers import of_torch
from ..selection import cases

WIDTH = 64
FORMATS = {"COO": ns.COO(2), "CSC": ns.CSC, "DCSR": ns.DCSR, "BCSR(4, 4)": ns.BCSR(4, 4)}
IN_TORCH = ("COO", "CSC", "BCSR(4, 4)")


def is_even(case: Matrix) -> bool:
    """Whether ELL stores fewer than two slots per nonzero; with more padding, ELL is a poor choice."""
    return case.shape[0] * int(case.arrays[0].diff().max()) < 2 * case.nnz


@pytest.mark.parametrize(("name", "format"), cases((), list(FORMATS)))
def test_formats(name: str, format: str, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * B[j,k]; for BCSR, the matrix is padded, because torch's blocks must divide the shape."""
    case = matrix(name)
    _compare(case.padded(4, 4) if format == "BCSR(4, 4)" else case, format, FORMATS[format], threads, compare)


@pytest.mark.parametrize("name", [name for name, _ in cases((), [None], takes=is_even)])
def test_ell(name: str, threads: int, compare: Compare) -> None:
    """SpMM in ELL, on matrices with similar nonzeros per row."""
    _compare(matrix(name), "ELL", ns.ELL, threads, compare)


def _compare(case: Matrix, name: str, format: ns.Format, threads: int, compare: Compare) -> None:
    A, B = case.tensor.to(format), dense(case.shape[1], WIDTH)
    compare(
        "formats",
        lambda: ns.einsum("ij,jk->ik", A, B),
        _peers(case, A, B, name),
        case=case,
        threads=threads,
        format=name,
        k=WIDTH,
    )


def _peers(case: Matrix, A: ns.SparseTensor, B: torch.Tensor, name: str) -> dict[str, Function]:
    if name in IN_TORCH:
        in_torch = A.to_torch()
        peers = {f"torch {str(in_torch.layout).rpartition('_')[2].upper()}": lambda: in_torch @ B}
        return peers | (of_torch(lambda A: A @ B, case) if name == "CSC" else {})  # numscorch caches the conversion to CSR
    in_scipy, as_array = case.tensor.to_scipy(), B.numpy()
    return {SCIPY: lambda: in_scipy @ as_array}
