"""Conversions between formats. Every call converts a new pattern, because numscorch caches conversions in the pattern."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

import numscorch as ns
from numscorch.measuring.turns import Function

from .. import compat
from ..compat import Pattern
from ..conftest import Compare
from ..data import Matrix, each_fresh, matrix
from ..selection import cases, fits_dense

TORCH, SCIPY = "torch", "SciPy"
UNORDERED = ns.Format("(i, j) -> (i: dense, j: compressed(ordered=False))")


@pytest.mark.parametrize(("name", "what"), cases((), ["COO to CSR", "CSR to CSC", "sort", "coalesce"]))
def test_sparse(name: str, what: str, threads: int, compare: Compare) -> None:
    """Convert between sparse formats, sort or coalesce."""
    makers = {"COO to CSR": coo_to_csr, "CSR to CSC": csr_to_csc, "sort": sort, "coalesce": coalesce}
    case = matrix(name)
    ours, peers = makers[what](case)
    compare("convert", ours, peers, case=case, threads=threads, what=what)


@pytest.mark.parametrize(("name", "what"), cases((), ["dense to CSR", "CSR to dense"], takes=fits_dense))
def test_dense(name: str, what: str, threads: int, compare: Compare) -> None:
    """Convert between CSR and dense."""
    case = matrix(name)
    ours, peers = (dense_to_csr if what == "dense to CSR" else csr_to_dense)(case)
    compare("convert", ours, peers, case=case, threads=threads, what=what)


def coo_to_csr(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """Convert COO with sorted coordinates to CSR: only the entries per row are counted."""
    A = case.tensor.to(ns.COO(2))
    in_torch, in_scipy, tensors = A.to_torch(), A.to_scipy(), each_fresh(A)
    return lambda: next(tensors).to(ns.CSR), {TORCH: in_torch.to_sparse_csr, SCIPY: in_scipy.tocsr}


def csr_to_csc(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """Convert CSR to CSC: entries change their order."""
    A = case.tensor
    in_torch, in_scipy, tensors = case.in_torch, A.to_scipy(), each_fresh(A)
    return lambda: next(tensors).to(ns.CSC), {TORCH: in_torch.to_sparse_csc, SCIPY: in_scipy.tocsc}


def sort(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """Sort the column indices within each row; torch has no function for this."""
    pos, crd = case.arrays
    order = torch.from_numpy(np.lexsort((_anywhere(case.nnz), case.tensor.indices()[0].numpy())))
    pattern = Pattern(UNORDERED, case.shape, ((), (pos, crd[order])))
    A = ns.SparseTensor(pattern, case.tensor.values[order])
    in_scipy, tensors = A.to_scipy(), each_fresh(A)
    return lambda: ns.sort(next(tensors)), {SCIPY: in_scipy.sorted_indices}


def coalesce(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """Coalesce unsorted coordinates; a tenth of them occur twice."""
    places = torch.from_numpy(_anywhere(case.nnz))
    places = torch.cat([places, places[: case.nnz // 10]])
    indices, values = case.tensor.indices()[:, places], case.tensor.values[places]
    as_arrays, numbers = tuple(indices.numpy().astype(np.int32)), values.numpy()

    def of_scipy() -> sparse.coo_array:
        entries = sparse.coo_array((numbers, as_arrays), shape=case.shape)
        entries.sum_duplicates()
        return entries

    return lambda: compat.coalesced(indices, values, case.shape), {
        TORCH: lambda: torch.sparse_coo_tensor(indices, values, case.shape).coalesce(),
        SCIPY: of_scipy,
    }


def _anywhere(count: int) -> np.ndarray:
    return np.random.default_rng(5).permutation(count)


def dense_to_csr(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """Convert the nonzeros of a dense matrix to CSR."""
    full = case.tensor.to_dense()
    as_array = full.numpy()
    return lambda: ns.from_torch(full), {TORCH: full.to_sparse_csr, SCIPY: lambda: sparse.csr_array(as_array)}


def csr_to_dense(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """Convert CSR to a dense matrix."""
    A = case.tensor
    in_torch, in_scipy = case.in_torch, A.to_scipy()
    return A.to_dense, {TORCH: in_torch.to_dense, SCIPY: in_scipy.toarray}
