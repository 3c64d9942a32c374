"""SpMM, SpGEMM, SDDMM, MTTKRP, TTM and TTV, compiled, in every format of the tables: scipy's and numpy's answers.

Values are small integers in float64, so results are compared for equality. Generated matrices and tensors are
always there; real ones, in full, where NUMSCORCH_BENCH_DATA names their folder.
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

STEPS = 1e7  # multiplications of a sparse product, and entries of a dense result: more columns are left out
COLUMNS = 32
RANK = 16
Nonzeros = tuple[np.ndarray, np.ndarray]  # row-major places, ascending, and values


def named(generated: Iterable[str], *folders: str) -> list[Any]:
    """Generated ones, the large ones for full scale, and the real files or one parameter that says how to get them."""
    listed = [pytest.param(name, marks=[pytest.mark.full] * name.startswith("large")) for name in generated]
    without = pytest.param("-", marks=pytest.mark.skip(reason=f"{FOLDER} names no folder with {', '.join(folders)}"))
    return [*listed, *(files(*folders) or [without])]


matrices = pytest.mark.parametrize("name", named(GENERATED, "matrices", "dlmc", "graphs"))
tensors = pytest.mark.parametrize("name", named(GENERATED_TENSORS, "tensors"))


def in_scipy(A: ns.SparseTensor) -> sp.csr_array:
    """A matrix as scipy's CSR, by its coordinates."""
    return sp.csr_array((A.values.numpy(), tuple(A.indices().numpy())), tuple(A.shape))


def nonzeros(indices: np.ndarray, values: np.ndarray, shape: Sequence[int]) -> Nonzeros:
    """What of these entries is not 0."""
    places = np.ravel_multi_index(tuple(indices), tuple(shape))[values != 0]
    values = values[values != 0]
    order = slice(None) if (places[1:] > places[:-1]).all() else np.argsort(places)
    return places[order], values[order]


def same(result: Any, expected: np.ndarray | Nonzeros) -> None:
    """It fails unless the result, dense or sparse, has exactly these entries."""
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(result.numpy(), expected)
        return
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
        found = nonzeros(result.indices().numpy(), result.values.numpy(), result.shape)
    else:
        places = np.flatnonzero(result.numpy())
        found = places, result.numpy().ravel()[places]
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


# -- matrices


@pytest.mark.parametrize("format", MATRICES)
@matrices
def test_spmm(name: str, format: str) -> None:
    A = loaded(name)
    B = numbers(A.shape[1], COLUMNS)
    same(ns.einsum("ij,jk->ik", A.to(MATRICES[format]), B), in_scipy(A) @ B.numpy())


@pytest.mark.parametrize("format", MATRICES)
@matrices
def test_sddmm(name: str, format: str) -> None:
    A = loaded(name)
    X, Y = (numbers(size, COLUMNS, seed) for seed, size in enumerate(A.shape))
    result = ns.einsum("ij,ik,jk->ij", A.to(MATRICES[format]), X, Y)
    assert result.format == MATRICES[format]
    rows, columns = A.indices().numpy()
    products = np.concatenate([np.einsum("nk,nk->n", X.numpy()[r], Y.numpy()[c]) for r, c in parts(rows, columns)])
    same(result, nonzeros(np.stack([rows, columns]), A.values.numpy() * products, A.shape))


def parts(rows: np.ndarray, columns: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The coordinates in parts whose dense rows fit in memory."""
    count = 1 + len(rows) // 100_000
    return list(zip(np.array_split(rows, count), np.array_split(columns, count), strict=True))


@lru_cache(maxsize=2)
def sparse_product(name: str, wide: bool) -> tuple[ns.SparseTensor, Nonzeros]:
    """What a matrix is multiplied by, and scipy's product.

    That is itself or its transpose, without columns where the product would be too large.
    """
    A = in_scipy(loaded(name))
    B = (A if A.shape[0] == A.shape[1] else A.T).tocsc()
    work = np.bincount(A.indices, minlength=A.shape[1])[B.indices].sum()
    step = max(1, -(-int(work) // int(STEPS)), -(-A.shape[0] * B.shape[1] // int(STEPS)) if wide else 1)
    B = B[:, :: int(step)].tocsr()
    made = (A @ B).sorted_indices().tocoo()
    return ns.from_scipy(B, ns.CSR), nonzeros(np.stack([made.row, made.col]).astype(np.int64), made.data, made.shape)


@pytest.mark.parametrize(("format", "result"), [*((f, "CSR") for f in MATRICES), *(("CSR", r) for r in RESULTS if r != "CSR")])
@matrices
def test_spgemm(name: str, format: str, result: str) -> None:
    A, (B, expected) = loaded(name), sparse_product(name, result == "dense")
    made = ns.einsum("ij,jk->ik", A.to(MATRICES[format]), B.to(MATRICES[format]), format=RESULTS[result])
    assert result == "dense" or made.format == RESULTS[result]
    same(made, expected)


@pytest.mark.full
@pytest.mark.parametrize("right", MATRICES)
@pytest.mark.parametrize("left", MATRICES)
def test_spgemm_of_two_formats_in_every_format(left: str, right: str) -> None:
    for name in GENERATED:
        A, (B, expected) = loaded(name), sparse_product(name, True)
        for wanted in (None, *RESULTS.values()):
            same(ns.einsum("ij,jk->ik", A.to(MATRICES[left]), B.to(MATRICES[right]), format=wanted), expected)


# -- tensors of order 3 and more


def fibre_products(A: ns.SparseTensor, factors: list[torch.Tensor]) -> np.ndarray:
    """MTTKRP by its definition: each entry adds the product of its factors' rows to the row of its first coordinate."""
    at = A.indices().numpy()
    rows = prod((f.numpy()[where] for f, where in zip(factors, at[1:], strict=True)), start=np.ones((1, 1)))
    place = sp.csr_array((A.values.numpy(), (at[0], np.arange(A.nnz))), (A.shape[0], A.nnz))
    return np.asarray(place @ np.broadcast_to(rows, (A.nnz, RANK)))


@pytest.mark.parametrize("format", TENSORS)
@tensors
def test_mttkrp(name: str, format: str) -> None:
    A = loaded(name)
    modes = "ijklm"[: A.ndim]
    factors = [numbers(size, RANK, seed) for seed, size in enumerate(A.shape[1:])]
    expr = ",".join([modes, *(mode + "r" for mode in modes[1:])]) + "->ir"
    same(ns.einsum(expr, A.to(TENSORS[format](A.ndim)), *factors), fibre_products(A, factors))


def along_the_last(A: ns.SparseTensor, B: np.ndarray) -> Nonzeros:
    """The last mode times a matrix."""
    at = A.indices().numpy()
    keys, fibre = np.unique(np.ravel_multi_index(tuple(at[:-1]), A.shape[:-1]), return_inverse=True)
    made = sp.csr_array((A.values.numpy(), (fibre, at[-1])), (len(keys), A.shape[-1])) @ B
    row, column = np.indices(made.shape).reshape(2, -1)
    return nonzeros(np.stack([keys[row], column]), made.ravel(), (prod(A.shape[:-1]), B.shape[1]))


@pytest.mark.parametrize("format", TENSORS)
@tensors
def test_ttm(name: str, format: str) -> None:
    """The last mode times a matrix of four columns; the result is sparse where it would be too large."""
    A = loaded(name)
    modes, B = "ijklm"[: A.ndim], numbers(A.shape[-1], 4)
    wanted = None if prod(A.shape[:-1]) * 4 <= STEPS else ns.CSF(A.ndim)
    made = ns.einsum(f"{modes},{modes[-1]}r->{modes[:-1]}r", A.to(TENSORS[format](A.ndim)), B, format=wanted)
    same(made, along_the_last(A, B.numpy()))


@pytest.mark.parametrize("format", TENSORS)
@tensors
def test_ttv(name: str, format: str) -> None:
    """The last mode times a vector; likewise."""
    A = loaded(name)
    modes, x = "ijklm"[: A.ndim], numbers(A.shape[-1], 1)
    wanted = None if prod(A.shape[:-1]) <= STEPS else ns.CSF(A.ndim - 1)
    made = ns.einsum(f"{modes},{modes[-1]}->{modes[:-1]}", A.to(TENSORS[format](A.ndim)), x[:, 0], format=wanted)
    same(made, along_the_last(A, x.numpy()))
