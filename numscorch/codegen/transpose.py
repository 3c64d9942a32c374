"""Dense copies between layouts: square blocks are transposed in registers, so that reads and writes are both contiguous."""

from __future__ import annotations

from ..ir import index as ix
from ..ir.loop import Block, Const, Do, For, Store, Var, call
from ..schedule import tuning
from .environment import Env, size_of, stride_of


def lower_transposed(stmt: ix.Forall, lanes: int, env: Env) -> Block:
    """Copy squares of ``lanes`` by ``lanes`` values, and the remainder of either extent value by value."""
    inner = stmt.body
    if not isinstance(inner, ix.Forall) or not isinstance(inner.body, ix.Assignment) or not isinstance(inner.body.rhs, ix.Access):
        raise TypeError(f"{stmt} is not a copy in two loops")
    target, source, outer, width = inner.body.lhs, inner.body.rhs, stmt.var, tuning.TRANSPOSED_SQUARES * lanes
    rows, columns = size_of(outer) // width * width, size_of(inner.var) // lanes * lanes
    row, column = Var(outer.name), Var(inner.var.name)
    squares = For(column, Const(0), columns, _squares(source, target, outer, inner.var, lanes, env), step=Const(lanes))
    one = Var(f"{outer}_u0")
    in_edge = _one(source, target, env.bind(outer, one).bind(inner.var, column))
    edge = For(column, columns, size_of(inner.var), (For(one, row, row + width, in_edge),))
    last = For(column, Const(0), size_of(inner.var), _one(source, target, env.bind(outer, row).bind(inner.var, column)))
    return (For(row, Const(0), rows, (squares, edge), step=Const(width)), For(row, rows, size_of(outer), (last,)))


def _squares(source: ix.Access, target: ix.Access, outer: ix.IndexVar, inner: ix.IndexVar, lanes: int, env: Env) -> Block:
    """Return the code that copies the adjacent squares of one step."""
    here = env.bind(outer, Var(outer.name)).bind(inner, Var(inner.name))
    apart, between = stride_of(source, source.indices.index(inner)), stride_of(target, target.indices.index(outer))
    squares = []
    for at in range(0, tuning.TRANSPOSED_SQUARES * lanes, lanes):
        read, written = here.position(source) + at, here.position(target) + between * at
        names = Var(f"{source.tensor}_vals"), Var(f"{target.tensor}_vals")
        squares.append(Do(call("transpose", names[0], read, apart, names[1], written, between, Const(lanes))))
    return tuple(squares)


def _one(source: ix.Access, target: ix.Access, env: Env) -> Block:
    return (Store(Var(f"{target.tensor}_vals"), env.position(target), Var(f"{source.tensor}_vals")[env.position(source)]),)
