"""Rows that coordinates choose are prefetched; a prefetch changes no result, and reads no array out of bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.codegen.source import Source, generate
from numscorch.ir.index import Ahead, loops_of
from numscorch.runtime import plans
from numscorch.schedule import tuning


def matrix(rows: int, columns: int, count: int, seed: int, format: ns.Format) -> ns.SparseTensor:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(0, max(size, 1), (count,), generator=generator) for size in (rows, columns)])
    values = torch.randint(1, 5, (count,), generator=generator).double()
    return ns.coalesce(ns.from_coo(indices, values, (rows, columns))).to(format)


def ahead(explanation: ns.Explanation) -> list[str]:
    return [loop.var.name for loop in loops_of(explanation.steps[-1].stmt) if isinstance(loop.tag, Ahead)]


def strided(tensor: torch.Tensor | ns.SparseTensor) -> torch.Tensor:
    return tensor.to_dense() if isinstance(tensor, ns.SparseTensor) else tensor


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
        assert torch.equal(strided(result), torch.einsum(text, *map(strided, operands)))
    assert ahead(ns.explain(text, *operands)) or format == ns.CSC


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


def test_counting_prefetches_only_what_it_reads(fresh_plans: pytest.MonkeyPatch) -> None:
    """Rows are counted without their coordinates, so that the counting kernel prefetches nothing."""
    texts: list[str] = []

    def listed(*args: Any) -> Source:
        source = generate(*args)
        texts.append(source.text)
        return source

    for name in ("COMPILE_ENTRIES", "SELECTED_ENTRIES", "NEAREST_CACHE"):
        fresh_plans.setattr(tuning, name, 0)
    fresh_plans.setattr(plans, "generate", listed)
    A = matrix(300, 300, 3000, 0, ns.CSR)
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:150]
    assert torch.equal(A[rows].to_dense(), A.to_dense()[rows])
    selecting = [text for text in texts if "stored(A[i,j]) * B[j,k0]" in text]
    assert sorted(("counts the entries" in text, "prefetch(" in text) for text in selecting) == [(False, True), (True, False)]


@pytest.mark.parametrize("text", ["ji,ik->ik", "ji,ik,j->ik"])
def test_rows_of_divided_loops(text: str, fresh_plans: pytest.MonkeyPatch) -> None:
    """Workers share a loop that scatters, and its coordinates choose rows."""
    fresh_plans.setattr(tuning, "NEAREST_CACHE", 0)
    A, B, x = matrix(3000, 3000, 3000, 0, ns.CSR), matrix(3000, 200, 6000, 1, ns.CSR), torch.arange(3000.0).double()
    operands = [A, B, x][: text.count(",") + 1]
    options = {"format": "dense", "schedule": "reorder(j,i,k)"}
    assert ahead(ns.explain(text, *operands, **options)) == ["i"]
    assert torch.equal(ns.einsum(text, *operands, **options), torch.einsum(text, *map(strided, operands)))


@pytest.mark.parametrize("text", ["ij,ljk->ik", "ij,ljk->i", "ij,ljk->"])
def test_rows_below_a_level_that_is_walked_later_are_not_prefetched(text: str, plain: pytest.MonkeyPatch) -> None:
    plain.setattr(tuning, "NEAREST_CACHE", 0)
    A = matrix(60, 60, 300, 0, ns.CSR)
    B = torch.stack([matrix(60, 5, 100, seed, ns.CSR).to_dense() for seed in range(3)])
    assert ahead(ns.explain(text, A, ns.from_torch(B, "sds"))) == []
    assert torch.equal(strided(ns.einsum(text, A, ns.from_torch(B, "sds"))), torch.einsum(text, A.to_dense(), B))
