"""Statistics of uneven rows in the cost model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from corpus import TARGET

import numscorch as ns
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import make_problem
from numscorch.ir.format import Format
from numscorch.ir.index import IndexVar, accesses_in
from numscorch.runtime.plans import describe
from numscorch.schedule import cost, tuning


def star(size: int, longest: int) -> torch.Tensor:
    """A diagonal matrix with one long row."""
    dense = torch.eye(size)
    dense[0, :longest] = 1.0
    return dense


def products(A: ns.SparseTensor, B: ns.SparseTensor) -> float:
    """Number of products of stored values in A times B, according to the cost model."""
    problem = make_problem(parse_einsum("ij,jk->ik", (2, 2)), [describe(A), describe(B)], TARGET)
    walks = cost.walks_of(accesses_in(problem.stmt.rhs), problem.facts)
    return cost.executions(map(IndexVar, "ijk"), walks, problem.facts)[0]


@pytest.fixture
def measured(fresh_plans: pytest.MonkeyPatch) -> None:
    """Rows of small matrices are measured too."""
    fresh_plans.setattr(tuning, "MEASURED_ENTRIES", 64)


def test_even_rows(measured: None) -> None:
    ring = ns.from_torch(torch.eye(64) + torch.eye(64).roll(1, 0), ns.CSR)
    assert ring.pattern.spreads == (1, 1)
    assert products(ring, ring) == 64 * 2 * 2


def test_long_rows_are_multiplied_more_often(measured: None) -> None:
    dense = star(64, 64)
    A = ns.from_torch(dense + dense.T, ns.CSR)
    assert A.pattern.spreads == (1, 8)
    actual = int(((A.to_dense() != 0).float() @ (A.to_dense() != 0).float()).sum())
    assert 0.5 * actual < products(A, A) < 2 * actual


@pytest.mark.parametrize("fmt", ["ds", "ss", "oo", Format("ds", (1, 0)), ns.ELL, ns.BCSR(2, 2), ns.DIA], ids=str)
def test_every_format_has_spreads(fmt: Format | str) -> None:
    A = ns.from_torch(star(8, 4), fmt)
    assert len(A.pattern.spreads) == len(A.format.levels)
    assert all(spread >= 1 and spread & (spread - 1) == 0 for spread in A.pattern.spreads)


def test_equally_uneven_matrices_share_plans(measured: None) -> None:
    def signature(dense: torch.Tensor) -> int:
        return ns.from_torch(dense, ns.CSR).pattern.signature

    assert signature(star(64, 63)) == signature(star(64, 64))
    assert signature(star(64, 64)) != signature(torch.eye(64) + torch.eye(64).roll(1, 0))


def skewed(size: int, entries: int, seed: int) -> torch.Tensor:
    """Coordinates of which some rows and columns are far more frequent than others."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(2, entries, generator=generator) ** 3 * size).long().unique(dim=1)


@pytest.mark.parametrize("fmt", ["CSR", "CSC", "DCSR", "DCSC", "BCSR(2, 2)"])
@pytest.mark.parametrize("seed", range(3))
def test_samples_estimate_spreads_and_peaks(fmt: str, seed: int) -> None:
    indices = skewed(3000, 60_000, seed)
    A = ns.from_coo(indices, torch.ones(indices.shape[1]), (3000, 3000), fmt)
    lengths = np.diff(A.pattern.level_arrays(1)[0]).astype(float)
    spread = (lengths**2).sum() * len(lengths) / lengths.sum() ** 2
    assert spread / 2 <= A.pattern.spreads[1] <= spread * 2
    longest = lengths.max() * (4 if fmt.startswith("BCSR") else 1)
    assert longest / 8 <= A.pattern.peaks[0] <= longest
    if not fmt.startswith("BCSR"):
        most = np.bincount(A.pattern.level_arrays(1)[1]).max()
        assert most / 8 <= A.pattern.peaks[1] <= most * 2
    assert A.pattern.has_long_rows is False


@pytest.mark.parametrize("fmt", ["CSR", "CSC"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_lower", [False, True])
def test_samples_estimate_which_rows_and_columns_choose_each_other(fmt: str, seed: int, is_lower: bool) -> None:
    indices = skewed(3000, 60_000, seed)
    indices = indices[:, indices[0] < 2999 - indices[1]] if is_lower else indices
    A = ns.from_coo(indices, torch.ones(indices.shape[1]), (3000, 3000), fmt)
    rows, columns = (np.bincount(coordinates, minlength=3000).astype(float) for coordinates in indices.numpy())
    outer, inner = (rows, columns) if fmt == "CSR" else (columns, rows)
    for estimated, (left, right) in zip(A.pattern.crossings, ((outer, outer), (outer, inner), (inner, inner)), strict=True):
        exact = (left * right).sum() * 3000 / A.nnz**2
        assert exact / 4 <= estimated <= exact * 4


def test_other_patterns_have_even_crossings() -> None:
    indices = skewed(3000, 60_000, 0)
    for fmt in ("COO(2)", "DCSR", "BCSR(2, 2)"):
        assert ns.from_coo(indices, torch.ones(indices.shape[1]), (3000, 3000), fmt).pattern.crossings == (1, 1, 1)
    assert ns.from_torch(torch.eye(9), "CSR").pattern.crossings == (1, 1, 1)
    wide = ns.from_coo(torch.stack([indices[0] % 30, indices[1]]), torch.ones(indices.shape[1]), (30, 3000), "CSR")
    assert len(wide.pattern.crossings) == 3


def test_rows_and_columns_of_batches_have_peaks() -> None:
    indices = skewed(3000, 60_000, 0)
    batches = torch.cat([torch.arange(2).repeat_interleave(indices.shape[1])[None], indices.repeat(1, 2)])
    A = ns.from_coo(batches, torch.ones(batches.shape[1]), (2, 3000, 3000), "dds")
    rows = 2 * torch.bincount(indices[0]).max().item()
    assert A.pattern.peaks[0] == 4 ** int(np.log(A.nnz / 2) / np.log(4))
    assert rows / 8 <= A.pattern.peaks[1] <= rows * 2


def test_one_long_row_is_found_anywhere() -> None:
    counts = torch.ones(60_000, dtype=torch.int64)
    for at in (0, 1, 31_234, 59_999):
        counts[at] = 10_000
        A = ns.from_csr(
            torch.cat([torch.zeros(1), counts.cumsum(0)]).int(),
            torch.cat([torch.arange(n) for n in counts.tolist()]),
            torch.ones(int(counts.sum())),
            (60_000, 10_000),
        )
        assert A.pattern.has_long_rows and A.pattern.peaks[0] == 4096
        counts[at] = 1


def test_few_entries_are_not_measured() -> None:
    few = ns.from_torch(star(2000, 2000), "CSR").pattern
    assert few.nnz < tuning.MEASURED_ENTRIES and few.spreads == (1, 1) and few.peaks == (0, 0)
    assert not few.derived.keys() - {"spreads", "samples"}


def test_patterns_without_entries() -> None:
    assert ns.from_torch(torch.zeros(3, 3), ns.CSR).pattern.spreads == (1, 1)
    assert ns.from_torch(torch.zeros(0, 3), ns.DCSR).pattern.spreads == (1, 1)


def test_even_rows_select_uneven_ones_evenly(measured: None) -> None:
    """Most entries of a random matrix select short rows of a matrix with one long row."""
    generator = torch.Generator().manual_seed(0)
    even = ns.from_torch((torch.rand(64, 64, generator=generator) < 0.1).float(), ns.CSR)
    assert products(even, ns.from_torch(star(64, 64), ns.CSR)) < 2 * even.nnz * 2


def test_sums_walk_each_row_once() -> None:
    A, B = ns.from_torch(star(200, 200), ns.DCSR), ns.from_torch(star(200, 200).roll(1, 0), ns.DCSR)
    assert isinstance(ns.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B, format="auto"), ns.SparseTensor)
