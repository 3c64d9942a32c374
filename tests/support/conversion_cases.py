"""A matrix, and the formats and layouts that tests of conversions take it through."""

from __future__ import annotations

import warnings

import torch

from numscorch.ir.format import COO, CSC, CSR, DCSC, DCSR, Format, dense

MATRIX_FORMATS = [CSR, CSC, DCSR, DCSC, COO(2), Format("oo", (1, 0)), Format("sd"), Format("so"), dense(2), Format("dd", (1, 0))]
D = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 5.0, 0.0]])


def torch_csr(tensor: torch.Tensor) -> torch.Tensor:
    """torch's CSR, without the warning that it is in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.to_sparse_csr()
