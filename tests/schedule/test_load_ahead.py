"""Rows that coordinates choose are prefetched; a prefetch changes no result, and reads no array out of bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import numscorch as ns
from numscorch.ir.index import Ahead, loops_of
from numscorch.schedule import tuning


def matrix(rows: int, columns: int, count: int, seed: int, format: ns.Format) -> ns.SparseTensor:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(0, max(size, 1), (count,), generator=generator) for size in (rows, columns)])
    values = torch.randint(1, 5, (count,), generator=generator).double()
    return ns.coalesce(ns.from_coo(indices, values, (rows, columns))).to(format)


def ahead(explanation: ns.Explanation) -> list[str]:
    return [loop.var.name for loop in loops_of(explanation.steps[-1].stmt) if isinstance(loop.tag, Ahead)]


TEXTS = ("ij,jk->ik", "ij,jk->i", "ij,jk->k", "ij,jk->", "ij,jk,ik->ik", "ij,jk,ik->", "ij,ik,kj->ij")


@pytest.mark.parametrize("format", [ns.CSR, ns.COO(2), ns.DCSR, ns.CSC], ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_results_are_those_of_dense_tensors(text: str, format: ns.Format, plain: pytest.MonkeyPatch) -> None:
    """Un-jitted kernels check each access of an array, also of rows without entries and of operands without rows."""
    plain.setattr(tuning, "NEAREST_CACHE", 0)
    plain.setattr(tuning, "BLOCKS", 3)
    for size, count in ((9, 30), (9, 1), (9, 0), (1, 1), (30, 200)):
        operands = [matrix(size, size, count, seed, format) for seed in range(text.count(",") + 1)]
        result = ns.einsum(text, *operands)
        dense = result.to_dense() if isinstance(result, ns.SparseTensor) else result
        assert torch.equal(dense, torch.einsum(text, *(A.to_dense() for A in operands)))


def test_compiled(fresh_plans: pytest.MonkeyPatch, scale: Callable[[int], int]) -> None:
    fresh_plans.setattr(tuning, "NEAREST_CACHE", 0)
    for seed in range(scale(20)):
        A, B = (matrix(50 + seed, 50 + seed, 300, at, ns.CSR) for at in (seed, seed + 100))
        assert torch.equal((A @ B).to_dense(), A.to_dense() @ B.to_dense())


def test_large_rows_of_an_operand_are_prefetched() -> None:
    small, large = matrix(300, 300, 1000, 0, ns.CSR), matrix(300, 300, 20_000, 0, ns.CSR)
    assert ahead(ns.explain("ij,jk->ik", large, small)) == []
    assert ahead(ns.explain("ij,jk->ik", small, large)) == ["j"]
    assert ahead(ns.explain("ij,jk->ik", small, torch.ones(300, 9000))) == []  # rows of dense operands are loaded in order


def test_counting_prefetches_only_what_it_reads() -> None:
    """Rows are selected without reading their coordinates; the kernel that counts entries prefetches nothing."""
    A = matrix(3000, 3000, 30_000, 0, ns.CSR)
    rows = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[:1500]
    assert torch.equal(A[rows].to_dense(), A.to_dense()[rows])
