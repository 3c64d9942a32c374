"""torch's randomized decompositions: svd_lowrank, pca_lowrank and lobpcg; their products with the matrix stay sparse."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import RangeError
from ..ir.format import COO
from ..tensors.sparse_tensor import SparseTensor


def svd_lowrank(A: Any, q: int | None = 6, niter: int | None = 2, M: Any = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """torch.svd_lowrank: the q largest singular values of a matrix, approximately, and their vectors; gradients flow to the values.

    Algorithm 5.1 of Halko et al., 2009, with the random numbers that torch draws. O((stored entries + (m + n) * q) * q * niter).

    Args:
        A: a matrix of shape (m, n) with real or complex values.
        q: the number of singular values, somewhat larger than the rank of the matrix.
        niter: the number of subspace iterations.
        M: a matrix that is subtracted from ``A``, such as the means of its columns; it may have one row or one column.

    Returns:
        U of shape (m, q), S of shape (q,) and V of shape (n, q), so that ``U @ S.diag() @ V.mH`` approximates ``A - M``.

    >>> import numscorch as ns
    >>> U, S, V = svd_lowrank(ns.from_torch(torch.diag(torch.tensor([3.0, 0.0, 2.0]))), q=2)
    >>> S.round()
    tensor([3., 2.])
    """
    M = M.unsqueeze(0) if M is not None and M.ndim == 1 else M
    adjoint = A.mH, None if M is None else M.mH
    if A.shape[-2] < A.shape[-1]:
        V, S, U = svd_lowrank(adjoint[0], q, niter, adjoint[1])
        return U, S, V
    X = torch.randn(A.shape[-1], 6 if q is None else q, dtype=A.dtype, device=A.device)
    Q = torch.linalg.qr(_product(A, M, X)).Q
    for _ in range(2 if niter is None else niter):
        Q = torch.linalg.qr(_product(*adjoint, Q)).Q
        Q = torch.linalg.qr(_product(A, M, Q)).Q
    U, S, Vh = torch.linalg.svd(_product(*adjoint, Q).mH, full_matrices=False)
    return Q @ U, S, Vh.mH


def _product(A: Any, M: Any, X: torch.Tensor) -> torch.Tensor:
    """``(A - M) @ X``, without the difference."""
    if M is None:
        return A @ X
    return A @ X - M @ (X if M.shape[-1] == A.shape[-1] else X.sum(-2, keepdim=True))


def pca_lowrank(
    A: SparseTensor, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """torch.pca_lowrank: :func:`svd_lowrank` of a matrix less the means of its columns; the difference is never stored.

    Raises:
        RangeError: q exceeds the smaller size, or q or niter is negative.
    """
    smaller = min(A.shape[-2:])
    q = min(6, smaller) if q is None else q
    if not 0 <= q <= smaller or niter < 0:
        raise RangeError(f"pca_lowrank with q={q} and niter={niter}: q is at most {smaller}, the smaller size, and neither is negative")
    return svd_lowrank(A, q, niter, A.sum(-2, keepdim=True).to_dense() / A.shape[-2] if center else None)


def lobpcg(A: Any, k: int | None = None, B: Any = None, X: Any = None, n: int | None = None, iK: Any = None, **options: Any) -> Any:
    """torch.lobpcg, with matrices as torch's COO tensors: some largest or smallest eigenvalues of a symmetric matrix, and their vectors.

    As for torch's sparse tensors, gradients are not supported: the backward pass raises ValueError.
    """
    return torch.lobpcg(_as_torch(A), k, _as_torch(B), X, n, _as_torch(iK), **options)


def _as_torch(matrix: Any) -> Any:
    return matrix.to(COO(2)).to_torch(copy=False) if isinstance(matrix, SparseTensor) else matrix


LOW_RANK = {"svd_lowrank": svd_lowrank, "pca_lowrank": pca_lowrank, "lobpcg": lobpcg}
