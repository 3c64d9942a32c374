"""SDDMM: the entries of a dense product that a CSR pattern samples."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns

from .conftest import Compare
from .data import dense, matrix
from .selection import cases, skip_long

MAIN, OTHERS = (64,), (16, 128, 256)


@pytest.mark.parametrize(("name", "k"), cases(MAIN, OTHERS))
def test_sddmm(name: str, k: int, threads: int, compare: Compare) -> None:
    """D[i,j] = S[i,j] * X[i,k] * Y[j,k]; torch ignores the values of S: all are 1 here."""
    case = matrix(name).as_mask()
    skip_long(case, k)
    S, in_torch = case.tensor, case.in_torch
    X, Y = dense(S.shape[0], k), dense(S.shape[1], k, seed=2)
    transposed = Y.t()  # the layout in which sampled_addmm is faster: it copies a contiguous one
    compare(
        "sddmm",
        lambda: ns.einsum("ij,ik,jk->ij", S, X, Y),
        {"torch.sparse.sampled_addmm(beta=0)": lambda: torch.sparse.sampled_addmm(in_torch, X, transposed, beta=0)},
        case=case,
        threads=threads,
        k=k,
    )
