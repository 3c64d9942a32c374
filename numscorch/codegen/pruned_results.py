"""Pruned results: only the kept values of each computed row are appended, without a branch for each value.

An entry is stored if the condition of its value holds, ``where(condition, value, 0)``, or if it is among the largest of its
block. The lanes of a register are packed at once. A single value is always written, and the next value overwrites it unless
it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ScheduleError
from ..ir import index as ix
from ..ir.functions import is_zero
from ..ir.loop import Assign, BinOp, Block, Const, Expr, Store, Var, call
from .environment import Env, Lanes, size_of
from .expressions import lower_product
from .result_assembly import Assembly


@dataclass(frozen=True, slots=True)
class PruningTest:
    """An entry's value and its condition. Entries are stored if it is nonzero (zero if ``is_dropped``); None stores all entries."""

    value: ix.Expr
    condition: ix.Expr | None
    is_dropped: bool = False


def pruning_test(value: ix.Expr) -> PruningTest:
    """Split the value of a pruned result into an entry's value and its condition.

    >>> from ..ir.notation import parse_expr
    >>> print(pruning_test(parse_expr("where(abs(x[i]) <= t, 0, x[i])")).condition)
    abs(x[i]) <= t
    >>> pruning_test(parse_expr("x[i]")).condition is None
    True
    """
    *factors, last = ix.factors_of(value)
    if isinstance(last, ix.Apply) and last.function == "where":
        condition, kept, dropped = last.args
        if is_zero(dropped):
            return PruningTest(ix.product([*factors, kept]), condition)
        if is_zero(kept):
            return PruningTest(ix.product([*factors, dropped]), condition, is_dropped=True)
    return PruningTest(value, None)


def append_pruned(stmt: ix.Assignment, assembly: Assembly, env: Env) -> Block:
    """Append one value, or the lanes of a tile, if they are kept."""
    if env.lanes is not None and env.lanes.var in stmt.lhs.indices:
        return _append_tile(stmt, assembly, env, env.lanes)
    name, test = stmt.lhs.tensor.name, pruning_test(stmt.rhs)
    product, value = lower_product(test.value, env, as_vector=False), Var(f"{name}_value")
    before, is_kept = _is_kept(stmt, test, env)
    write = (Assign(value, product.scalar), Store(Var(f"{name}_vals"), env.position(stmt.lhs), value))
    return (*product.setup, *write, *before, *assembly.append_if(is_kept, env.coords))  # a branch would be mispredicted


def _is_kept(stmt: ix.Assignment, test: PruningTest, env: Env) -> tuple[Block, Expr]:
    """Return the setup of the test, and whether one value is kept."""
    if stmt.lhs.tensor.largest is not None:
        n, m = stmt.lhs.tensor.largest
        if not isinstance(test.value, ix.Access) or len(test.value.indices) != 1:
            raise ScheduleError(f"{stmt}: the {n} largest of {m} need a row that lies in memory, but the value is {test.value}")
        (var,) = test.value.indices
        larger = call("outranked", Var(f"{test.value.tensor.name}_vals"), env.coords[var], Const(m), size_of(var))
        return (), BinOp("<", larger, Const(n))
    if test.condition is None:
        return (), Const(1)
    condition = lower_product(test.condition, env, as_vector=False)
    return condition.setup, BinOp("==" if test.is_dropped else "!=", condition.scalar, Const(0.0, stmt.lhs.tensor.dtype))


def _append_tile(stmt: ix.Assignment, assembly: Assembly, env: Env, lanes: Lanes) -> Block:
    name, test = stmt.lhs.tensor.name, pruning_test(stmt.rhs)
    (counter,) = assembly.counters
    product = lower_product(test.value, env, as_vector=True)
    condition = None if test.condition is None else lower_product(test.condition, env, as_vector=True)
    out: list[Assign] = [assign for assign in (*product.setup, *(condition.setup if condition else ())) if isinstance(assign, Assign)]
    arrays = (Var(f"{name}_vals"), Var(f"{name}{len(stmt.lhs.indices)}_crd"))
    value, left = Var(f"{name}_value"), () if lanes.left is None else (lanes.left,)
    out.append(Assign(value, product.value()))
    if stmt.lhs.tensor.largest is not None:
        n, m = stmt.lhs.tensor.largest
        kept: Expr = call("largest", value, Const(n), Const(m), *left)
    else:
        kept = call("splat", Const(1.0, stmt.lhs.tensor.dtype), lanes.lanes) if condition is None else condition.value()
        kept = call("eq", kept, Const(0.0, stmt.lhs.tensor.dtype)) if test.is_dropped else kept
    return (*out, Assign(counter, call("appended", *arrays, counter, env.coords[lanes.var], value, kept, *left)))
