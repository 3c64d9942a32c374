"""Long sums in random formats are as exact as torch's, in registers and in scatter loops."""

from __future__ import annotations

import pytest
import torch
from random_sums import STRIDED, SumCase, failure, random_case
from scale import scaled

import numscorch as ns
from numscorch.codegen.long_sums import block_sums
from numscorch.ir.index import Divide, PartialSums, Serial, loops_of
from numscorch.ir.loop import Accumulate, Assign, Const, If, Var, While, all_of

BLOCKED = "(i, j) -> (i // 2: dense, j // 2: compressed, i % 2: dense, j % 2: dense)"
REGRESSIONS = (
    SumCase("ijk->ik", (("i", 2), ("j", 100_000), ("k", 1)), ("dss",)),
    SumCase("ij,i->j", (("i", 100_000), ("j", 2)), ("CSR", STRIDED)),
    SumCase("ijk,j->ik", (("i", 1), ("j", 100_000), ("k", 2)), ("COO(3)", STRIDED), dtype="float64"),
    SumCase("ij,i->j", (("i", 100_000), ("j", 1)), ("sd", "(i) -> (i: bitmap)")),
    SumCase("ijk->i", (("i", 3), ("j", 547), ("k", 547)), ("COO(3)",), "positive", "float64", 0.5),
    SumCase("ijk->i", (("i", 3), ("j", 100_000), ("k", 2)), ("CSF(3)",), density=0.5),
    SumCase("ij,ij->i", (("i", 4), ("j", 300_000)), ("sd", STRIDED)),
    SumCase("ij,ik->jk", (("i", 300_000), ("j", 1), ("k", 4)), (BLOCKED, STRIDED)),
    SumCase("ij,ij->i", (("i", 1), ("j", 300_000)), ("CSR", "CSR"), "positive"),
)
SCATTERED = (
    *(("ij->j", (2000, 3), name) for name in ("CSR", "COO(2)", "DCSR", "ELL", "BCSR(4, 4)", "sd", BLOCKED)),
    *(("ij->i", (3, 2000), name) for name in ("CSC", "DCSC")),
    *(("ij,i->j", (2000, 3), name) for name in ("CSR", "COO(2)", "DCSR")),
    *(("bij,bi->bj", (2, 2000, 3), name) for name in ("dds", "dss", "sss")),
    *(("bij->bj", (2, 2000, 3), name) for name in ("dds", "COO(3)")),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(scaled(40)))
def test_random_long_sums(seed: int, fresh_plans: pytest.MonkeyPatch) -> None:
    assert failure(random_case(seed)) is None, random_case(seed)


@pytest.mark.parametrize("case", REGRESSIONS, ids=str)
def test_regressions(case: SumCase, fresh_plans: pytest.MonkeyPatch) -> None:
    assert failure(case) is None


@pytest.mark.parametrize(("expr", "shape", "format"), SCATTERED)
def test_sums_in_blocks_add_each_term_once(expr: str, shape: tuple[int, ...], format: str, plain: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    full = torch.randint(0, 4, shape, generator=generator).float()
    A, others = ns.from_torch(full, format), [torch.randint(1, 4, shape[:-1], generator=generator).float()] * expr.count(",")
    result = ns.einsum(expr, A, *others)
    assert torch.equal(result if isinstance(result, torch.Tensor) else result.to_dense(), torch.einsum(expr, full, *others))


def test_tall_matrices_are_summed_in_blocks_and_square_ones_are_not() -> None:
    tall, square = (ns.from_torch(torch.ones(rows, 4), "CSR") for rows in (5000, 4))
    loops = {A.shape[0]: loops_of(ns.explain("ij,i->j", A, torch.ones(len(A))).steps[-1].stmt) for A in (tall, square)}
    assert any(isinstance(loop.tag, Divide) and loop.tag.blocks for loop in loops[5000])
    assert all(isinstance(loop.tag, Serial | Divide) for loop in loops[4])
    assert not any(isinstance(loop.tag, Divide) and loop.tag.blocks for loop in loops[4])


def test_merges_are_cut_at_ends_of_blocks() -> None:
    p, q, n, t = Var("p"), Var("q"), Var("n"), Var("t")
    step = (Accumulate(t, Var("x")[p]), If(p < q, (Accumulate(p, Const(1)),)), If(q < p + 1, (Accumulate(q, Const(1)),)))
    merge = While(all_of([p < n, q < n]), step, PartialSums((64,)))
    _, loop = block_sums((Assign(t, Const(0.0, "float32")), merge))
    assert isinstance(loop, While)
    assert loop.condition == merge.condition
    assert [inner.condition for inner in loop.body if isinstance(inner, While)] == [all_of([p < Var("p_last1"), q < n])]


def test_results_do_not_depend_on_the_number_of_threads(fresh_plans: pytest.MonkeyPatch) -> None:
    A, x = ns.from_torch(torch.rand(2, 20_000, 3), "dds"), torch.rand(2, 20_000)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(ns.einsum("bij,bi->bj", A, x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)
