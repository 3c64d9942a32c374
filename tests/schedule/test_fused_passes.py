"""Fused statements go through the same list of passes as a single statement."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from corpus import TARGET
from named_kernels import KERNELS, plain as dense, stored

import numscorch as ns
from numscorch import schedule as scheduling
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import make_problem
from numscorch.frontend.statements import parse_program
from numscorch.ir.index import Stmt, assignments
from numscorch.runtime.plans import uncompiled
from numscorch.schedule import PASSES, Step, schedule
from numscorch.schedule.facts import forget_answers

LAYER = "D[i,k] = relu(A[i,j] * X[j,k] + b[k])"
SOFTMAX = "m[i] stored max= A[i,j]; E[i,j] = stored(A[i,j]) * exp(A[i,j] - m[i]); l[i] = E[i,j]; P[i,j] = E[i,j] / l[i]"


def steps_of(text: str) -> tuple[Step, ...]:
    """The passes on a program whose parts are one kernel."""
    formats = {name: ns.CSR if name == "A" else "dense" for name in "AXb" if name in text}
    explanation = ns.explain(text, **formats)
    assert isinstance(explanation.steps[0], Step) and explanation.steps[0].name == "fuse"
    return explanation.steps


@pytest.mark.parametrize("text", [LAYER, SOFTMAX])
@pytest.mark.parametrize("at", range(len(PASSES) + 1))
def test_a_pass_in_the_list_reaches_fused_statements(text: str, at: int, plain: pytest.MonkeyPatch) -> None:
    seen: list[Stmt] = []

    def dummy(stmt: Stmt, *_: Any) -> tuple[Stmt, str]:
        seen.append(stmt)
        return stmt, "seen"

    plain.setattr(scheduling, "PASSES", (*PASSES[:at], dummy, *PASSES[at:]))
    forget_answers()
    steps = steps_of(text)
    (step,) = (step for step in steps if step.name == "dummy")
    assert step.why == "seen" and seen == [step.stmt]
    written = {assignment.lhs.tensor.name for assignment in assignments(step.stmt)}
    assert written >= ({"D"} if text is LAYER else {"m_value", "E_row", "l_value", "B"})
    forget_answers()


def test_each_pass_applies_to_single_or_fused_statements() -> None:
    names = {step.name for text in (LAYER, SOFTMAX) for step in steps_of(text)}
    tall, blocks = stored(ns.CSR, (10**6, 4), 10**6, 4 * 10**6), stored(ns.BCSR(8, 8), (8000, 8000), 1000, 16_000, 128_000, 1_024_000)
    square = stored(ns.CSR, (8000, 8000), 8000, 64_000)
    others = ("ij->j", (tall,)), ("ij,i->j", (square, dense(8000))), ("ij,jk->ik", (blocks, dense(8000, 64)))
    for text, operands in (*KERNELS.values(), *others):
        if not text.startswith("to "):
            ranks = tuple(len(operand.shape) for operand in operands)
            problem = make_problem(parse_program(text)[0].request if "=" in text else parse_einsum(text, ranks), operands, TARGET)
            names |= {step.name for step in schedule(problem.stmt, problem.facts, TARGET)}
    assert names == {"fuse", *(one_pass.__name__ for one_pass in PASSES)}, "a pass applies to nothing"


@pytest.mark.parametrize("op", ["min=", "max="])
def test_a_fused_extreme_in_a_vector_loop_keeps_one_value_per_lane(op: str) -> None:
    torch.manual_seed(0)
    A = ns.from_torch((torch.randn(17, 17) * (torch.rand(17, 17) < 0.8)), ns.CSR)
    X, e = torch.randn(17, 2), torch.randn(17)
    with uncompiled():
        V = ns.evaluate(
            f"l[i,k] = X[j,k] * e[i]; R[i,k] {op} A[i,j] * sigmoid(p) * l[i,k]; V[i,k] = R[i,k]", A=A, X=X, e=e, p=torch.tensor(0.3)
        )
    terms = A.to_dense()[:, :, None] * torch.sigmoid(torch.tensor(0.3)) * (X.sum(0) * e[:, None])[:, None, :]
    torch.testing.assert_close(V, terms.amin(1) if op == "min=" else terms.amax(1))
