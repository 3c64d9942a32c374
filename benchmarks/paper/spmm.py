"""SpMM by number of nonzeros, as in the paper's figure 8: CSR times a dense matrix, in numscorch and torch."""

from __future__ import annotations

import numscorch as ns

from ..data import dense, matrix, names
from ..selection import MOST_DENSE_PRODUCTS
from .runs import Run
from .tables import SPARSE

COLUMNS = 64


def spmm(run: Run) -> None:
    """Measure every matrix of the data."""
    for name in run.sizes.matrices or names():
        run.attempt(_measure, name)


def _measure(run: Run, name: str) -> None:
    case = matrix(name)
    if not 0 < case.nnz <= MOST_DENSE_PRODUCTS // COLUMNS:
        return
    A, theirs, B = case.tensor, case.in_torch, dense(case.shape[1], COLUMNS)
    ours = lambda: ns.einsum("ij,jk->ik", A, B)  # noqa: E731
    run.compare("spmm", f"{name}, nnz {case.nnz:,}", ours, {SPARSE: lambda: theirs @ B}, matrix=name, nnz=case.nnz)
