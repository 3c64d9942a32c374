"""Rows collected in a workspace stay in the order of insertion and are sorted once, when an operation needs order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.convert.conversions import converted
from numscorch.ir.format import Format, sorted_format
from numscorch.tensors.validate import validate

UNORDERED = Format("(i, j) -> (i: dense, j: compressed(ordered=False))")


def random_matrix(rows: int, columns: int, seed: int, density: float = 0.2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.integers(1, 5, (rows, columns)) * (rng.random((rows, columns)) < density), np.float64)


def sparse(array: np.ndarray, fmt: Format = ns.CSR) -> ns.SparseTensor:
    return ns.from_torch(torch.from_numpy(array), fmt)


@pytest.fixture
def product(interpreted: None) -> tuple[ns.SparseTensor, np.ndarray]:
    a, b = random_matrix(9, 12, 0), random_matrix(12, 15, 1)
    return sparse(a) @ sparse(b), a @ b


def test_a_product_is_coalesced_but_unordered(product: tuple[ns.SparseTensor, np.ndarray]) -> None:
    result, exact = product
    assert result.format == UNORDERED
    assert result.format.name == "CSR unordered"
    validate(result.pattern)
    crd = result.pattern.level_arrays(1)[1]
    assert not bool((np.diff(crd) > 0).all())
    np.testing.assert_array_equal(result.to_dense(), exact)


def test_sorting_is_cached(product: tuple[ns.SparseTensor, np.ndarray]) -> None:
    result, exact = product
    in_order = result.to(ns.CSR)
    validate(in_order.pattern)
    assert converted(result.pattern, ns.CSR) is converted(result.pattern, ns.CSR)
    assert result.with_values(result.values * 2).to(ns.CSR).pattern is in_order.pattern
    np.testing.assert_array_equal(in_order.to_dense(), exact)


def test_merges_sort_their_operands(product: tuple[ns.SparseTensor, np.ndarray]) -> None:
    result, exact = product
    other = random_matrix(9, 15, 2)
    np.testing.assert_array_equal((result + sparse(other)).to_dense(), exact + other)
    np.testing.assert_array_equal((result * sparse(other)).to_dense(), exact * other)
    np.testing.assert_array_equal(ns.evaluate("R[i,j] = A[i,j] + X[i,j]", A=result, X=torch.from_numpy(other)), exact + other)
    assert (result + sparse(other)).format == ns.CSR


def test_products_and_maps_sort_nothing(product: tuple[ns.SparseTensor, np.ndarray]) -> None:
    result, exact = product
    x = torch.arange(15, dtype=torch.float64)
    np.testing.assert_array_equal(result @ x, exact @ x.numpy())
    np.testing.assert_array_equal((result * 2).to_dense(), exact * 2)
    assert not [key for key in result.pattern.derived if isinstance(key, tuple) and key[0] == "converted"]


def test_requested_formats_are_sorted(interpreted: None) -> None:
    a = random_matrix(9, 9, 3)
    A = sparse(a)
    result = ns.einsum("ij,jk->ik", A, A, format=ns.CSR)
    assert result.format == ns.CSR
    validate(result.pattern)
    native = A.to_torch() @ A.to_torch()
    assert isinstance(ns.einsum("ij,jk->ik", A.to_torch(), A.to_torch()), torch.Tensor)
    np.testing.assert_array_equal(ns.einsum("ij,jk->ik", A.to_torch(), A.to_torch()).to_dense(), native.to_dense())


def test_auto_is_dense_where_the_result_is_nearly_full(interpreted: None) -> None:
    A, B = sparse(random_matrix(40, 40, 5, 0.3)), sparse(random_matrix(40, 40, 6, 0.01))
    assert isinstance(ns.einsum("ij,jk->ik", A, A, format="auto"), torch.Tensor)
    thin = ns.einsum("ij,jk->ik", B, B, format="auto")
    assert isinstance(thin, ns.SparseTensor)
    assert sorted_format(thin.format) == ns.CSR
    assert "of the result would be stored, so it is dense" in str(ns.explain("ij,jk->ik", A, A, format="auto"))
    assert isinstance(ns.einsum("ij,ij->ij", A, A.to_dense(), format="auto"), ns.SparseTensor)


@pytest.mark.parametrize("text", ["A[i,j] - relu(A[i,j])", "A[i,j] + A[i,j]", "A[i,j] * A[i,j] - A[i,j]", "maximum(A[i,j], A[i,j])"])
@pytest.mark.parametrize("fmt", [UNORDERED, Format("(i, j) -> (i: dense, j: hash)")], ids=str)
def test_repeated_operands_need_no_order(text: str, fmt: Format, interpreted: None) -> None:
    array = random_matrix(7, 9, 5)
    A = sparse(array, fmt)
    result = ns.evaluate(f"R[i,j] = {text}", A=A).to_dense()
    assert torch.equal(result, ns.evaluate(f"R[i,j] = {text}", A=torch.from_numpy(array)))
