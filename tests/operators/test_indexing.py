"""Indexing, and operators that search entries, compared with torch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_values import as_dense

import numscorch as ns

FULL = torch.tensor([[0.0, 2.0, 0.0, torch.nan], [3.0, 0.0, -4.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.ELL, ns.BCSR(2, 2), ns.Format("(i, j) -> (i: dense, j: bitmap)")]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_searches(fmt: ns.Format, interpreted: None) -> None:
    A, without_nan = ns.from_torch(FULL, fmt), FULL.nan_to_num(7)
    assert torch.equal(torch.argwhere(A), torch.argwhere(FULL))
    assert torch.equal(torch.argwhere(A > 0), torch.argwhere(FULL > 0))
    for elements in (torch.tensor([2.0, -4.0]), torch.tensor([0.0, 3.0]), 3.0, torch.tensor([])):
        for invert in (False, True):
            expected = torch.isin(FULL, torch.as_tensor(elements), invert=invert)
            assert torch.equal(as_dense(torch.isin(A, torch.as_tensor(elements), invert=invert)), expected)
    assert torch.equal(torch.isin(torch.tensor([0.0, 5.0, 3.0]), A), torch.tensor([True, False, True]))
    assert isinstance(torch.isin(A, torch.tensor([2.0])), ns.SparseTensor)
    B = ns.from_torch(without_nan, fmt)
    for dim in (None, 0, 1, -1):
        for bound, expected in zip(torch.aminmax(B, dim=dim), torch.aminmax(without_nan, dim=dim), strict=True):
            assert torch.equal(as_dense(bound), expected)
        assert torch.equal(as_dense(torch.nansum(A, dim)), torch.nansum(FULL, dim))
    assert torch.equal(torch.nansum(A, 1, keepdim=True), torch.nansum(FULL, 1, keepdim=True))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)], ids=str)
def test_searches_in_empty_tensors(shape: tuple[int, ...], interpreted: None) -> None:
    A = ns.zeros(*shape, format="COO" if len(shape) == 1 else ns.CSR) if len(shape) > 1 else ns.zeros(*shape, format=ns.Format("s"))
    assert torch.argwhere(A).shape == (0, len(shape))
    assert as_dense(torch.isin(A, torch.tensor([1.0]))).shape == shape
    assert torch.nansum(A).item() == 0
    with pytest.raises(ns.SizeError):
        torch.aminmax(A)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # torch treats short tensors of another type as lists
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_a_dense_tensor_indexed_by_a_sparse_mask(fmt: ns.Format, interpreted: None) -> None:
    full = torch.arange(12.0).reshape(3, 4).requires_grad_()
    A = ns.from_torch(FULL, fmt)
    for D in (full, torch.arange(24.0).reshape(3, 4, 2)):
        assert torch.equal(D[A > 0], D[FULL > 0])
        assert torch.equal(D[A != 0,], D[FULL != 0])
    full[A > 0].sum().backward()
    assert torch.equal(full.grad, (FULL > 0).float())
    rows = ns.from_torch(torch.tensor([True, False, True]), ns.Format("s"))
    assert torch.equal(full[rows,], full[[0, 2]])
    target = torch.zeros(3, 4)
    target[A > 0] = 5
    assert torch.equal(target, (FULL > 0) * 5.0)
    with pytest.raises(ns.OperandError, match=r"an index of sparse torch\.float32 values: index by a sparse mask"):
        full[A,]
    with pytest.raises(ns.RangeError, match=r"a mask of shape \(3, 4\) for the first dimensions of a tensor of shape \(4, 3\)"):
        full.t()[A > 0,]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("size", [1, 3, 31, 32, 50])
def test_a_dense_tensor_indexed_by_a_sparse_vector(size: int, interpreted: None) -> None:
    """torch treats sequences of fewer than 32 plain tensors as lists."""
    D, mask = torch.arange(2.0 * size).reshape(size, 2), torch.arange(size) % 3 == 0
    for fmt in ("s", "d"):
        sparse = ns.from_torch(mask, fmt)
        assert torch.equal(D[sparse], D[mask])
        numbers = torch.arange(size).flip(0)
        assert torch.equal(D[ns.from_torch(numbers, fmt)], D[numbers])
        target, expected = D.clone(), D.clone()
        target[sparse], expected[mask] = 5, 5
        assert torch.equal(target, expected)
        with pytest.raises(ns.RangeError, match="a mask of shape"):
            D.t()[ns.from_torch(torch.ones(size + 2, dtype=torch.bool), fmt)]


def test_entries_of_a_vector_are_tensors(interpreted: None) -> None:
    for values in (torch.tensor([True, False, True]), torch.tensor([0, 2, 3])):
        entries = list(ns.from_torch(values, "s"))
        assert [entry.item() for entry in entries] == values.tolist()
        assert type(entries[1] + 1) is type(torch.stack(entries)) is torch.Tensor
        assert torch.equal(torch.stack(entries), values)
        assert ns.einsum("i,->i", ns.from_torch(values, "s"), entries[2]).to_dense().tolist() == (values * values[2]).tolist()
        assert torch.arange(5)[entries[2].long()].item() == values[2].long().item()


def test_torch_functions_take_entries_of_a_vector(interpreted: None, tmp_path: Path) -> None:
    """Entries combine with SparseTensors, and are printed, saved and copied as plain tensors."""
    dense, matrix = torch.tensor([1, 0, 3]), torch.eye(3)
    v, A = ns.from_torch(dense), ns.from_torch(matrix)
    for entry, plain_entry in zip(v, dense, strict=True):
        for function in (torch.mul, torch.add, torch.maximum, torch.eq):
            assert torch.equal(as_dense(function(entry, v)), function(plain_entry, dense))
            assert torch.equal(as_dense(function(entry, other=v)), function(plain_entry, dense))
        assert torch.equal(as_dense(torch.mul(entry, A)), plain_entry * matrix)
        assert torch.equal(as_dense(torch.einsum(",ij->ij", entry, A)), plain_entry * matrix)
        assert repr(entry) == repr(plain_entry)
        assert type(copy.deepcopy(entry)) is torch.Tensor
    torch.save(list(v), tmp_path / "entries.pt")
    for loaded in (torch.load(tmp_path / "entries.pt"), pickle.loads(pickle.dumps(list(v)))):
        assert {type(entry) for entry in loaded} == {torch.Tensor}
        assert torch.equal(torch.stack(loaded), dense)


KEYS: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda mask, line: line,
    "columns": lambda mask, line: (slice(None), line),
    "rows, then a column": lambda mask, line: (line, 1),
    "entries": lambda mask, line: mask,
}


@pytest.mark.parametrize("kind", ["tensor", "array", "sparse"])
@pytest.mark.parametrize("name", KEYS)
def test_uint8_indices_are_masks(name: str, kind: str, interpreted: None) -> None:
    """As in torch, where uint8 was the type of masks before bool; other kinds of integers are numbers."""
    D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[1, 0, 1], [0, 1, 1], [2, 0, 0]], dtype=torch.uint8)
    convert = {"tensor": torch.Tensor.clone, "array": torch.Tensor.numpy, "sparse": ns.from_torch}[kind]
    result = ns.from_torch(D)[KEYS[name](*map(convert, (mask, mask[0])))]
    expected = D[KEYS[name](mask.bool(), mask[0].bool())]
    assert torch.equal(as_dense(result), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("name", ["index_select", "gather", "take", "take_along_dim"])
def test_masks_are_no_coordinates(name: str, dtype: torch.dtype, interpreted: None) -> None:
    A, index = ns.from_torch(torch.eye(3)), torch.ones(3, dtype=dtype)
    call = {
        "index_select": lambda: torch.index_select(A, 0, index),
        "gather": lambda: torch.gather(A, 1, index[None]),
        "take": lambda: torch.take(A, index),
        "take_along_dim": lambda: torch.take_along_dim(A, index[None], 1),
    }[name]
    with pytest.raises(ns.OperandError, match=rf"{name} by an index of {dtype}: it takes int64 coordinates"):
        call()


@pytest.mark.parametrize("key", [torch.tensor(True), torch.tensor(1, dtype=torch.uint8), np.array(True)])
def test_truth_values_without_dimensions_are_no_rows(key: Any, interpreted: None) -> None:
    with pytest.raises(ns.UnsupportedError, match="as index: use None for a new dimension"):
        ns.from_torch(torch.eye(3))[key]


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_dimension_may_be_a_tensor(name: str, interpreted: None) -> None:
    D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    A, dim = ns.from_torch(D), torch.tensor(1)
    for result, expected in zip(getattr(torch, name)(A, dim=dim), getattr(torch, name)(D, dim=dim), strict=True):
        assert torch.equal(result, expected)
    assert torch.equal(getattr(torch, name)(A, dim).to_dense(), getattr(torch, name)(D, dim))  # element-wise, as the second operand


@pytest.mark.parametrize("select", [lambda A: A[0:3], lambda A: A[:], lambda A: A[...], lambda A: A.narrow(0, 0, 3), lambda A: A[:2]])
def test_slices_are_copies_also_of_all_rows(select: Callable[[Any], Any], interpreted: None) -> None:
    A = ns.from_torch(torch.eye(3))
    select(A).mul_(2)
    assert torch.equal(A.to_dense(), torch.eye(3))


@pytest.mark.parametrize("name", ["CSR", "COO(2)", "DCSR", "(i, j) -> (i: dense, j: compressed(bits=16))", "dd", "CSC"])
def test_single_rows_and_entries_of_new_patterns(name: str) -> None:
    D = torch.tensor([[0.0, 2.0, 3.0], [0.0, 0.0, 0.0], [4.0, 0.0, 5.0]])
    for i in range(-3, 3):
        row = ns.from_torch(D, name)[i]
        assert row.pattern.nnz == row.values.numel()
        assert torch.equal(row.to_dense(), D[i])
        assert torch.equal((row + row).to_dense(), 2 * D[i])
        for j in range(-3, 3):
            assert torch.equal(ns.from_torch(D, name)[i, j], D[i, j])


def test_all_of_a_vector_shares_its_pattern() -> None:
    x = ns.from_torch(torch.tensor([0.0, 2.0, 3.0]))
    assert x[:].pattern is x.pattern
    assert x[:].values.data_ptr() != x.values.data_ptr()
    assert torch.equal(x[1:].to_dense(), torch.tensor([2.0, 3.0]))


def test_an_absent_entry_has_a_gradient() -> None:
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    A = ns.from_coo([[0, 1], [1, 0]], values, (2, 2), ns.CSR)
    (A[0, 0] + 3 * A[1, 0]).backward()
    assert values.grad.tolist() == [0.0, 3.0]
