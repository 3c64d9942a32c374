"""Workspaces that hold a row: coordinates are inserted, and appended to the result when the row is done.

A result with a pattern of its own is appended to in the order of its levels. Where a summed loop
stands above the last one, a row's entries come in no order, and some more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import index as ix
from ..ir.functions import REDUCTIONS
from ..ir.loop import Accumulate, Assign, BinOp, Block, Const, Do, Expr, If, Stmt, Store, Var, call
from .environment import Env, clear, size_of
from .results import Assembly
from .values import joined, lower_product

Lower = Callable[[ix.Stmt, Env], Block]


def lower_workspace(stmt: ix.Where, target: ix.TensorVar, env: Env, lower: Lower) -> Block:
    """Coordinates are inserted into a list, marked where they are in it, and their values added up; then all are read in order."""
    access = ix.result_of(stmt.producer)
    count = Var(f"{target.name}_count")
    inner = replace(env, inserted=env.inserted | {target.name})
    filled = (Accumulate(Var(f"{target.name}_stamp"), Const(1)), Assign(count, Const(0)), *lower(stmt.producer, inner))
    if env.assembly is not None and env.assembly.counting:
        return (*filled, Accumulate(env.assembly.counters[-1], count))
    listed, mark, stamp = (Var(f"{target.name}_{part}") for part in ("list", "mark", "stamp"))
    ordered = Do(call("ordered", listed, mark, stamp, count, size_of(access.indices[0])))
    return (*filled, ordered, *lower(stmt.consumer, replace(inner, operands=(*env.operands, access))))


def insert(stmt: ix.Assignment, env: Env) -> Block:
    """Add to a workspace's value; a coordinate's first one puts it into the list."""
    name = stmt.lhs.tensor.name
    count, mark, stamp, values = (Var(f"{name}_{part}") for part in ("count", "mark", "stamp", "vals"))
    coord = env.coords[stmt.lhs.indices[0]]
    first: list[Stmt] = [Store(mark, coord, stamp), Store(Var(f"{name}_list"), count, coord), Accumulate(count, Const(1))]
    if env.assembly is not None and env.assembly.counting:
        return (If(BinOp("!=", mark[coord], stamp), tuple(first)),)
    product = lower_product(stmt.rhs, env, as_vector=False)
    first.append(Store(values, coord, Const(REDUCTIONS[stmt.op].identity, stmt.lhs.tensor.dtype)))
    add = Store(values, coord, product.scalar if stmt.op == "+=" else joined(stmt.op, values[coord], product.scalar), stmt.op == "+=")
    return (*product.setup, If(BinOp("!=", mark[coord], stamp), tuple(first)), add)


def append(stmt: ix.Assignment, assembly: Assembly, env: Env) -> Block:
    """Write the next value of an assembled result, and its coordinates."""
    if assembly.counting:
        return assembly.append(env.coords)
    product = lower_product(stmt.rhs, env, as_vector=False)
    store = Store(Var(f"{stmt.lhs.tensor.name}_vals"), env.position(stmt.lhs), product.scalar)
    return (*product.setup, store, *assembly.append(env.coords))


def appends(consumer: ix.Stmt, env: Env) -> bool:
    """Whether the consumer appends an entry to an assembled result, which is wanted only if there is a term."""
    result = ix.result_of(consumer).tensor
    if env.assembly is None:
        return False
    return result.name in env.inserted or (result == env.assembly.access.tensor and env.assembly.appends_values)


def lower_counted(stmt: ix.Where, target: ix.TensorVar, op: str, env: Env, lower: Lower) -> Block:
    """A register beside which its terms are counted: those that are missing are 0, and without any there is no entry."""
    seen = Var(f"{target.name}_seen")
    inner = replace(env, counted=env.counted | {target.name})
    body = (Assign(seen, Const(0)), *clear(target, inner, REDUCTIONS[op].identity), *lower(stmt.producer, inner))
    if op != "+=" and not REDUCTIONS[op].of_stored:
        terms: Expr = Const(1)
        for each in ix.loops_of(stmt.producer):
            terms = terms * size_of(each.var)
        register = env.registers[target.name][0]
        body = (*body, If(seen < terms, (Assign(register, joined(op, register, Const(0.0, target.dtype))),)))
    done = lower(stmt.consumer, inner)
    return (*body, If(Const(0) < seen, done)) if appends(stmt.consumer, env) else (*body, *done)
