"""Lists of entries become matrices: sorted ones are adopted, other ones are sorted as integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.convert import conversions
from numscorch.convert.construct import from_coo
from numscorch.ir.format import COO, CSC, CSR, Format
from numscorch.ir.levels import Dense
from numscorch.schedule import tuning
from numscorch.tensors.packing import pack
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import validate

LISTS = [CSR, CSC, ns.DCSR, COO(2), Format("ss", (1, 0)), Format("(i, j) -> (j: compressed(unique=False), i: singleton)")]


@pytest.mark.parametrize("format", LISTS, ids=str)
@pytest.mark.parametrize("count", [0, 1, 60])
@pytest.mark.parametrize("order", ["by rows", "by columns", "shuffled", "repeated", "repeated by rows"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_entries_in_any_order(format: Format, count: int, order: str, index_dtype: torch.dtype) -> None:
    rng, shape = np.random.default_rng(count), (30, 17)  # some rows stay empty
    places = rng.choice(shape[0] * shape[1] // 2, count, replace=order.startswith("repeated"))
    rows, columns = np.divmod(places if order in ("shuffled", "repeated") else np.sort(places), shape[1])
    if order == "by columns":
        by_columns = np.lexsort((rows, columns))
        rows, columns = rows[by_columns], columns[by_columns]
    indices = torch.from_numpy(np.stack([rows, columns])).to(index_dtype)
    values = torch.from_numpy(rng.integers(-2, 3, count)).double().requires_grad_()
    A = from_coo(indices, values, shape, format)
    validate(A.pattern)
    assert A.format == format
    assert A.pattern.index_dtype == ("int64" if index_dtype is torch.int64 and format.levels == COO(2).levels else "int32")
    assert A.nnz == len(set(places.tolist())), "zeros and sums that cancel stay stored"
    expected = torch.zeros(shape, dtype=torch.float64).index_put((indices[0].long(), indices[1].long()), values, accumulate=True)
    assert torch.equal(A.to_dense(), expected)
    weights = torch.from_numpy(rng.random(shape))
    (gradient,) = torch.autograd.grad((A.to_dense() * weights).sum(), values)
    assert torch.equal(gradient, weights[indices[0].long(), indices[1].long()])


@pytest.mark.parametrize("format", LISTS, ids=str)
def test_nan_and_coordinates_beyond_63_bits(format: Format) -> None:
    A = from_coo([[1, 0, 1], [2, 2, 0]], [float("nan"), 1.0, 2.0], (2, 3), format)
    assert torch.equal(A.to_dense().isnan(), torch.tensor([[False, False, False], [False, False, True]]))
    wide = (1 << 40, 1 << 40)
    if not any(level == Dense() for level in format.levels):
        B = from_coo([[1 << 39, 5, 5], [7, 1 << 38, 7]], [1.0, 2.0, 3.0], wide, format)
        assert sorted(zip(*B.indices().tolist(), strict=True)) == [(5, 7), (5, 1 << 38), (1 << 39, 7)]


@pytest.mark.parametrize("coordinate", [-1, 3, -(1 << 31), 1 << 33])
@pytest.mark.parametrize("format", [COO(2), CSR])
def test_coordinates_out_of_range_are_found_before_they_are_narrowed(coordinate: int, format: Format) -> None:
    with pytest.raises(ns.FormatError, match=rf"entry 1 has coordinate {coordinate} in dimension 1, which has size 3"):
        from_coo(torch.tensor([[0, 1], [0, coordinate]]), [1.0, 2.0], (2, 3), format)


def test_sorted_lists_are_shared_with_rows() -> None:
    indices, values = torch.tensor([[0, 2, 2], [1, 0, 3]], dtype=torch.int32), torch.ones(3)
    A = from_coo(indices, values, (4, 5), CSR, copy=False)
    assert A.pattern.arrays[1][1].data_ptr() == indices[1].data_ptr()
    assert A.values.data_ptr() == values.data_ptr()
    assert from_coo(indices, values, (4, 5), CSR).pattern.arrays[1][1].data_ptr() != indices[1].data_ptr()
    strided = torch.tensor([[0, 1], [2, 0], [2, 3]], dtype=torch.int32).T
    validate(from_coo(strided, values, (4, 5), CSR).pattern)


@pytest.mark.parametrize("nnz", [40, 4000])
def test_copies_of_ordered_entries_need_no_statistics(nnz: int, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "COMPILE_ENTRIES", 0)
    keys = np.unique(np.random.default_rng(0).integers(0, 500 * 300, nnz))
    A = from_coo(np.stack(np.divmod(keys, 300)), torch.arange(len(keys)), (500, 300), CSR)
    expected = A.to(ns.COO(2)).to_dense()
    for format in (CSC, ns.BCSR(4, 4), None):
        B = A.to_dense() if format is None else A.to(format).to_dense()
        assert torch.equal(B, expected)
    assert not A.pattern.derived.keys() & {"spreads", "samples", "long"}


def test_the_longest_row_chooses_the_workspace_of_unordered_rows(fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "COMPILE_ENTRIES", 0)
    unordered = Format("(i, j) -> (i: dense, j: compressed(ordered=False))")
    columns = torch.from_numpy(np.random.default_rng(0).permutation(200))
    pattern = ns.tensors.pattern.Pattern(unordered, (3, 200), ((), (torch.tensor([0, 0, 200, 200]), columns)))
    A = conversions.copied(ns.SparseTensor(pattern, torch.arange(200)), CSR)
    assert A.pattern.arrays[1][1].tolist() == list(range(200))
    assert A.values.tolist() == columns.argsort().tolist()
    assert not pattern.derived.keys() & {"spreads", "samples"}


BLOCKS = (
    ns.BCSR(2, 3),
    ns.BCSR(1, 4),
    ns.Format("(i, j) -> (j // 2: compressed, i: dense, j % 2: dense)"),
    ns.Format("sd"),
    ns.Format("dd"),
)


@pytest.mark.parametrize("format", BLOCKS, ids=str)
@pytest.mark.parametrize("count", [0, 1, 60])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_offsets_in_dense_levels_are_not_sorted(format: ns.Format, count: int, index_dtype: Any) -> None:
    """Entries in any order, some of them twice, get the same places as in the dense matrix."""
    generator = np.random.default_rng(count)
    indices = np.stack([generator.integers(0, size, count) for size in (7, 11)])
    pattern, slots, order = pack(indices, (7, 11), format, index_dtype)
    validate(pattern)
    values = torch.arange(1.0, count + 1)
    stored = torch.zeros(pattern.nnz).index_add_(0, torch.from_numpy(slots), values[torch.from_numpy(order)])
    expected = torch.zeros(7, 11).index_put((*torch.from_numpy(indices),), values, accumulate=True)
    assert torch.equal(ns.SparseTensor(pattern, stored).to_dense(), expected)
    assert count < 60 or pattern.index_dtype == np.dtype(index_dtype).name or not any(map(len, pattern.arrays))


@pytest.mark.parametrize("format", [ns.COO(2), ns.CSR, ns.CSC, ns.BCSR(2, 2)], ids=str)
@pytest.mark.parametrize("is_array", [False, True])
@pytest.mark.parametrize("columns", [[2, 0, 3], [2, 3, 0]])
def test_coordinates_are_copied(format: ns.Format, is_array: bool, columns: list[int]) -> None:
    indices, values = torch.tensor([[0, 1, 1], columns]), torch.tensor([1.0, 2.0, 3.0])
    given = (indices.numpy(), values.numpy()) if is_array else (indices, values)
    A = ns.from_coo(given[0], given[1], (2, 4), format)
    expected = A.to_dense().clone()
    indices.zero_()
    if is_array:
        values.zero_()
    fresh = ns.SparseTensor(Pattern(A.format, A.pattern.shape, A.pattern.arrays), A.values)
    assert torch.equal(fresh.to_dense(), expected)
