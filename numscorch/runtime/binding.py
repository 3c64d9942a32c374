"""bind: creates the function that turns operands into kernel arguments, specialised to one plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..codegen.kernel import Kernel
from ..codegen.result_assembly import Stage
from ..frontend.operand import Operand
from ..frontend.problem import Problem
from ..ir import index as ix
from .assembling_binder import AssemblingBinder
from .binder import Binder


def bind(
    problem: Problem,
    stmt: ix.Stmt,
    kernel: Kernel,
    operands: Sequence[Operand],
    before: Mapping[Stage, Kernel],
    copies: Mapping[int, Callable[..., Any]],
    parallel: bool,
    into: bool = False,
) -> Callable[..., Any]:
    """Create a function ``run(operand0, operand1, ...)`` that calls the kernel and returns the result.

    ``before`` holds the earlier stages of a result with a new pattern, such as counting its entries. ``copies`` holds functions
    that copy a dense operand to another layout, by the number of the operand; the number after the last operand copies the
    result back. ``parallel`` says whether several workers pay. With ``into``, the function also takes an array for a dense
    result.
    """
    assembles = problem.result.is_assembled
    if assembles:
        binder: Binder = AssemblingBinder(problem, stmt, kernel, operands, parallel, before)
    else:
        binder = Binder(problem, stmt, kernel, operands, parallel, into)
    binder.scope |= {f"L{at}": copy for at, copy in copies.items()}
    return binder.function()
