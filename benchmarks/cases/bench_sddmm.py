"""SDDMM: a dense product sampled by a CSR pattern."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.measuring.peers import TORCH
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Matrix, dense, matrix
from ..peers import FULL_PRODUCT, of_torch
from ..selection import cases, skip_long

SAMPLED, SAMPLED_64 = "torch.sparse.sampled_addmm(beta=0)", "torch.sparse.sampled_addmm(beta=0), int64"
MOST_FULL = 1 << 22  # entries up to which the full dense product is measured too
MAIN, OTHERS = (64,), (16, 128, 256)


@pytest.mark.parametrize(("name", "k"), cases(MAIN, OTHERS))
def test_sddmm(name: str, k: int, threads: int, compare: Compare) -> None:
    """D[i,j] = S[i,j] * X[i,k] * Y[j,k]. All values of S are 1, because torch ignores them."""
    case = matrix(name).as_mask()
    skip_long(case, k)
    S = case.tensor
    X, Y = dense(S.shape[0], k), dense(S.shape[1], k, seed=2)
    transposed = Y.t()  # sampled_addmm is faster with this layout; it copies a contiguous operand
    sampled = of_torch(lambda pattern: torch.sparse.sampled_addmm(pattern, X, transposed, beta=0), case)
    compare(
        "sddmm",
        lambda: ns.einsum("ij,ik,jk->ij", S, X, Y),
        {SAMPLED if name == TORCH else SAMPLED_64: peer for name, peer in sampled.items()},
        beside=_full(case, X, transposed),
        case=case,
        threads=threads,
        k=k,
    )


def _full(case: Matrix, X: torch.Tensor, transposed: torch.Tensor) -> dict[str, Function]:
    """The full dense product times the mask, if the product is small enough."""
    if case.shape[0] * case.shape[1] > MOST_FULL:
        return {}
    mask = case.tensor.to_dense()
    return {FULL_PRODUCT: lambda: (X @ transposed) * mask}
