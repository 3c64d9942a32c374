"""Compiled SpMM, SpGEMM, SDDMM, MTTKRP, TTM and TTV in all formats of the tables, compared with SciPy and NumPy.

Values are small integers in float64, so results are compared for equality. Matrices and tensors are
generated; real data is used in full if NUMSCORCH_BENCH_DATA names its folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from real_data import FOLDER, GENERATED, GENERATED_TENSORS, MATRICES, RESULTS, TENSORS, files, loaded, numbers

import numscorch as ns
from numscorch.tensors.validate import validate

STEPS = 1e7  # limit of multiplications of a sparse product, and of entries of a dense result; further columns are dropped
COLUMNS = 32
RANK = 16
Nonzeros = tuple[np.ndarray, np.ndarray]  # ascending row-major positions, and values


def data_parameters(generated: Iterable[str], *folders: str) -> list[Any]:
    """Parameters for generated data (large data at full scale only), and for real files or a skipped parameter with the reason."""
    parameters = [pytest.param(name, marks=[pytest.mark.full] * name.startswith("large")) for name in generated]
    without = pytest.param("-", marks=pytest.mark.skip(reason=f"{FOLDER} names no folder with {', '.join(folders)}"))
    return [*parameters, *(files(*folders) or [without])]


matrices = pytest.mark.parametrize("name", data_parameters(GENERATED, "matrices", "dlmc", "graphs"))
tensors = pytest.mark.parametrize("name", data_parameters(GENERATED_TENSORS, "tensors"))


def as_scipy(A: ns.SparseTensor) -> sp.csr_array:
    """A matrix as CSR of SciPy, built from its coordinates."""
    return sp.csr_array((A.values.numpy(), tuple(A.indices().numpy())), tuple(A.shape))


def nonzeros(indices: np.ndarray, values: np.ndarray, shape: Sequence[int]) -> Nonzeros:
    """The nonzeros of some entries."""
    positions = np.ravel_multi_index(tuple(indices), tuple(shape))[values != 0]
    values = values[values != 0]
    order = slice(None) if (positions[1:] > positions[:-1]).all() else np.argsort(positions)
    return positions[order], values[order]


def check_equal(result: Any, expected: np.ndarray | Nonzeros) -> None:
    """Check that the result, dense or sparse, has exactly the expected entries."""
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(result.numpy(), expected)
        return
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
        actual = nonzeros(result.indices().numpy(), result.values.numpy(), result.shape)
    else:
        positions = np.flatnonzero(result.numpy())
        actual = positions, result.numpy().ravel()[positions]
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])


# ---- matrices


@pytest.mark.parametrize("format", MATRICES)
@matrices
def test_spmm(name: str, format: str) -> None:
    A = loaded(name)
    B = numbers(A.shape[1], COLUMNS)
    check_equal(ns.einsum("ij,jk->ik", A.to(MATRICES[format]), B), as_scipy(A) @ B.numpy())


@pytest.mark.parametrize("format", MATRICES)
@matrices
def test_sddmm(name: str, format: str) -> None:
    A = loaded(name)
    X, Y = (numbers(size, COLUMNS, seed) for seed, size in enumerate(A.shape))
    result = ns.einsum("ij,ik,jk->ij", A.to(MATRICES[format]), X, Y)
    assert result.format == MATRICES[format]
    rows, columns = A.indices().numpy()
    products = np.concatenate([np.einsum("nk,nk->n", X.numpy()[r], Y.numpy()[c]) for r, c in parts(rows, columns)])
    check_equal(result, nonzeros(np.stack([rows, columns]), A.values.numpy() * products, A.shape))


def parts(rows: np.ndarray, columns: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The coordinates in chunks whose dense rows fit in memory."""
    count = 1 + len(rows) // 100_000
    return list(zip(np.array_split(rows, count), np.array_split(columns, count), strict=True))


@lru_cache(maxsize=2)
def sparse_product(name: str, wide: bool) -> tuple[ns.SparseTensor, Nonzeros]:
    """A second matrix, and SciPy's product with it.

    The second matrix is the first or its transpose, without some columns if the product would be too large.
    """
    A = as_scipy(loaded(name))
    B = (A if A.shape[0] == A.shape[1] else A.T).tocsc()
    work = np.bincount(A.indices, minlength=A.shape[1])[B.indices].sum()
    step = max(1, -(-int(work) // int(STEPS)), -(-A.shape[0] * B.shape[1] // int(STEPS)) if wide else 1)
    B = B[:, :: int(step)].tocsr()
    C = (A @ B).sorted_indices().tocoo()
    return ns.from_scipy(B, ns.CSR), nonzeros(np.stack([C.row, C.col]).astype(np.int64), C.data, C.shape)


@pytest.mark.parametrize(("format", "result"), [*((f, "CSR") for f in MATRICES), *(("CSR", r) for r in RESULTS if r != "CSR")])
@matrices
def test_spgemm(name: str, format: str, result: str) -> None:
    A, (B, expected) = loaded(name), sparse_product(name, result == "dense")
    actual = ns.einsum("ij,jk->ik", A.to(MATRICES[format]), B.to(MATRICES[format]), format=RESULTS[result])
    assert result == "dense" or actual.format == RESULTS[result]
    check_equal(actual, expected)


@pytest.mark.full
@pytest.mark.parametrize("right", MATRICES)
@pytest.mark.parametrize("left", MATRICES)
def test_spgemm_of_two_formats_in_every_format(left: str, right: str) -> None:
    for name in GENERATED:
        A, (B, expected) = loaded(name), sparse_product(name, True)
        for requested in (None, *RESULTS.values()):
            check_equal(ns.einsum("ij,jk->ik", A.to(MATRICES[left]), B.to(MATRICES[right]), format=requested), expected)


# ---- tensors of order 3 and more


def fibre_products(A: ns.SparseTensor, factors: list[torch.Tensor]) -> np.ndarray:
    """MTTKRP by definition: each entry adds the product of the factors' rows to the row of its first coordinate."""
    at = A.indices().numpy()
    rows = prod((f.numpy()[coordinates] for f, coordinates in zip(factors, at[1:], strict=True)), start=np.ones((1, 1)))
    selection = sp.csr_array((A.values.numpy(), (at[0], np.arange(A.nnz))), (A.shape[0], A.nnz))
    return np.asarray(selection @ np.broadcast_to(rows, (A.nnz, RANK)))


@pytest.mark.parametrize("format", TENSORS)
@tensors
def test_mttkrp(name: str, format: str) -> None:
    A = loaded(name)
    modes = "ijklm"[: A.ndim]
    factors = [numbers(size, RANK, seed) for seed, size in enumerate(A.shape[1:])]
    expr = ",".join([modes, *(mode + "r" for mode in modes[1:])]) + "->ir"
    check_equal(ns.einsum(expr, A.to(TENSORS[format](A.ndim)), *factors), fibre_products(A, factors))


def last_mode_product(A: ns.SparseTensor, B: np.ndarray) -> Nonzeros:
    """The product of the last mode and a matrix."""
    at = A.indices().numpy()
    keys, fibre = np.unique(np.ravel_multi_index(tuple(at[:-1]), A.shape[:-1]), return_inverse=True)
    product_matrix = sp.csr_array((A.values.numpy(), (fibre, at[-1])), (len(keys), A.shape[-1])) @ B
    row, column = np.indices(product_matrix.shape).reshape(2, -1)
    return nonzeros(np.stack([keys[row], column]), product_matrix.ravel(), (prod(A.shape[:-1]), B.shape[1]))


@pytest.mark.parametrize("format", TENSORS)
@tensors
def test_ttm(name: str, format: str) -> None:
    """The product of the last mode and a matrix with four columns; large results are sparse."""
    A = loaded(name)
    modes, B = "ijklm"[: A.ndim], numbers(A.shape[-1], 4)
    requested = None if prod(A.shape[:-1]) * 4 <= STEPS else ns.CSF(A.ndim)
    result = ns.einsum(f"{modes},{modes[-1]}r->{modes[:-1]}r", A.to(TENSORS[format](A.ndim)), B, format=requested)
    check_equal(result, last_mode_product(A, B.numpy()))


@pytest.mark.parametrize("format", TENSORS)
@tensors
def test_ttv(name: str, format: str) -> None:
    """The product of the last mode and a vector; large results are sparse."""
    A = loaded(name)
    modes, x = "ijklm"[: A.ndim], numbers(A.shape[-1], 1)
    requested = None if prod(A.shape[:-1]) <= STEPS else ns.CSF(A.ndim - 1)
    result = ns.einsum(f"{modes},{modes[-1]}->{modes[:-1]}", A.to(TENSORS[format](A.ndim)), x[:, 0], format=requested)
    check_equal(result, last_mode_product(A, x.numpy()))
