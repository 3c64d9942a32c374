"""Matrices that NumPy converts: rows counted or repeated, entries sorted by linear index, small dense matrices listed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.convert import conversions
from numscorch.convert.construct import assemble
from numscorch.convert.matrices import can_regroup, nonzeros_of_few, sorts
from numscorch.convert.values import as_stored
from numscorch.schedule import tuning
from numscorch.tensors import packing
from numscorch.tensors.coordinate_order import sorted_columns
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import validate

FORMATS = (ns.COO(2), ns.CSR, ns.DCSR)
COLUMNS = (ns.Format("oo", (1, 0)), ns.CSC, ns.DCSC)
ANY_ORDER = ns.Format("(i, j) -> (i: dense, j: compressed(ordered=False))")


def dense(rows: int, columns: int) -> torch.Tensor:
    """A matrix with empty rows, including the first and the last."""
    generator = torch.Generator().manual_seed(rows)
    values = torch.randint(1, 9, (rows, columns), generator=generator) * (torch.rand(rows, columns, generator=generator) < 0.3)
    values[::3] = 0
    values[-1:] = 0
    return values.float()


@pytest.mark.parametrize("formats", [FORMATS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", [(10, 7), (1, 4), (7, 1), (3, 0), (0, 3)])
def test_every_pair(shape: tuple[int, int], formats: tuple[ns.Format, ...], plain: pytest.MonkeyPatch) -> None:
    values = dense(*shape)
    for source in formats:
        A = ns.from_torch(values, source)
        for target in formats:
            B = A.to(target)
            validate(B.pattern)
            assert B.format == target
            assert torch.equal(B.to_dense(), values)
            if source != target:
                assert can_regroup(source, target)
                assert B.pattern.arrays[1][-1].data_ptr() == A.pattern.arrays[1][-1].data_ptr()


def test_values_are_shared_as_in_torch(plain: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(dense(6, 6), ns.COO(2))
    native = A.to_torch()
    assert native.to_sparse_csr().values().data_ptr() == native.values().data_ptr()
    for _ in range(2):
        assert A.to(ns.CSR).values is A.values
    values = A.values.clone().requires_grad_()
    A.with_values(values).to(ns.CSR).values.sum().backward()
    assert torch.equal(values.grad, torch.ones_like(values))


def test_other_pairs_are_not_regrouped() -> None:
    for source, target in ((ns.CSR, ns.CSC), (ns.CSR, ns.BCSR(2, 2)), (ns.COO(3), ns.CSF(3)), (ns.CSR, ns.Format("ds", (1, 0)))):
        assert not can_regroup(source, target)


def test_hypersparse_rows_are_not_counted(plain: pytest.MonkeyPatch) -> None:
    """Counting takes one number per row, so it pays off only with about as many rows as entries."""
    H = ns.from_coo([[0, 10**9], [5, 7]], [1.0, 2.0], (10**9 + 1, 8), format=ns.COO(2))
    assert not conversions.shares(ns.COO(2), ns.DCSR, H.pattern.shape, 2)
    assert H.to(ns.DCSR).values.tolist() == [1.0, 2.0]


def shuffled(rows: int, columns: int, nnz: int, dtype: torch.dtype = torch.int32) -> ns.SparseTensor:
    """A matrix with unordered rows, some of them empty."""
    generator = np.random.default_rng(nnz)
    numbers = generator.choice(rows * columns, nnz, replace=False)
    row, column = np.divmod(numbers[np.argsort(numbers // columns, kind="stable")], columns)
    pos = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    pattern = Pattern(ANY_ORDER, (rows, columns), ((), (torch.from_numpy(pos).to(dtype), torch.from_numpy(column).to(dtype))))
    return ns.SparseTensor(pattern, torch.from_numpy(generator.standard_normal(nnz)))


def is_same(one: ns.SparseTensor, other: ns.SparseTensor) -> bool:
    """Whether formats, index arrays with their types, and values are equal."""
    return (
        one.pattern.stores_as(other.pattern)
        and one.pattern.index_dtype == other.pattern.index_dtype
        and torch.equal(one.values, other.values)
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("rows", "columns", "nnz"), [(7, 5, 20), (300, 4, 30), (1, 50, 50), (5, 3, 0), (40, 1000, 3000)])
@pytest.mark.parametrize("format", [ns.CSR, ns.CSC])
def test_the_order_equals_that_of_packed_coordinates(rows: int, columns: int, nnz: int, dtype: torch.dtype, format: ns.Format) -> None:
    A = shuffled(rows, columns, nnz, dtype)
    result = A.to(format)
    pattern, _, order = packing.pack(A.indices().numpy(), A.pattern.shape, format, A.pattern.index_dtype)
    validate(result.pattern)
    assert is_same(result, ns.SparseTensor(pattern, A.values[torch.from_numpy(order)]))


def test_sorted_rows_share_the_position_array() -> None:
    A = shuffled(6, 9, 20)
    assert ns.sort(A).pattern.arrays[1][0] is A.pattern.arrays[1][0]


def test_duplicate_coordinates_are_summed_for_each_values_array() -> None:
    pos, crd = torch.tensor([0, 4, 4]), torch.tensor([2, 0, 2, 1])
    A = ns.SparseTensor(Pattern(ANY_ORDER, (2, 3), ((), (pos, crd))), torch.tensor([1.0, 2.0, 4.0, 8.0]))
    for times in (1.0, 2.0):
        result = ns.sort(A.with_values(A.values * times))
        assert result.format == ns.CSR
        assert result.values.tolist() == [2.0 * times, 8.0 * times, 5.0 * times]


def test_linear_indices_beyond_int64_are_avoided() -> None:
    shape = 4, 1 << 61
    crd = torch.tensor([5, 1 << 60, 3, 4, 1])
    A = ns.SparseTensor(Pattern(ANY_ORDER, shape, ((), (torch.tensor([0, 2, 2, 3, 5]), crd))), torch.arange(5.0))
    assert not sorts(A.pattern, ns.CSR)
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


def test_kernels_give_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    A = shuffled(30, 40, 200).to(ns.CSR)
    sorted_whole = A.to(ns.CSC)
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", 0)
    fresh = ns.SparseTensor(Pattern(A.format, A.pattern.shape, A.pattern.arrays), A.values)
    assert is_same(sorted_whole, fresh.to(ns.CSC))
    assert ("moved", ns.CSC) in fresh.pattern.derived


@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize("is_repeated", [False, True])
def test_sorting_by_kernels_finds_repeated_coordinates(is_repeated: bool, has_gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", 0)
    A = shuffled(30, 40, 200)
    pos, crd = A.pattern.arrays[1]
    crd = crd // 4 if is_repeated else crd
    rows = torch.arange(30).repeat_interleave(pos.diff())
    values = torch.randn(200, dtype=torch.float64, requires_grad=has_gradient)
    weights = torch.randn(30, 40, dtype=torch.float64)
    expected = torch.zeros(30, 40, dtype=torch.float64).index_put((rows, crd.long()), values, accumulate=True)
    A = ns.SparseTensor(Pattern(ANY_ORDER, (30, 40), ((), (pos, crd))), values)
    for _ in range(2):  # the second call uses what the first one found out
        result = ns.sort(A)
        validate(result.pattern)
        torch.testing.assert_close(result.to_dense(), expected)
        assert (result.nnz < 200) == is_repeated
        if has_gradient:
            ours, theirs = (torch.autograd.grad((t * weights).sum(), values, retain_graph=True)[0] for t in (result.to_dense(), expected))
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("format", [ns.CSR, ns.DCSR, ns.COO(2)], ids=lambda format: format.name)
def test_a_gradient_in_the_same_format_stays_in_order(format: ns.Format) -> None:
    one, other = (ns.from_coo([[0, 0, 2], [0, 1, 1]], [1.0, 2.0, 3.0], (3, 2), format) for _ in range(2))
    assert one.pattern is not other.pattern
    assert as_stored(one, other.pattern).tolist() == [1.0, 2.0, 3.0]


def test_hypersparse_coo_shares_its_columns_with_csr() -> None:
    A = ns.from_coo([[7, 90_000], [3, 0]], [1.0, 2.0], (100_000, 100_000))
    result = A.to(ns.CSR)
    assert result.pattern.arrays[1][1] is A.pattern.arrays[1][0]
    assert result.pattern.arrays[1][0][[7, 8, 90_000, 90_001, 100_000]].tolist() == [0, 1, 1, 2, 2]
    validate(result.pattern)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bool, torch.int8, torch.complex64])
@pytest.mark.parametrize(
    ("shape", "format"), [((5,), ns.COO(1)), ((6, 4), ns.CSR), ((6, 4), ns.DCSR), ((1, 9), ns.COO(2)), ((3, 2, 4), ns.COO(3))]
)
def test_nonzeros_equal_those_of_packing(shape: tuple[int, ...], format: ns.Format, dtype: torch.dtype) -> None:
    full = (torch.arange(float(torch.Size(shape).numel())).reshape(shape) % 3).to(dtype)
    entries = full.nonzero().T
    packed = assemble(entries.numpy(), full[tuple(entries)], shape, format)
    assert nonzeros_of_few(full, format) is not None
    result = ns.from_torch(full, format)
    validate(result.pattern)
    assert result.pattern.stores_as(packed.pattern) and result.pattern.index_dtype == packed.pattern.index_dtype
    assert torch.equal(result.values, packed.values)


def test_nan_is_stored_and_negative_zero_is_not() -> None:
    result = ns.from_torch(torch.tensor([[float("nan"), -0.0], [0.0, 2.0]]))
    assert result.indices().tolist() == [[0, 1], [0, 1]]
    assert result.values[0].isnan()


def test_values_are_a_row_major_copy_for_any_strides() -> None:
    full = torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0]]).t()
    result = ns.from_torch(full)
    full.mul_(2.0)
    assert result.values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert result.indices().tolist() == [[0, 1, 1, 2], [0, 0, 1, 1]]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_shapes_without_entries(shape: tuple[int, int]) -> None:
    result = ns.from_torch(torch.zeros(shape))
    validate(result.pattern)
    assert result.nnz == 0


def test_other_formats_and_types_are_packed() -> None:
    full = torch.eye(3)
    assert nonzeros_of_few(full, ns.CSC) is None
    assert nonzeros_of_few(full.bfloat16(), ns.CSR) is None
    assert nonzeros_of_few(torch.zeros(tuning.LISTED_VALUES + 1, 1), ns.CSR) is None
    assert ns.from_torch(full.bfloat16()).nnz == 3


def test_gradients_flow_to_the_dense_tensor() -> None:
    full = torch.eye(3, requires_grad=True)
    ns.from_torch(full).values.sum().backward()
    assert torch.equal(full.grad, torch.eye(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [0, 1, 50, 3000])
@pytest.mark.parametrize("sizes", [(7,), (1 << 16,), ((1 << 16) + 1,), (3, 1 << 16), (40, 2, 9)])
@pytest.mark.parametrize("most", [0, tuning.RADIX_SORTED, 1 << 30], ids=["keys", "tuned", "radix"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_columns_are_sorted_stably(n: int, sizes: tuple[int, ...], most: int, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "RADIX_SORTED", most)
    generator = np.random.default_rng(n)
    columns = [generator.integers(0, min(size, np.iinfo(dtype).max + 1), n).astype(dtype) for size in sizes]
    ordered, order = sorted_columns(columns, sizes)
    assert order.tolist() == np.lexsort(columns[::-1]).tolist()
    for before, after in zip(columns, ordered, strict=True):
        assert after.tolist() == before[order].tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("columns", [5, 70_000])
def test_few_entries_of_any_size_are_transposed_and_sorted(dtype: torch.dtype, columns: int) -> None:
    """Columns of 16 bits are sorted by radix, others by keys; rows are empty, unsorted, and long."""
    generator = torch.Generator().manual_seed(columns)
    counts = torch.tensor([0, 5, 0, 1, 4, 0])
    crd = torch.cat([torch.randperm(columns, generator=generator)[:count] for count in counts])
    pos = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    A = ns.SparseTensor(Pattern(ANY_ORDER, (6, columns), ((), (pos.to(dtype), crd.to(dtype)))), torch.arange(1.0, 11.0))
    expected = A.to_dense()
    for result in (ns.sort(A), ns.sort(A).to(ns.CSC), A.to(ns.CSC), ns.sort(A).to(ns.COO(2))):
        validate(result.pattern)
        assert result.pattern.index_dtype == str(dtype).removeprefix("torch.")
        assert torch.equal(result.to_dense(), expected)
