"""SpMV: a CSR matrix times a vector; smaller matrices are a matter of overhead."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns

from . import data
from .conftest import Compare
from .harness import check

FEWEST = 100_000


@pytest.mark.parametrize("name", [name for name in data.names() if data.matrix(name).nnz >= FEWEST])
def test_spmv(name: str, threads: int, compare: Compare) -> None:
    """y[i] = A[i,j] * x[j], against torch's CSR product with int32 indices."""
    matrix = data.matrix(name)
    A, peer = matrix.tensor, matrix.in_torch
    x = torch.randn(A.shape[1], generator=torch.Generator().manual_seed(1))
    check(ns.einsum("ij,j->i", A, x), peer @ x)
    compare(
        "spmv",
        lambda: ns.einsum("ij,j->i", A, x),
        lambda: peer @ x,
        peer="torch.sparse_csr_tensor(int32) @ x",
        matrix=matrix,
        threads=threads,
        k=None,
    )
