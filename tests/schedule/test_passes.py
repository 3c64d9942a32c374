"""Each pass on a corpus of statements: the meaning never changes, and each step is well formed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest
from corpus import TARGET, as_if_large, corpus, means

from numscorch.ir.format import Format
from numscorch.ir.index import (
    Access,
    Assignment,
    Forall,
    Parallel,
    Stmt,
    Tile,
    Where,
    assignments,
    loops_of,
    operands_of,
    result_of,
    variables_in,
)
from numscorch.ir.verify import verify
from numscorch.schedule import PASSES, cost, schedule
from numscorch.schedule.facts import AUTOMATIC, Options, forget_answers
from numscorch.schedule.loop_order import order_loops
from numscorch.schedule.parallel import parallelize, pays
from numscorch.schedule.tiles import refusal, tile
from numscorch.schedule.workspace import insert_workspaces


def test_corpus_is_wide() -> None:
    assert len(corpus()) > 150
    stmts = [problem.stmt for problem, _ in corpus()]
    assert any(not a.tensor.has_values for s in stmts for a in operands_of(s))
    for problem, arrays in corpus():
        means(problem.stmt, problem, arrays)


@pytest.mark.parametrize("seed", range(3))
def test_no_pass_changes_the_meaning(seed: int) -> None:
    """run(pass(stmt)) == run(stmt), for the problem's facts and for facts of larger problems."""
    rng, used = random.Random(seed), set()
    for problem, arrays in corpus():
        facts = as_if_large(problem.facts, rng) if seed else problem.facts
        nest: Stmt = problem.stmt
        for one_pass in PASSES:
            tileable = [loop.var.name for loop in loops_of(nest) if one_pass is tile and seed and refusal(loop.var, nest) is None]
            options = Options(tile=(rng.choice(tileable), rng.choice((1, 2, 4, 8, 64)))) if tileable else AUTOMATIC
            if (step := one_pass(nest, facts, TARGET, options)) is None:
                continue
            used |= {one_pass.__name__} if step[0] != nest else set()
            nest, _ = step
            assert verify(nest) is nest
            means(nest, problem, arrays)
    assert {"order_loops", "insert_workspaces", "vectorize", "parallelize"} <= used


def reads_top_down(access: Access, order: list[str]) -> bool:
    """True if each level that must be iterated comes after all levels above it."""
    positions = [order.index(access.level_var(at).name) for at in range(len(access.indices))]
    return all(level.full or not at or positions[at] > max(positions[:at]) for at, level in enumerate(access.tensor.format.levels))


def walks_rows_again(access: Access, others: list[Access], order: list[str]) -> bool:
    """True if each step of the first loop walks the first level again, to locate rows that another operand selects."""
    row, level = access.level_var(0), access.tensor.format.levels[0]
    if level.full or order[0] in {var.name for var in access.indices}:
        return False
    return any(row in other.indices and not other.tensor.is_dense for other in others if other.tensor.name != access.tensor.name)


@pytest.mark.parametrize("seed", range(5))
def test_order_loops_is_concordant_and_converts_only_where_needed(seed: int) -> None:
    rng = random.Random(seed)
    for problem, _ in corpus():
        facts = as_if_large(problem.facts, rng)
        nest, why = order_loops(problem.stmt, facts, TARGET)
        order = [loop.var.name for loop in loops_of(nest)]
        assert sorted(order) == sorted(v.name for v in variables_in(problem.stmt.rhs))
        assert why.split(":")[0].replace(" ", "") == "".join(order)
        before = {a.tensor.name: a for a in operands_of(problem.stmt)}
        for access in operands_of(nest):
            assert access.indices == before[access.tensor.name].indices
            assert access.tensor.is_dense or reads_top_down(access, order), f"{nest} reads {access} against {access.tensor.format}"
            if access.tensor != before[access.tensor.name].tensor:
                assert access.tensor.name != problem.result.shares
                original = before[access.tensor.name]
                assert not reads_top_down(original, order) or walks_rows_again(original, list(before.values()), order)


def test_order_loops_transposes_nothing_for_a_lone_sparse_operand_read_in_its_own_order() -> None:
    for problem, _ in corpus():
        sparse = [a for a in operands_of(problem.stmt) if not a.tensor.is_dense]
        if len(sparse) == 1 and len(sparse[0].indices) < 3 and "B" not in {a.tensor.name for a in operands_of(problem.stmt)}:
            nest, _ = order_loops(problem.stmt, problem.facts, TARGET)
            assert [a.tensor for a in operands_of(nest)] == [sparse[0].tensor]


def test_order_loops_adds_only_where_it_sums() -> None:
    for problem, _ in corpus():
        nest, _ = order_loops(problem.stmt, problem.facts, TARGET)
        summed = set(variables_in(problem.stmt.rhs)) - set(problem.stmt.lhs.indices)
        assert next(assignments(nest)).op == ("+=" if summed else "=")


@pytest.mark.parametrize("order", list(permutations((0, 1, 2))))
def test_every_order_of_dimensions_is_looped_in_the_order_of_its_levels(order: tuple[int, ...]) -> None:
    problem = next(p for p, _ in corpus() if str(p.stmt.rhs) == "A[i,j,k]" and len(p.stmt.lhs.indices) == 1)
    A = operands_of(problem.stmt)[0]
    reordered = Access(replace(A.tensor, format=Format("sss", order)), A.indices)
    facts = replace(problem.facts, counts=(("A", reordered.tensor.format, (3, 10, 20)),))
    nest, _ = order_loops(Assignment(problem.stmt.lhs, reordered), facts, TARGET)
    assert "".join(loop.var.name for loop in loops_of(nest)) == "".join("ijk"[d] for d in order)


def test_workspaces_are_written_before_they_are_read() -> None:
    for problem, _ in corpus():
        nest, _ = order_loops(problem.stmt, problem.facts, TARGET)
        result = result_of(insert_workspaces(nest, problem.facts)[0])
        assert result.tensor.name == problem.result.name


@pytest.mark.parametrize("seed", range(3))
def test_only_loops_that_do_not_scatter_run_in_parallel(seed: int) -> None:
    """A parallel loop is the outermost except for tiles, and runs over the result or sums into one scalar."""
    rng = random.Random(seed)
    forget_answers()
    count = 0
    for problem, _ in corpus():
        stmt = schedule(problem.stmt, as_if_large(problem.facts, rng), TARGET)[-1].stmt
        loops = [loop for loop in loops_of(stmt) if isinstance(loop.tag, Parallel)]
        count += len(loops)
        assert len(loops) <= 1
        stmt = stmt.body if isinstance(stmt, Forall) and isinstance(stmt.tag, Tile) else stmt
        for loop in loops:
            if loop is stmt:
                assert loop.var in result_of(stmt).indices
            else:
                assert isinstance(stmt, Where)
                assert loop is stmt.producer
                assert not result_of(stmt).indices
    forget_answers()
    assert count > 50


def test_little_work_gets_one_worker() -> None:
    for problem, _ in corpus():
        stmt, _ = order_loops(problem.stmt, problem.facts, TARGET)
        parallel, why = parallelize(stmt, problem.facts)
        assert not pays(parallel, problem.facts)
        assert parallel is stmt or "one worker" in why


def test_operands_stored_in_another_order_have_the_same_dimensions() -> None:
    for problem, _ in corpus():
        for access in operands_of(problem.stmt):
            if access.tensor.is_dense or not access.tensor.has_values:
                continue
            for order in permutations(access.indices):
                if len(set(access.indices)) == len(order):
                    assert cost.is_concordant(cost.reordered(access, order), order)
