"""Entries that are put in order by the numbers of their coordinates: as kernels and lists of coordinates order them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.convert.resorting import resorted
from numscorch.schedule import tuning
from numscorch.tensors import packing
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import validate

ANY_ORDER = ns.Format("(i, j) -> (i: dense, j: compressed(ordered=False))")


def shuffled(rows: int, columns: int, nnz: int, dtype: torch.dtype = torch.int32) -> ns.SparseTensor:
    """Rows of entries in any order, some of them empty."""
    generator = np.random.default_rng(nnz)
    numbers = generator.choice(rows * columns, nnz, replace=False)
    row, column = np.divmod(numbers[np.argsort(numbers // columns, kind="stable")], columns)
    pos = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    pattern = Pattern(ANY_ORDER, (rows, columns), ((), (torch.from_numpy(pos).to(dtype), torch.from_numpy(column).to(dtype))))
    return ns.SparseTensor(pattern, torch.from_numpy(generator.standard_normal(nnz)))


def is_same(one: ns.SparseTensor, other: ns.SparseTensor) -> bool:
    """Whether formats, index arrays with their types, and values are the same."""
    return (
        one.pattern.stores_as(other.pattern)
        and one.pattern.index_dtype == other.pattern.index_dtype
        and torch.equal(one.values, other.values)
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("rows", "columns", "nnz"), [(7, 5, 20), (300, 4, 30), (1, 50, 50), (5, 3, 0), (40, 1000, 3000)])
@pytest.mark.parametrize("format", [ns.CSR, ns.CSC])
def test_order_is_that_of_packed_coordinates(rows: int, columns: int, nnz: int, dtype: torch.dtype, format: ns.Format) -> None:
    A = shuffled(rows, columns, nnz, dtype)
    found = A.to(format)
    pattern, _, order = packing.pack(A.indices().numpy(), A.pattern.shape, format, A.pattern.index_dtype)
    validate(found.pattern)
    assert is_same(found, ns.SparseTensor(pattern, A.values[torch.from_numpy(order)]))


def test_sorted_rows_share_where_they_start() -> None:
    A = shuffled(6, 9, 20)
    assert ns.sort(A).pattern.arrays[1][0] is A.pattern.arrays[1][0]


def test_repeated_coordinates_are_summed_each_time() -> None:
    pos, crd = torch.tensor([0, 4, 4]), torch.tensor([2, 0, 2, 1])
    A = ns.SparseTensor(Pattern(ANY_ORDER, (2, 3), ((), (pos, crd))), torch.tensor([1.0, 2.0, 4.0, 8.0]))
    for times in (1.0, 2.0):
        found = ns.sort(A.with_values(A.values * times))
        assert found.format == ns.CSR
        assert found.values.tolist() == [2.0 * times, 8.0 * times, 5.0 * times]


def test_numbers_that_do_not_fit_are_sorted_otherwise() -> None:
    shape = 4, 1 << 61
    crd = torch.tensor([5, 1 << 60, 3, 4, 1])
    A = ns.SparseTensor(Pattern(ANY_ORDER, shape, ((), (torch.tensor([0, 2, 2, 3, 5]), crd))), torch.arange(5.0))
    assert resorted(A.pattern, ns.CSR) is None
    assert ns.sort(A).pattern.arrays[1][1].tolist() == [5, 1 << 60, 3, 1, 4]
    assert ns.sort(A).values.tolist() == [0.0, 1.0, 2.0, 4.0, 3.0]


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC])
def test_gradients_flow_through_the_order(format: ns.Format) -> None:
    A = shuffled(6, 9, 20)
    values = A.values.clone().requires_grad_()
    weights = torch.arange(20.0, dtype=torch.float64)
    (A.with_values(values).to(format).values * weights).sum().backward()
    expected = torch.empty_like(weights)
    numbers = A.with_values(torch.arange(20)).to(format).values
    expected[numbers] = weights
    assert torch.equal(values.grad, expected)  # type: ignore[arg-type]


def test_kernels_order_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    A = shuffled(30, 40, 200).to(ns.CSR)
    sorted_whole = A.to(ns.CSC)
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", 0)
    fresh = ns.SparseTensor(Pattern(A.format, A.pattern.shape, A.pattern.arrays), A.values)
    assert is_same(sorted_whole, fresh.to(ns.CSC))
    assert ("moved", ns.CSC) in fresh.pattern.derived


def test_many_rows_of_a_list_share_its_columns() -> None:
    A = ns.from_coo([[7, 90_000], [3, 0]], [1.0, 2.0], (100_000, 100_000))
    found = A.to(ns.CSR)
    assert found.pattern.arrays[1][1] is A.pattern.arrays[1][0]
    assert found.pattern.arrays[1][0][[7, 8, 90_000, 90_001, 100_000]].tolist() == [0, 1, 1, 2, 2]
    validate(found.pattern)
