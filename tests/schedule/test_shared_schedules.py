"""Schedules and sources are shared among sizes that divide alike, and are those that each size would get alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fresh import forget_plans

import numscorch as ns
from numscorch import schedule as scheduling
from numscorch.codegen import source
from numscorch.codegen.source import generate
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import Problem, make_problem
from numscorch.frontend.requests import Operand
from numscorch.ir.format import dense
from numscorch.ir.index import IndexVar
from numscorch.runtime import plans
from numscorch.schedule import schedule
from numscorch.schedule.facts import Facts, Target, by_answers, forget_answers, is_divisible
from numscorch.schedule.loop_order import cheapest
from numscorch.schedule.parallel import pays

TARGETS = [Target(32, 16), Target(64, 32)]
Of = Callable[[int], Problem]


def csr(rows: int, columns: int, entries: int, dtype: str = "float32") -> Operand:
    return Operand(ns.CSR, (rows, columns), dtype, "int32", counts=(rows, entries))


def matrix(rows: int, columns: int, dtype: str = "float32") -> Operand:
    return Operand(dense(2), (rows, columns), dtype, strides=(columns, 1))


def problem(text: str, target: Target, *operands: Operand) -> Problem:
    return make_problem(parse_einsum(text, tuple(len(operand.shape) for operand in operands)), operands, target)


FAMILIES: dict[str, Callable[[int, Target], Problem]] = {
    "columns of SpMM": lambda n, target: problem("ij,jk->ik", target, csr(400, 400, 10_000), matrix(400, n)),
    "columns of SpMM, float64": lambda n, target: problem("ij,jk->ik", target, csr(400, 400, 10_000, "float64"), matrix(400, n, "float64")),
    "rows of the batch of a sparse layer": lambda n, target: problem("ij,kj->ki", target, csr(400, 400, 10_000), matrix(n, 400)),
    "long rows": lambda n, target: problem("ij,jk->ik", target, csr(n, 4000, 1000 * n), matrix(4000, 64)),
    "graphs": lambda n, target: problem("ij,jk->ik", target, csr(n, n, 4 * n), matrix(n, 32)),
    "products of matrices": lambda n, target: problem("ij,jk->ik", target, csr(n, n, 4 * n), csr(n, n, 4 * n)),
    "row sums": lambda n, target: problem("ij->i", target, csr(n, 300, 20 * n)),
    "SDDMM": lambda n, target: problem("ij,ik,jk->ij", target, csr(300, 300, 9000), matrix(300, n), matrix(300, n)),
    "dense products": lambda n, target: problem("ij,jk->ik", target, matrix(n, 40), matrix(40, n)),
}


@pytest.mark.parametrize("target", TARGETS, ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_gets_the_schedule_and_the_source_it_would_get_alone(family: str, target: Target, plain: pytest.MonkeyPatch) -> None:
    texts: dict[Any, str] = {}
    for size in range(1, 601, 1 if family == "columns of SpMM" else 7):
        task = FAMILIES[family](size, target)
        steps = schedule(task.stmt, task.facts, target)
        alone: Any = schedule.__wrapped__(task.stmt, task.facts, target)  # type: ignore[attr-defined]
        assert [(step.stmt, step.why) for step in steps] == [(step.stmt, step.why) for step in alone]
        assert cheapest(task.stmt, task.facts, target).cost == cheapest.__wrapped__(task.stmt, task.facts, target).cost  # type: ignore[attr-defined]
        stmt = steps[-1].stmt
        assert pays(stmt, task.facts) == pays.__wrapped__(stmt, task.facts)  # type: ignore[attr-defined]
        if stmt not in texts:
            texts[stmt] = generate.__wrapped__(stmt, target).text
        assert generate(stmt, target).text == texts[stmt]


def counted(patch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the schedules and sources that are computed."""
    numbers = {"schedules": 0, "sources": 0}
    first, assemble = scheduling.PASSES[0], source.assemble

    def order(*arguments: Any) -> Any:
        numbers["schedules"] += 1
        return first(*arguments)

    order.__name__ = first.__name__

    def assembled(*arguments: Any) -> Any:
        numbers["sources"] += 1
        return assemble(*arguments)

    patch.setattr(scheduling, "PASSES", (order, *scheduling.PASSES[1:]))
    patch.setattr(source, "assemble", assembled)
    return numbers


MOST = {  # schedules and sources for 512 sizes
    "columns of SpMM": (80, 50),
    "rows of the batch of a sparse layer": (80, 50),
    "graphs": (40, 40),
    "products of matrices": (40, 40),
    "row sums": (60, 60),
}


@pytest.mark.parametrize("family", MOST)
def test_few_schedules_and_sources_serve_many_sizes(family: str, plain: pytest.MonkeyPatch) -> None:
    numbers = counted(plain)
    for size in range(1, 513):
        task = FAMILIES[family](size, TARGETS[1])
        stmt = schedule(task.stmt, task.facts, TARGETS[1])[-1].stmt
        generate(stmt, TARGETS[1])
    assert numbers["schedules"] <= MOST[family][0]
    assert numbers["sources"] <= MOST[family][1]


def test_a_call_with_a_similar_size_makes_no_schedule_and_no_source(plain: pytest.MonkeyPatch) -> None:
    forget_plans(plain)
    A = ns.from_torch(torch.eye(40), ns.CSR)
    for width in (100, 101):
        assert torch.equal(A @ torch.ones(40, width), torch.ones(40, width))
    numbers = counted(plain)
    before = len(plans.PROCESS.plans)
    assert torch.equal(A @ torch.ones(40, 103), torch.ones(40, 103))
    assert len(plans.PROCESS.plans) > before
    assert numbers == {"schedules": 0, "sources": 0}


def test_functions_that_ask_differently_share_nothing_wrong() -> None:
    i = IndexVar("i")

    @by_answers
    def steps(facts: Facts, names: str) -> tuple[str, bool, bool]:
        """The second question depends on the first answer."""
        first = is_divisible(facts.exact[i], 2)
        return names, first, is_divisible(facts.exact[i], 4 if first else 3)

    for size in [*range(97, 129)] * 2:
        for names in ("a", "b"):
            assert steps(Facts.of({i: size}, {}, 8, TARGETS[0]), names) == (names, size % 2 == 0, size % (3 if size % 2 else 4) == 0)


def test_a_function_depends_on_the_questions_of_the_functions_that_it_calls() -> None:
    i = IndexVar("i")

    @by_answers
    def inner(facts: Facts) -> bool:
        return is_divisible(facts.exact[i], 2)

    @by_answers
    def outer(facts: Facts, name: str) -> tuple[str, bool]:
        return name, inner(facts)

    for size in range(97, 129):
        for name in ("a", "b"):
            assert outer(Facts.of({i: size}, {}, 8, TARGETS[0]), name) == (name, size % 2 == 0)


def test_forgotten_sources_are_generated_anew(plain: pytest.MonkeyPatch) -> None:
    task = FAMILIES["columns of SpMM"](16, TARGETS[0])
    stmt = schedule(task.stmt, task.facts, TARGETS[0])[-1].stmt
    first = generate(stmt, TARGETS[0])
    assert generate(stmt, TARGETS[0]) is first
    forget_answers()
    assert generate(stmt, TARGETS[0]) is not first
