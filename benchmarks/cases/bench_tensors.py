"""Products of tensors of order 3 to 5 with matrices and vectors: MTTKRP in each mode, and TTM and TTV in the last mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import dense, tensor, tensor_names
from ..peers import of_pydata
from ..selection import few

RANK = 16
LETTERS = "ijkmnp"
MODES = [(name, mode) for name in tensor_names() for mode in range(tensor(name).tensor.ndim)]
GATHERED = "torch, gather and scatter"


@pytest.mark.parametrize(("name", "mode"), few(MODES))
def test_mttkrp(name: str, mode: int, threads: int, compare: Compare) -> None:
    """M[i,r] = A[i,j,k] * B[j,r] * C[k,r], and likewise for the other modes."""
    case = tensor(name)
    A = case.tensor
    modes, contracted_modes = LETTERS[: A.ndim], [at for at in range(A.ndim) if at != mode]
    factors = {at: dense(A.shape[at], RANK, seed=at) for at in contracted_modes}
    expression = ",".join([modes, *(f"{modes[at]}r" for at in contracted_modes)]) + f"->{modes[mode]}r"
    indices, values = A.indices(), A.values

    def gathered() -> torch.Tensor:
        rows = values[:, None]
        for at, factor in factors.items():
            rows = rows * factor[indices[at]]
        return torch.zeros(A.shape[mode], RANK).index_add_(0, indices[mode], rows)

    def by_pydata(_: Any, in_coo: Any) -> Function:
        def broadcast() -> Any:
            products = in_coo[..., None]
            for at, factor in factors.items():
                products = products * _along(factor.numpy(), at, A.ndim)
            return products.sum(axis=tuple(contracted_modes))

        return broadcast

    compare(
        "tensors",
        lambda: ns.einsum(expression, A, *factors.values()),
        {GATHERED: gathered, **of_pydata([case], by_pydata)},
        case=case,
        threads=threads,
        asked=(expression, A, *factors.values()),
        product="MTTKRP",
        order=A.ndim,
        mode=mode,
    )


def _along(factor: np.ndarray, at: int, order: int) -> np.ndarray:
    """The matrix reshaped so that it broadcasts along all modes except one."""
    shape = [1] * order + [factor.shape[1]]
    shape[at] = factor.shape[0]
    return factor.reshape(shape)


@pytest.mark.parametrize("product", ["TTM", "TTV"])
@pytest.mark.parametrize("name", few(tensor_names(), 1))
def test_last_mode(name: str, product: str, threads: int, compare: Compare) -> None:
    """T[i,j,r] = A[i,j,k] * U[k,r] and T[i,j] = A[i,j,k] * u[k], for the nonempty fibres of A."""
    case = tensor(name)
    A = case.tensor
    modes, outer = LETTERS[: A.ndim], A.shape[:-1]
    factor = dense(A.shape[-1], RANK) if product == "TTM" else dense(A.shape[-1])
    rank, level = ("r", "d") if product == "TTM" else ("", "")
    expression, format = f"{modes},{modes[-1]}{rank}->{modes[:-1]}{rank}", ns.Format("s" * len(outer) + level)
    indices, values, as_array = A.indices(), A.values.reshape(-1, *[1] * (factor.ndim - 1)), factor.numpy()

    def by_pydata(library: Any, in_coo: Any) -> Function:
        return lambda: library.tensordot(in_coo, as_array, axes=(A.ndim - 1, 0), return_type=library.COO)

    compare(
        "tensors",
        lambda: ns.einsum(expression, A, factor, format=format),
        {
            GATHERED: lambda: torch.sparse_coo_tensor(indices[:-1], values * factor[indices[-1]], (*outer, *factor.shape[1:])).coalesce(),
            **of_pydata([case], by_pydata),
        },
        case=case,
        threads=threads,
        product=product,
        order=A.ndim,
        mode=A.ndim - 1,
    )
