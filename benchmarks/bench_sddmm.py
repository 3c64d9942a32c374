"""SDDMM: the entries of a dense product that a CSR pattern samples."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns

from . import data
from .conftest import Compare
from .harness import check

WIDTHS = (64, 128)


@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("name", data.names())
def test_sddmm(name: str, k: int, threads: int, compare: Compare) -> None:
    """D[i,j] = S[i,j] * X[i,k] * Y[j,k], against torch's sampled_addmm, which ignores the values of S: all are 1 here."""
    matrix = data.matrix(name).as_mask()
    S, peer = matrix.tensor, matrix.in_torch
    generator = torch.Generator().manual_seed(1)
    X, Y = torch.randn(S.shape[0], k, generator=generator), torch.randn(S.shape[1], k, generator=generator)
    transposed = Y.t()  # the layout in which sampled_addmm is faster: it copies a contiguous one
    check(ns.einsum("ij,ik,jk->ij", S, X, Y).values, torch.sparse.sampled_addmm(peer, X, transposed, beta=0).values())
    compare(
        "sddmm",
        lambda: ns.einsum("ij,ik,jk->ij", S, X, Y),
        lambda: torch.sparse.sampled_addmm(peer, X, transposed, beta=0),
        peer="torch.sparse.sampled_addmm(beta=0)",
        matrix=matrix,
        threads=threads,
        k=k,
    )
