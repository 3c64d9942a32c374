"""SpMM against the number of nonzeros, as in the paper's figure 8: our CSR and torch's, times a dense matrix."""

from __future__ import annotations

import numscorch as ns

from .data import dense, matrix, names
from .paper_runs import Run
from .paper_tables import SPARSE
from .selection import MOST_DENSE_PRODUCTS

COLUMNS = 64
SMALLEST = ("uniform-10", "uniform-100")


def spmm(run: Run) -> None:
    """Every matrix of the data."""
    for name in run.sizes.matrices or names():
        case = matrix(name)
        if not 0 < case.nnz <= MOST_DENSE_PRODUCTS // COLUMNS:
            continue
        B, theirs = dense(case.shape[1], COLUMNS), case.in_torch
        facts = {"matrix": name, "nnz": case.nnz}
        run.compare(
            "spmm",
            f"{name}, nnz {case.nnz:,}",
            lambda A=case.tensor, B=B: ns.einsum("ij,jk->ik", A, B),
            {SPARSE: lambda A=theirs, B=B: A @ B},
            **facts,
        )
