"""divide: workers share a loop that scatters, and each adds its part of the result."""

from __future__ import annotations

from dataclasses import replace

from ..ir.index import Assignment, Divide, Forall, Serial, Stmt, unwrap
from ..ir.verify import can_divide
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target


def divide(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Let all workers run the outermost loop if a loop inside scatters along rows of an operand; None if none does.

    Each worker adds to its part of the result, in the order of the serial loop. So results are bitwise equal for any number of
    workers.

    >>> from ..ir.format import CSC
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(j, forall(i, y[i] += A[i,j] * x[j]))", {"A": TensorVar("A", CSC)})
    >>> print(*divide(nest, Facts(())) or (), sep="\\n")
    divide_forall<i>(j, forall(i, y[i] += A[i,j] * x[j]))
    y is scattered along i: each worker adds its part of y
    """
    match stmt:
        case Forall(tag=Serial()) if options.parallel is None:
            loops, assignment = unwrap(stmt)
            for loop in loops[1:]:
                if isinstance(assignment, Assignment) and can_divide(stmt, loop.var.name):
                    why = f"{assignment.lhs.tensor} is scattered along {loop.var}: each worker adds its part of {assignment.lhs.tensor}"
                    return replace(stmt, tag=Divide(loop.var.name)), why
    return None
