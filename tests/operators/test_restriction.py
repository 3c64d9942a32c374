"""Selections, joins and dropped zeros that restrict index arrays level by level, compared with dense torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.convert import row_selection
from numscorch.ir.assembled import in_storage_order, visits_once
from numscorch.ir.format import Format
from numscorch.ir.index import IndexVar, TensorVar, accesses_in
from numscorch.ir.notation import parse_stmt
from numscorch.operators import joining
from numscorch.schedule import tuning
from numscorch.tensors.coordinate_order import sorting
from numscorch.tensors.packing import coordinates, pack
from numscorch.tensors.restriction import counted_before, has_fibres
from numscorch.tensors.validate import validate

LISTED_BY_COLUMNS = "(i, j) -> (j: compressed(unique=False), i: singleton)"
BATCH_OF_LISTS = "(i, j, k) -> (i: dense, j: compressed(unique=False), k: singleton)"
FORMATS = {
    2: ["CSR", "CSC", "COO(2)", "DCSR", "DCSC", "do", "dd", LISTED_BY_COLUMNS, "BCSR(2, 2)"],
    3: ["dds", "dss", "CSF(3)", "COO(3)", BATCH_OF_LISTS, "sds", "(i, j, k) -> (k: dense, i: compressed, j: compressed)"],
}


def drawn(numbers: np.random.Generator, fmt: str, order: int) -> tuple[ns.SparseTensor, torch.Tensor]:
    """A random tensor, some of whose stored values are 0, with empty rows and columns, as SparseTensor and dense."""
    shape = tuple(numbers.integers(0 if numbers.random() < 0.1 else 1, 9, order))
    full = torch.from_numpy(numbers.uniform(1, 2, shape) * (numbers.random(shape) < numbers.choice([0.1, 0.4, 0.9])))
    if fmt == "do":
        full = torch.diag(torch.arange(1.0, 6.0))
    A = ns.from_torch(full, fmt)
    kept = torch.from_numpy(numbers.random(len(A.values)) < 0.8)
    A = A.with_values(torch.where(kept, A.values, 0)).to(A.format)
    if numbers.random() < 0.3:
        A = wide(A)
    return A, A.to_dense()


def wide(A: ns.SparseTensor) -> ns.SparseTensor:
    """The tensor with int64 index arrays."""
    arrays = tuple(tuple(array.long() for array in level) for level in A.pattern.arrays)
    return ns.SparseTensor(type(A.pattern)(A.format, A.pattern.shape, arrays), A.values)


def check_arrays(A: ns.SparseTensor) -> None:
    """The arrays are valid, and those of the packed entries: no level keeps coordinates without entries."""
    validate(A.pattern)
    packed = pack(coordinates(A.pattern).numpy(), A.pattern.shape, A.format, A.pattern.index_dtype)[0]
    for array, expected in zip(A.pattern.views, packed.views, strict=True):
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)


def key_of(numbers: np.random.Generator, size: int) -> Any:
    """A random index of one dimension that keeps it."""
    start, stop = numbers.integers(-size - 1, size + 2, 2).tolist()
    at = (
        torch.from_numpy(numbers.integers(-size, size, int(numbers.integers(0, 2 * size + 1))))
        if size
        else torch.zeros(0, dtype=torch.long)
    )
    mask = torch.from_numpy(numbers.random(size) < 0.5)
    return random.Random(int(numbers.integers(1 << 30))).choice(
        [slice(None), slice(start, stop), slice(start, None, int(numbers.integers(1, 4))), at, at.int(), at.unique(), mask]
    )


@pytest.mark.parametrize("fmt", [*FORMATS[2], *FORMATS[3]])
def test_selections_of_every_dimension(fmt: str, scale: Callable[[int], int], interpreted: None) -> None:
    numbers, order = np.random.default_rng(0), 3 if fmt in FORMATS[3] else 2
    for _ in range(scale(1000)):
        A, full = drawn(numbers, fmt, order)
        key = [key_of(numbers, size) if numbers.random() < 0.7 else slice(None) for size in A.shape]
        if sum(isinstance(k, torch.Tensor) for k in key) > 1:
            key = [k if isinstance(k, slice) or d == 0 else slice(None) for d, k in enumerate(key)]
        d = int(numbers.integers(order))
        if A.shape[d] and numbers.random() < 0.3 and not any(isinstance(k, torch.Tensor) for k in key):
            key[d] = int(numbers.integers(A.shape[d]))
        B = A.with_values(A.values.clone().requires_grad_())
        result, expected = B[tuple(key)], full[tuple(key)]
        assert torch.equal(as_dense(result).detach(), expected), (fmt, key, full)
        if isinstance(result, ns.SparseTensor):
            check_arrays(result)
            assert result.pattern.index_dtype == A.pattern.index_dtype or not A.pattern.arrays[-1]
            weights = torch.from_numpy(numbers.random(tuple(expected.shape)))
            (result.to_dense() * weights).sum().backward()
            leaf = full.clone().requires_grad_()
            (leaf[tuple(key)] * weights).sum().backward()
            torch.testing.assert_close(B.grad.to_dense(), leaf.grad * (A.with_values(torch.ones_like(A.values)).to_dense() != 0))


@pytest.mark.parametrize("fmt", ["CSR", "CSC", "COO(2)", "DCSR", "BCSR(2, 2)", "dd"])
def test_index_tensors_that_form_an_outer_product_select_a_matrix(fmt: str, interpreted: None) -> None:
    full = torch.tensor([[0.0, 2.0, 0.0, 5.0], [3.0, 0.0, 4.0, 0.0], [0.0, 0.0, 7.0, 0.0]])
    A, rows, columns = ns.from_torch(full, fmt), torch.tensor([2, 0, -3]), torch.tensor([3, 1, 1, 2])
    for key in [
        np.ix_(rows.numpy(), columns.numpy()),
        (rows[:, None], columns),
        (rows[:, None], columns[None]),
        (rows[:, None], [1]),
        ([[0]], columns),
        (rows[:0, None], columns),
        np.ix_([True, False, True], [False, True, True, False]),
    ]:
        result, expected = A[key], full[tuple(torch.as_tensor(part) for part in key)]
        assert isinstance(result, ns.SparseTensor)
        assert result.format == A[:2].format
        assert torch.equal(result.to_dense(), expected)
    for key in [(rows, columns[:3]), (rows[None], columns[:, None]), (rows[:, None], columns[:3].expand(3, 3))]:
        assert isinstance(A[key], torch.Tensor)
        assert torch.equal(A[key], full[key])
    B = ns.from_torch(torch.stack([full, 2 * full]), "COO(3)")
    assert torch.equal(B[:, rows[:, None], columns].to_dense(), B.to_dense()[:, rows[:, None], columns])
    assert torch.equal(B[1, rows[:, None], columns].to_dense(), B.to_dense()[1, rows[:, None], columns])
    assert torch.equal(as_dense(B[torch.tensor([[1], [0]]), :, columns]), B.to_dense()[torch.tensor([[1], [0]]), :, columns])


def test_an_outer_product_is_assigned() -> None:
    A = ns.from_torch(torch.ones(3, 4))
    A[torch.tensor([[0], [2]]), torch.tensor([1, 3])] = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    assert A.to_dense().tolist() == [[1, 5, 1, 6], [1, 1, 1, 1], [1, 7, 1, 8]]
    B = ns.from_coo([[0, 99_999], [3, 5]], [1.0, 2.0], (100_000, 100_000), ns.CSR)
    every = torch.arange(100_000)
    B[every[:, None], every] = 0.0
    assert B.values.tolist() == [0, 0]


@pytest.mark.parametrize("dim", [0, 1])
def test_lists_select_from_huge_dimensions(dim: int, interpreted: None) -> None:
    """Dimensions with more coordinates than memory holds are searched, not tabulated."""
    A = ns.from_coo([[0, 1, 2**40, 2**62], [5, 2**61, 3, 5]], [1.0, 2.0, 3.0, 4.0], (2**62 + 1, 2**62), ns.DCSR)
    A = A if dim == 0 else A.t()
    picked = torch.tensor([2**62, 7, 0, 2**62])
    chosen = A.index_select(dim, picked)
    chosen = chosen if dim == 0 else chosen.t()
    assert torch.equal(
        chosen[:, :6].to_dense(), torch.tensor([[0, 0, 0, 0, 0, 4.0], [0.0] * 6, [0, 0, 0, 0, 0, 1.0], [0, 0, 0, 0, 0, 4.0]])
    )
    assert chosen[:, 1::2].shape == (4, 2**61)
    assert chosen[:, 1::2].values.tolist() == [4, 1, 4]


def test_too_many_repeated_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_MEMORY_LIMIT", "1G")
    A, repeated = ns.from_torch(torch.ones(1, 1 << 13)), torch.zeros(1 << 17, dtype=torch.long)
    for B, dim in ((A, 0), (A.t(), 1), (A.to(ns.DCSR), 0), (A.to(ns.CSC), 0)):
        with pytest.raises(ns.SizeError, match=r"(?s)the result, of \d+ entries, takes .* index in parts, each of fewer numbers"):
            B.index_select(dim, repeated)


@pytest.mark.parametrize("fmt", ["CSR", "COO(2)", "DCSR", "CSC"])
def test_few_entries_of_many_rows(fmt: str) -> None:
    full = torch.zeros(3000, 5)
    full[[7, 8, 2999], [3, 1, 3]] = torch.tensor([1.0, 2.0, 3.0])
    full[:, 4] = 5
    A = ns.from_torch(full, fmt)
    assert torch.equal(A[:, 3].to_dense(), full[:, 3])
    assert torch.equal(A[:, 1:4].to_dense(), full[:, 1:4])
    check_arrays(A[:, torch.tensor([3, 1])])


@pytest.mark.parametrize("fmt", FORMATS[2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool])
def test_single_entries_are_copies_with_gradients(fmt: str, dtype: torch.dtype) -> None:
    full = (torch.arange(35) % 3).reshape(5, 7).to(dtype)
    A = ns.from_torch(full, fmt)
    A.values[0] = 0
    full = A.to_dense()
    values = A.values.clone().requires_grad_(dtype.is_floating_point)
    B = A.with_values(values)
    for i, j in np.ndindex(5, 7):
        entry = B[i, j]
        assert entry.dtype == dtype and entry.shape == () and torch.equal(entry.detach(), full[i, j])
        if dtype.is_floating_point:
            (gradient,) = torch.autograd.grad(entry, values)
            assert (gradient * values).sum() == entry
        entry.detach().fill_(2)
    assert torch.equal(B.to_dense(), full)


def test_single_entries_may_be_nan_or_minus_zero() -> None:
    A = ns.from_coo([[0, 1], [1, 0]], [float("nan"), -0.0], (2, 2), ns.CSR)
    assert A[0, 1].isnan() and A[0, 0] == 0
    assert A[1, 0].signbit() and not A[1, 1].signbit()


def test_a_selection_keeps_no_memory_of_the_tensor() -> None:
    A = ns.from_torch(torch.ones(50, 50))
    for part in (A[3], A[3:5], A.t()[:, 3], A.to(ns.COO(2))[:40, :2]):
        for array in part.pattern.views:
            assert not isinstance(array.base, np.ndarray) or array.base.size == array.size
            assert not any(np.shares_memory(array, whole) for whole in A.pattern.views)


@pytest.mark.parametrize("level", ["compressed(bits=8)", "compressed(bits=16)"])
def test_narrow_coordinates_stay_narrow(level: str) -> None:
    full = torch.eye(20) + torch.eye(20).roll(3, 1)
    A = ns.from_torch(full, f"(i, j) -> (i: dense, j: {level})")
    for key in (slice(2, 7), torch.tensor([3, 3, 0]), slice(None, None, 3)):
        assert A[:, key].format == A.format
        assert torch.equal(A[:, key].to_dense(), full[:, key])
    assert torch.equal(torch.nn.functional.pad(A, (2, 1)).to_dense(), torch.nn.functional.pad(full, (2, 1)))
    if level == "compressed(bits=8)":
        with pytest.raises(ns.FormatError, match="8-bit coordinates, but a size of 300"):
            A[:, torch.zeros(300, dtype=torch.long)]


# ---- masks


@pytest.mark.parametrize("fmt", [*FORMATS[2], *FORMATS[3]])
def test_a_mask_of_the_same_entries(fmt: str, interpreted: None) -> None:
    numbers = np.random.default_rng(1)
    for _ in range(10):
        A, full = drawn(numbers, fmt, 3 if fmt in FORMATS[3] else 2)
        for mask in (A > 1.5, (A > 1.5).to(A.format), wide(A) > 1.5, A.to("COO" if A.ndim == 1 else ns.COO(A.ndim)) > 1.5):
            assert torch.equal(A[mask], full[full > 1.5])
        leaf = A.values.clone().requires_grad_()
        A.with_values(leaf)[A > 1.5].sum().backward()
        assert torch.equal(leaf.grad, (A.values > 1.5).double())


# ---- zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int8, torch.bool])
@pytest.mark.parametrize("fmt", [*FORMATS[2], *FORMATS[3], "(i, j) -> (i: dense, j: compressed(ordered=False))"])
def test_stored_zeros_are_dropped(fmt: str, dtype: torch.dtype, interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(2)
    for at in range(5):
        monkeypatch.setattr(tuning, "COMPILE_ENTRIES", 0 if at % 2 else 1 << 16)
        A, full = drawn(numbers, fmt, 3 if fmt in FORMATS[3] else 2)
        A, full = A.to(dtype), full.to(dtype)
        B = A.eliminate_zeros() if fmt != "do" else A
        validate(B.pattern)
        assert B.format == A.format
        assert torch.equal(B.to_dense(), full)
        if has_fibres(A.format) and not A.format.is_dense and fmt != "do":
            check_arrays(B)
            assert len(B.values) == int((full != 0).sum())
            assert B.pattern.index_dtype == A.pattern.index_dtype
            assert (B is A) == (len(B.values) == len(A.values))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fmt", ["CSR", "CSC", "dds"])
def test_a_kernel_drops_many_stored_zeros(fmt: str, threads: int, request: pytest.FixtureRequest) -> None:
    numbers = np.random.default_rng(3)
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(threads)
    for share in (0.0, 0.02, 0.5, 0.99):
        shape = (400, 500) if fmt != "dds" else (4, 100, 500)
        A = ns.from_torch(torch.from_numpy(numbers.uniform(1, 2, shape) * (numbers.random(shape) < 0.8)), fmt)
        A = A.with_values(A.values.masked_fill(torch.from_numpy(numbers.random(A.nnz) >= share), 0))
        B = A.eliminate_zeros()
        assert torch.equal(B.to_dense(), A.to_dense())
        assert B.nnz == int(A.values.count_nonzero())
        check_arrays(B)


@pytest.mark.parametrize("compile_entries", [0, 1 << 16])
def test_not_a_number_is_no_zero_and_minus_zero_is(compile_entries: int, interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", compile_entries)
    plain = ns.from_coo([[0, 0, 1], [0, 1, 1]], torch.tensor([torch.nan, -0.0, 1.0]), (2, 2), ns.CSR).eliminate_zeros()
    assert (plain.nnz, bool(plain.values[0].isnan())) == (2, True)
    A = ns.from_coo([[0, 0, 1], [0, 1, 1]], torch.tensor([torch.nan, -0.0, 1.0], requires_grad=True), (2, 2), ns.CSR)
    B = A.eliminate_zeros()
    assert (B.nnz, bool(B.values[0].isnan())) == (2, True)
    B.values.sum().backward()
    assert A.values.grad.tolist() == [1, 0, 1]


# ---- joins


@pytest.mark.parametrize("fmt", [*FORMATS[2], *FORMATS[3]])
def test_joins_along_every_dimension(fmt: str, scale: Callable[[int], int], interpreted: None) -> None:
    numbers, order = np.random.default_rng(3), 3 if fmt in FORMATS[3] else 2
    others = FORMATS[order]
    for _ in range(scale(400) if fmt != "do" else 0):
        A, full = drawn(numbers, fmt, order)
        dim, tensors, parts = int(numbers.integers(order)), [A], [full]
        for size in numbers.integers(0, 5, int(numbers.integers(0, 3))).tolist():
            shape = (*A.shape[:dim], size, *A.shape[dim + 1 :])
            parts.append(torch.from_numpy(numbers.uniform(1, 2, shape) * (numbers.random(shape) < 0.5)))
            other = fmt if numbers.random() < 0.7 else str(numbers.choice([text for text in others if text != "do"]))
            tensors.append(ns.from_torch(parts[-1], other).to(torch.float32 if numbers.random() < 0.2 else torch.float64))
        tensors = [tensor.with_values(tensor.values.clone().requires_grad_()) for tensor in tensors]
        joined, expected = torch.cat(tensors, dim), torch.cat(parts, dim)
        check_arrays(joined)
        torch.testing.assert_close(joined.to_dense().detach(), expected, atol=1e-6, rtol=1e-6)
        (joined.values * joined.values).sum().backward()
        for tensor in tensors:
            torch.testing.assert_close(tensor.grad.values, 2 * tensor.values.detach())
        if order == 2:
            blocks = torch.block_diag(*tensors)
            check_arrays(blocks)
            torch.testing.assert_close(blocks.to_dense().detach(), torch.block_diag(*parts), atol=1e-6, rtol=1e-6)


def test_joins_keep_the_sizes_of_indices() -> None:
    """Index arrays are int32 if sizes and positions fit, whatever the tensors have."""
    A = wide(ns.from_torch(torch.eye(3)))
    assert torch.cat([A, A]).pattern.index_dtype == torch.cat([A, A], 1).pattern.index_dtype == "int32"
    B = ns.from_coo([[0], [2**31]], [1.0], (2, 2**31 + 1), ns.CSR)
    assert torch.cat([ns.from_coo([[1], [3]], [2.0], (2, 4), ns.CSR), B], 1).indices().tolist() == [[0, 1], [2**31 + 4, 3]]


# ---- helpers on whole arrays


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_helpers_on_arrays_agree_with_plain_numpy(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SORTED_KEYS", 8)
    numbers = np.random.default_rng(4)
    for _ in range(50):
        counts = numbers.integers(0, 5, int(numbers.integers(0, 40)))
        pos = np.concatenate([[0], np.cumsum(counts)]).astype(dtype)
        mask = numbers.random(pos[-1]) < 0.5
        before = counted_before(mask, pos)
        assert before.tolist() == [int(mask[:place].sum()) for place in pos]
        columns = numbers.integers(0, 6, pos[-1]).astype(dtype)
        for size in (6, 2**62):  # keys of coordinates below 2**62 exceed 63 bits
            rows = np.repeat(np.arange(len(counts)), counts)
            for first in (rows, numbers.permutation(rows)):
                order, ordered = sorting([first, columns], (len(counts), size), len(columns))
                expected = np.lexsort((columns, first))
                assert order.tolist() == expected.tolist()
                assert [column.tolist() for column in ordered] == [first[expected].tolist(), columns[expected].tolist()]


# ---- rows selected by kernels


@pytest.fixture
def kernels_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMPILE_ENTRIES", "SELECTED_ENTRIES"):
        monkeypatch.setattr(tuning, name, 0)


@pytest.mark.parametrize("fmt", ["CSR", "CSC", "dds", "dss", BATCH_OF_LISTS, "(i, j, k) -> (k: dense, i: compressed, j: compressed)"])
def test_kernels_select_rows_and_join(fmt: str, scale: Callable[[int], int], interpreted: None, kernels_pay: None) -> None:
    test_selections_of_every_dimension(fmt, scale, None)
    test_joins_along_every_dimension(fmt, scale, None)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.bfloat16, torch.int32, torch.float32, torch.int64, torch.complex64, torch.complex128]
)
def test_kernels_select_values_of_any_type(dtype: torch.dtype, kernels_pay: None) -> None:
    values = torch.tensor([1, -0.0, torch.nan, torch.inf, 5, 0])
    values = values.to(dtype) if dtype.is_floating_point or dtype.is_complex else torch.tensor([1, 0, -7, 3, 5, 0]).to(dtype)
    A = ns.from_csr([0, 2, 2, 5, 6], [0, 3, 0, 1, 2, 3], values, (4, 4))
    rows = torch.tensor([2, 1, 0, 1])
    for B in (A, wide(A)):
        part = B[rows]
        check_arrays(part)
        assert part.dtype == dtype
        assert part.pattern.index_dtype == B.pattern.index_dtype
        raw = (t.contiguous().view(torch.uint8).tolist() for t in (part.values, values[[2, 3, 4, 0, 1]]))
        assert next(raw) == next(raw)


def test_gradients_flow_through_selected_rows(kernels_pay: None) -> None:
    leaf = torch.arange(1.0, 5.0, requires_grad=True)
    A = ns.from_csr([0, 1, 1, 4], [1, 0, 1, 2], leaf, (3, 3))
    part = A[torch.tensor([2, 1, 0])]
    (part.values * torch.arange(4.0)).sum().backward()
    assert leaf.grad.tolist() == [3, 0, 1, 2]
    slope = torch.func.grad(lambda values: A.with_values(values)[torch.tensor([2, 0])].values[:2].sum())(leaf.detach())
    assert slope.tolist() == [0, 1, 1, 0]
    with torch.inference_mode():
        assert A.with_values(leaf.detach())[torch.tensor([0, 2, 1])].values.tolist() == [1, 2, 3, 4]


def test_few_rows_are_selected_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_selection, "launch", lambda *args: pytest.fail("a kernel runs"))
    A = ns.from_torch(torch.eye(5))
    assert torch.equal(A[torch.tensor([3, 1])].to_dense(), torch.eye(5)[[3, 1]])


def test_repeated_rows_that_exceed_the_tensor_are_selected_without_a_kernel(kernels_pay: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_selection, "launch", lambda *args: pytest.fail("a kernel runs"))
    full = torch.eye(3) + torch.tensor([[1.0], [0.0], [0.0]])
    assert torch.equal(ns.from_torch(full)[torch.tensor([0, 0, 0])].to_dense(), full[[0, 0, 0]])


def test_a_row_of_one_entry_is_no_sum() -> None:
    """A singleton level below unique levels determines its coordinate, so that rows are appended without a workspace."""
    one, some = Format("(i, j) -> (i: dense, j: singleton)"), ns.COO(2)
    for first, is_appended in ((one, True), (Format("(i, j) -> (i: compressed, j: singleton)"), True), (some, False), (ns.CSR, False)):
        tensors = {"S": TensorVar("S", first), "A": TensorVar("A", ns.CSR)}
        stmt = parse_stmt("R[i,k] = S[i,j] * A[j,k]", {**tensors, "R": TensorVar("R", ns.CSR)})
        result, operands = stmt.lhs, list(accesses_in(stmt.rhs))
        i, j, k = map(IndexVar, "ijk")
        assert visits_once(result, operands, (i, j, k)) == is_appended
        assert (visits_once(result, operands, (i, j, k)) and in_storage_order(result, operands, (i, j, k))) == is_appended
        assert not in_storage_order(result, operands, (j, i, k))


@pytest.mark.parametrize("fmt", ["COO(2)", "DCSR", "DCSC", LISTED_BY_COLUMNS])
def test_lists_are_joined_along_the_inner_dimension_as_rows(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SORTED_ENTRIES", 0)
    monkeypatch.setattr(joining, "assemble", lambda *args: pytest.fail("entries are sorted"))
    full, other = torch.eye(4)[:, [2, 0, 1]], torch.ones(4, 2)
    leaf = torch.ones(8, requires_grad=True)
    dim = 0 if fmt in ("DCSC", LISTED_BY_COLUMNS) else 1
    parts = [full, other] if dim else [full.t(), other.t()]
    first, second = (ns.from_torch(part, fmt) for part in parts)
    joined = torch.cat([first, second.with_values(leaf)], dim)
    assert joined.format == first.format
    check_arrays(joined)
    assert torch.equal(joined.to_dense().detach(), torch.cat(parts, dim))
    (joined.values * 3).sum().backward()
    assert leaf.grad.tolist() == [3.0] * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int8, torch.complex64])
@pytest.mark.parametrize("fmt", ["CSR", "COO(2)", "DCSC", "BCSR(2, 2)", "dd"])
def test_nonzeros_are_counted(fmt: str, dtype: torch.dtype) -> None:
    A, full = drawn(np.random.default_rng(5), fmt, 2)
    A, full = A.to(dtype), full.to(dtype)
    for dim in (None, 0, 1, (0, 1)):
        counted, expected = torch.count_nonzero(A, dim), torch.count_nonzero(full, dim)
        assert counted.dtype == torch.int64
        assert torch.equal(counted, expected)


def test_not_a_number_is_counted_and_minus_zero_is_not() -> None:
    A = ns.from_coo([[0, 0, 1], [0, 1, 1]], torch.tensor([torch.nan, -0.0, 1.0], requires_grad=True), (2, 2), ns.CSR)
    assert torch.count_nonzero(A, 1).tolist() == [1, 1]
