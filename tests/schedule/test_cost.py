"""Statistics of uneven rows in the cost model."""

from __future__ import annotations

import pytest
import torch
from corpus import TARGET

import numscorch as ns
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import make_problem
from numscorch.ir.format import Format
from numscorch.ir.index import IndexVar, accesses_in
from numscorch.runtime.plans import describe
from numscorch.schedule import cost


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


def test_even_rows() -> None:
    ring = ns.from_torch(torch.eye(64) + torch.eye(64).roll(1, 0), ns.CSR)
    assert ring.pattern.spreads == (1, 1)
    assert products(ring, ring) == 64 * 2 * 2


def test_long_rows_are_multiplied_more_often() -> None:
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


def test_equally_uneven_matrices_share_plans() -> None:
    def signature(dense: torch.Tensor) -> int:
        return ns.from_torch(dense, ns.CSR).pattern.signature

    assert signature(star(64, 63)) == signature(star(64, 64))
    assert signature(star(64, 64)) != signature(torch.eye(64) + torch.eye(64).roll(1, 0))


def test_patterns_without_entries() -> None:
    assert ns.from_torch(torch.zeros(3, 3), ns.CSR).pattern.spreads == (1, 1)
    assert ns.from_torch(torch.zeros(0, 3), ns.DCSR).pattern.spreads == (1, 1)


def test_even_rows_select_uneven_ones_evenly() -> None:
    """Most entries of a random matrix select short rows of a matrix with one long row."""
    generator = torch.Generator().manual_seed(0)
    even = ns.from_torch((torch.rand(64, 64, generator=generator) < 0.1).float(), ns.CSR)
    assert products(even, ns.from_torch(star(64, 64), ns.CSR)) < 2 * even.nnz * 2


def test_sums_walk_each_row_once() -> None:
    A, B = ns.from_torch(star(200, 200), ns.DCSR), ns.from_torch(star(200, 200).roll(1, 0), ns.DCSR)
    assert isinstance(ns.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B, format="auto"), ns.SparseTensor)
