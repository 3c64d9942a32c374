"""max, min, argmax, argmin and topk equal torch's of the dense tensor: values, first indices and gradients, in any format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_graph import GAPS

import numscorch as ns
from numscorch.operators.comparison import _first_unstored
from numscorch.schedule import tuning

pytestmark = pytest.mark.usefixtures("interpreted")
UNORDERED = "(i, j) -> (i: dense, j: compressed(ordered=False))"
FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, "dd", ns.BCSR(2, 3), UNORDERED, *GAPS]
CUBES = ["sss", "dds", "ooo", "dsd", ns.Format("dss", (2, 0, 1))]
DTYPES = [torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]
NAMES = ["max", "min", "argmax", "argmin"]


def numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random small integers with many ties; the first slice has no zeros, and the last one no positive numbers."""
    rng = np.random.default_rng(seed)
    dense = torch.from_numpy(rng.integers(-2, 3, shape))
    dense[0] = torch.from_numpy(rng.integers(1, 3, shape[1:]))
    dense[-1] = dense[-1].clamp(max=0)
    return (dense.abs() if dtype in (torch.uint8, torch.bool) else dense).to(dtype)


def stored(dense: torch.Tensor, format: Any, seed: int) -> ns.SparseTensor:
    """The tensor in a format that also stores some of its zeros."""
    is_stored = (dense != 0) | torch.from_numpy(np.random.default_rng(seed).random(dense.shape) < 0.2)
    return ns.from_coo(is_stored.nonzero().T, dense[is_stored], tuple(dense.shape), ns.COO(dense.ndim)).to(format)


def check_extremes(A: ns.SparseTensor, dense: torch.Tensor) -> None:
    for dim in range(dense.ndim):
        for name in NAMES:
            for keepdim in (False, True):
                result, expected = (
                    getattr(torch, name)(t, dim, keepdim) for t in (A, dense.byte() if dense.dtype == torch.bool else dense)
                )
                pairs = zip(result, expected, strict=True) if name in ("max", "min") else [(result, expected)]
                for mine, theirs in pairs:
                    torch.testing.assert_close(mine, theirs.to(mine.dtype), equal_nan=True, rtol=0, atol=0)
    for name in ("argmax", "argmin"):
        expected = getattr(np, name)(dense.to(torch.float32 if dense.dtype == torch.bfloat16 else dense.dtype).numpy())
        result = getattr(torch, name)(A, keepdim=True)
        assert (result.dtype, tuple(result.shape), int(result)) == (torch.int64, (1,) * dense.ndim, expected)


def check_topk(A: ns.SparseTensor, dense: torch.Tensor, k: int, dim: int) -> None:
    """Equal values at different indices; which of equal entries are chosen is unspecified."""
    ranked = dense.to(torch.float64)
    for largest in (True, False):
        result, expected = torch.topk(A, k, dim, largest), torch.topk(ranked, k, dim, largest)
        assert result.values.dtype == dense.dtype
        torch.testing.assert_close(result.values.to(torch.float64), expected.values, equal_nan=True, rtol=0, atol=0)
        torch.testing.assert_close(ranked.gather(dim, result.indices), expected.values, equal_nan=True, rtol=0, atol=0)
        assert (result.indices.sort(dim).values.diff(dim=dim) > 0).all()


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_matrices_of_any_format(format: Any, seed: int) -> None:
    dense = numbers((7, 9), seed)
    check_extremes(stored(dense, format, seed), dense)
    check_topk(stored(dense, format, seed), dense, 4, seed)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_extremes_that_are_zero_or_repeated(format: Any) -> None:
    dense = numbers((7, 9), 5)
    full = torch.where(dense == 0, -1, dense)
    for each in (dense.abs(), -dense.abs(), dense.sign(), full.abs(), -full.abs(), torch.zeros_like(dense), torch.ones_like(dense)):
        check_extremes(stored(each, format, 5), each)


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC], ids=str)
def test_dimensions_with_few_entries(format: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinates are not counted, but torch chooses entries of rows."""
    monkeypatch.setattr(tuning, "COUNTED_COORDINATES", 0)
    dense = numbers((7, 9), 8)
    dense[1, 3] = float("nan")
    check_extremes(stored(dense, format, 8), dense)


@pytest.mark.parametrize("format", CUBES, ids=str)
def test_tensors_of_three_dimensions(format: Any) -> None:
    dense = numbers((3, 4, 5), 0)
    check_extremes(stored(dense, format, 0), dense)
    for dim in range(3):
        check_topk(stored(dense, format, 0), dense, 3, dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_data_type(dtype: torch.dtype) -> None:
    dense = numbers((6, 8), 3, dtype)
    check_extremes(stored(dense, ns.CSR, 3), dense)
    check_topk(stored(dense, ns.CSR, 3), dense, 5, 1)


def test_int64_values_are_compared_exactly() -> None:
    dense = torch.tensor([[2**62, 2**62 + 1, 0], [-(2**62) - 1, -(2**62), 0]])
    check_extremes(ns.from_torch(dense), dense)


def test_nan_and_infinity() -> None:
    dense = numbers((6, 8), 4)
    dense[1, 5] = dense[1, 2] = dense[2, 0] = float("nan")
    dense[3], dense[4, 3] = -float("inf"), float("inf")
    check_extremes(ns.from_torch(dense), dense)
    check_topk(ns.from_torch(dense), dense, 8, 1)


@pytest.mark.parametrize("shape", [(0, 3), (3, 1), (1, 3), (4,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_tensors_without_entries(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    dense = torch.zeros(shape, dtype=dtype)
    A, last = ns.from_torch(dense), len(shape) - 1
    assert torch.equal(A.argmax(last), dense.argmax(last))
    check_topk(A, dense, 1, last)
    check_topk(A, dense, 0, last)


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2)], ids=str)
@pytest.mark.parametrize("size", [65, 200])
def test_long_runs_of_stored_zeros(format: Any, size: int) -> None:
    """Beyond the coordinates that are searched first, an unstored zero comes after many stored ones."""
    dense = torch.zeros(5, size)
    is_stored = torch.ones(5, size, dtype=torch.bool)
    is_stored[1, 64], is_stored[2, 0], is_stored[3, size - 1] = False, False, False
    is_stored[4, ::2] = False
    A = ns.from_coo(is_stored.nonzero().T, dense[is_stored], (5, size), ns.COO(2)).to(format)
    expected = [size, 64, 0, size - 1, 0]
    assert _first_unstored(A).tolist() == expected
    A.values.copy_(-torch.ones(A.nnz))
    assert A.argmax(1).tolist() == [0, *expected[1:]]
    assert A.t().argmax(0).tolist() == [0, *expected[1:]]


def test_indices_beyond_the_precision_of_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COUNTED_COORDINATES", 1 << 20)
    size = (1 << 24) + 9
    A = ns.from_coo([[0, 0], [1, 2]], [1.0, 2.0], (1, size))
    assert A.argmax(1).tolist() == [2]
    assert A.argmin(1).tolist() == [0]


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_rows_in_several_groups(index_dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "CHOICE_VALUES", 16)
    dense = torch.from_numpy(np.random.default_rng(5).standard_normal((40, 12)))
    dense[torch.from_numpy(np.random.default_rng(6).random((40, 12))) < 0.6] = 0
    pos = np.append(0, (dense != 0).sum(1).cumsum(0)).astype(index_dtype)
    A = ns.from_csr(pos, dense.nonzero()[:, 1].numpy().astype(index_dtype), dense[dense != 0], (40, 12))
    for k in (1, 3, 12):
        check_topk(A, dense, k, 1)
        check_topk(A, dense, k, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=str)
def test_rows_of_many_lengths_are_padded(dtype: torch.dtype) -> None:
    """Rows of 0 to 40 entries; the padding equals values of some rows, which are chosen from again."""
    rng = np.random.default_rng(9)
    dense = torch.from_numpy(rng.integers(-4, 5, (20, 40))).to(dtype)
    dense[torch.from_numpy(rng.random((20, 40)) < rng.random((20, 1)))] = 0
    dense[rng.random(20) < 0.3] = 1
    if dtype.is_floating_point:
        dense[dense == 4], dense[dense == -4], dense[dense == 3] = torch.inf, -torch.inf, torch.nan
    A = stored(dense, ns.CSR, 9)
    for k in (1, 5, 40):
        check_topk(A, dense, k, 1)
    A.values.requires_grad_(dtype.is_floating_point)
    check_extremes(A, dense)


@pytest.mark.parametrize(
    "call", [lambda t: t.topk(3, 1).values, lambda t: t.topk(2, 0, False).values, lambda t: t.max(1).values, lambda t: t.min(0).values]
)
def test_gradients_flow_to_the_chosen_entries(call: Any) -> None:
    dense = torch.from_numpy(np.random.default_rng(7).standard_normal((5, 6)))
    dense[dense.abs() < 0.5] = 0
    A = ns.from_torch(dense, ns.CSC)
    A.values.requires_grad_()
    assert torch.autograd.gradcheck(lambda values: call(A.with_values(values)), A.values)
    rows = torch.func.vmap(torch.func.grad(lambda values: call(A.with_values(values)).square().sum()))(
        torch.stack([A.values, -A.values]).detach()
    )
    for values, row in zip((A.values, -A.values), rows, strict=True):
        leaf = values.detach().requires_grad_()
        call(A.with_values(leaf).to_dense()).square().sum().backward()
        torch.testing.assert_close(row, leaf.grad)


@pytest.mark.parametrize("name", NAMES)
def test_no_list_of_coordinates_is_made(name: str) -> None:
    A = stored(numbers((7, 9), 0), ns.CSR, 0)
    getattr(torch, name)(A, 1)
    getattr(torch, name)(A, 0)
    assert "coordinates" not in A.pattern.derived
