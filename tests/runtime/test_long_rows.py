"""Rows that hold a large share of the entries are split: results do not change, and are bitwise equal for all thread counts."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.runtime.pieces import cut
from numscorch.schedule import tuning


@pytest.fixture
def low_threshold(plain: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    plain.setattr(tuning, "LONG_ROW_ENTRIES", 1)
    return plain


def uneven(rows: int, columns: int, long: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    dense = torch.randint(1, 5, (rows, columns), generator=generator) * (torch.rand(rows, columns, generator=generator) < 0.02)
    dense[list(long)] = torch.randint(1, 5, (len(long), columns), generator=generator)
    return dense.float()


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC], ids=str)
@pytest.mark.parametrize(("rows", "columns", "long"), [(40, 300, (7,)), (30, 200, (0, 29)), (1, 64, (0,)), (50, 90, (3, 4, 5))])
def test_products(fmt: ns.Format, rows: int, columns: int, long: tuple[int, ...], low_threshold: pytest.MonkeyPatch) -> None:
    dense = uneven(rows, columns, long)
    stored = dense if fmt == ns.CSR else dense.T.contiguous()
    A = ns.from_torch(stored, fmt)
    assert A.pattern.has_long_rows
    assert cut(A.pattern).parts
    x, X = torch.arange(columns).float() % 7, torch.randint(-3, 4, (columns, 5)).float()
    order = "ij" if fmt == ns.CSR else "ji"
    for parallel_from in (0, 1 << 15):
        low_threshold.setattr(tuning, "PARALLEL_STEPS", parallel_from)
        assert torch.equal(ns.einsum(f"{order},j->i", A, x), dense @ x)
        assert torch.equal(ns.einsum(f"{order},jk->ik", A, X), dense @ X)
        assert torch.equal(ns.einsum(f"{order},jk->ki", A, X), (dense @ X).T)
        assert torch.equal(ns.einsum(f"{order}->i", A), dense.sum(1))
        assert torch.equal(ns.einsum(f"{order},i->i", A, torch.ones(rows)), dense.sum(1))
    out = torch.empty(rows, 5)
    assert ns.einsum(f"{order},jk->ik", A, X, out=out) is out
    assert torch.equal(out, dense @ X)


def test_values_are_not_copied(low_threshold: pytest.MonkeyPatch) -> None:
    dense = uneven(20, 100, (3,))
    A = ns.from_torch(dense, ns.CSR)
    ns.einsum("ij,j->i", A, torch.ones(100))
    A.values.mul_(2)
    assert torch.equal(ns.einsum("ij,j->i", A, torch.ones(100)), 2 * dense.sum(1))


def test_results_are_bitwise_equal_with_any_number_of_threads(fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "LONG_ROW_ENTRIES", 1)
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    A = ns.from_torch(uneven(60, 500, (11, 40)) * torch.rand(60, 500), ns.CSR)
    X = torch.randn(500, 16)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append((ns.einsum("ij,jk->ik", A, X), ns.einsum("ij,j->i", A, X[:, 0].contiguous())))
    finally:
        torch.set_num_threads(before)
    for product, vector in results[1:]:
        assert torch.equal(product, results[0][0])
        assert torch.equal(vector, results[0][1])


def test_explained(low_threshold: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(uneven(20, 100, (3,)), ns.CSR)
    assert "with long rows cut into parts" in str(ns.explain("ij,j->i", A, torch.ones(100)))
    assert "long rows" not in str(ns.explain("ij,j->i", A, torch.ones(100), schedule="parallelize(i)"))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_sums_of_integers_wrap_around(dtype: torch.dtype) -> None:
    n = 1 << 17
    A = ns.from_csr([0, n], torch.arange(n), torch.full((n,), 100, dtype=dtype), (1, n))
    x = torch.full((n,), 101, dtype=dtype)
    assert A.pattern.has_long_rows
    assert ns.einsum("ij,j->i", A, x).item() == torch.tensor(n * 100 * 101).to(dtype).item()
