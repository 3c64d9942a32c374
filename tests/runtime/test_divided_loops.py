"""Loops that scatter, and that several workers share: each adds its part of the result."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

import numscorch as ns
from numscorch.ir.format import Format
from numscorch.ir.index import Divide, loops_of
from numscorch.machine import threads
from numscorch.runtime.blocks import split_rows
from numscorch.schedule import tuning
from numscorch.tensors.pattern import Pattern

SCATTERED = {  # expressions, and formats whose stored order the loops follow while they scatter
    "ij,j->i": ("CSC", "(i, j) -> (j: compressed, i: compressed)"),
    "ij,i->j": ("CSR", "DCSR"),
    "ij->j": ("CSR", "DCSR"),
    "ij->i": ("CSC",),
    "ijk,i->k": ("CSF(3)", "(i, j, k) -> (i: dense, j: compressed, k: compressed)"),
    "ijk,ij->jk": ("CSF(3)",),
}


def matrix(rng: random.Random, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    values = torch.randint(-4, 5, shape, generator=generator)
    return (values * (torch.rand(shape, generator=generator) < rng.choice((0.2, 0.7, 1.0)))).to(dtype)


def is_divided(expr: str, *operands: object) -> bool:
    stmt = ns.explain(expr, *operands, format="dense").steps[-1].stmt
    return any(isinstance(loop.tag, Divide) for loop in loops_of(stmt))


@pytest.fixture
def workers(fresh_plans: pytest.MonkeyPatch) -> list[int]:
    """The number of workers that share loops, also of few steps. No operand is converted."""
    number = [2]
    fresh_plans.setattr(threads, "workers", lambda: number[0])
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    fresh_plans.setattr(tuning, "COST_TRANSPOSE", 1e9)
    fresh_plans.setattr(tuning, "SERIAL_CALLS", 1)
    return number


@pytest.mark.parametrize("expr", SCATTERED)
def test_any_number_of_workers_gives_the_dense_result(expr: str, workers: list[int]) -> None:
    workers[0] = 3
    rng, used = random.Random(expr), 0
    first, *others = expr.split("->")[0].split(",")
    for fmt in SCATTERED[expr] * 3:
        sizes = {name: rng.choice((0, 1, 4, 9)) for name in "ijk"}
        dtype = rng.choice((torch.float32, torch.float64, torch.int32, torch.complex64))
        D, *dense = (matrix(rng, [sizes[name] for name in term], dtype) for term in (first, *others))
        A = ns.from_torch(D, fmt)
        used += is_divided(expr, A, *dense)
        for _ in range(2):  # the second call splits the rows
            assert_array_equal(ns.einsum(expr, A, *dense, format="dense"), torch.einsum(expr, D, *dense))
    assert used


def test_sums_are_bitwise_equal_for_all_numbers_of_workers_compiled(workers: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    D = torch.randn(60, 50, generator=generator) * (torch.rand(60, 50, generator=generator) < 0.3)
    x = torch.randn(50, generator=generator)
    results = []
    for workers[0] in (1, 2, 3, 5):
        A = ns.from_torch(D, ns.CSC)
        results += [ns.einsum("ij,j->i", A, x), ns.einsum("ij,j->i", A, x)]
    assert is_divided("ij,j->i", A, x)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], D @ x)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_parts_are_ranges_of_coordinates(index_dtype: torch.dtype) -> None:
    rng = random.Random(1)
    for _ in range(20):
        D = matrix(rng, [rng.choice((0, 1, 5, 9)), rng.choice((1, 5, 9))], torch.float32)
        A = ns.from_torch(D, ns.CSR)
        A = ns.SparseTensor(Pattern(ns.CSR, A.shape, ((), tuple(array.to(index_dtype) for array in A.pattern.arrays[1]))), A.values)
        pos, crd = A.pattern.level_arrays(1)
        for count in (2, 3, 7):
            if not len(crd):
                continue
            bounds, starts = np.split(split_rows(A.pattern, count), [count + 1])
            assert_array_equal(starts[::count], pos)
            assert (np.diff(starts) >= 0).all()
            owners = (np.arange(len(starts) - 1) % count).repeat(np.diff(starts))
            held = [crd[owners == owner] for owner in range(count) if owner in owners]
            assert all(left.max() < right.min() for left, right in pairwise(held))
            assert (bounds[0], bounds[-1]) == (0, A.shape[1])
            ranges = [crd[(bounds[owner] <= crd) & (crd < bounds[owner + 1])] for owner in range(count)]
            assert all(sorted(part) == sorted(crd[owners == owner]) for owner, part in enumerate(ranges))


def test_the_first_calls_for_a_pattern_split_nothing(workers: list[int]) -> None:
    A, x = ns.from_torch(torch.ones(4, 4), ns.CSC), torch.ones(4)
    ns.einsum("ij,j->i", A, x)
    assert (split_rows, 2) not in A.pattern.derived
    ns.einsum("ij,j->i", A, x)
    assert (split_rows, 2) in A.pattern.derived


@pytest.mark.parametrize("reduce", ["sum", "max", "prod"])
@pytest.mark.parametrize("kind", ["blocks", "wider"])
def test_long_sums_are_shared_and_bitwise_equal_compiled(kind: str, reduce: str, workers: list[int]) -> None:
    """Sums in blocks, and sums of very different lengths, which are collected in a wider type; other reductions count their terms."""
    generator = torch.Generator().manual_seed(0)
    D = torch.rand(37, 5000, generator=generator) * (torch.rand(37, 5000, generator=generator) < 0.2)
    if kind == "wider":
        D = torch.cat([D[:1] + 0.1, torch.eye(5000)[:4000]])
    x, results = torch.randn(5000, generator=generator), []
    for workers[0] in (1, 2, 3, 7):
        A = ns.from_torch(D, ns.CSC)
        results += [ns.einsum("ij,j->i", A, x, reduce=reduce), ns.einsum("ij,j->i", A, x, reduce=reduce)]
    text = str(ns.explain("ij,j->i", A, x, reduce=reduce).steps[-1].stmt)
    if reduce == "sum":
        assert ("divide_forall<i, " in text) if kind == "blocks" else ("divide_forall<i>" in text and "w[i] +=" in text)
    assert all(torch.equal(result, results[0]) for result in results)
    exact = getattr((D.double() * x.double()), "amax" if reduce == "max" else reduce)(1)
    torch.testing.assert_close(results[0].double(), exact, rtol=1e-5, atol=1e-4)


def test_serial_schedules_are_not_divided(workers: list[int]) -> None:
    A, x = ns.from_torch(torch.ones(4, 4), ns.CSC), torch.ones(4)
    assert is_divided("ij,j->i", A, x)
    stmt = ns.explain("ij,j->i", A, x, schedule="parallelize()").steps[-1].stmt
    assert not any(isinstance(loop.tag, Divide) for loop in loops_of(stmt))
    tall = ns.from_torch(torch.ones(2000, 2), ns.CSR)
    assert is_divided("ij,i->j", tall, torch.ones(2000))


def test_unordered_rows_are_not_divided(workers: list[int]) -> None:
    A = ns.from_torch(torch.ones(4, 4), Format("(i, j) -> (j: dense, i: compressed(ordered=False))"))
    assert not is_divided("ij,j->i", A, torch.ones(4))
