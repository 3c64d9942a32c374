"""SpMM: a CSR matrix times a dense one."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns

from . import data
from .conftest import Compare
from .harness import check

WIDTHS = (16, 64, 128, 256)


@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("name", data.names())
def test_spmm(name: str, k: int, threads: int, compare: Compare) -> None:
    """C[i,k] = A[i,j] * B[j,k], against torch's CSR product with int32 indices."""
    matrix = data.matrix(name)
    A, peer = matrix.tensor, matrix.in_torch
    B = torch.randn(A.shape[1], k, generator=torch.Generator().manual_seed(1))
    check(ns.einsum("ij,jk->ik", A, B), peer @ B)
    compare(
        "spmm",
        lambda: ns.einsum("ij,jk->ik", A, B),
        lambda: peer @ B,
        peer="torch.sparse_csr_tensor(int32) @ B",
        matrix=matrix,
        threads=threads,
        k=k,
    )
