"""Dense copies between layouts: square blocks are transposed in registers, so that reads and writes are both contiguous."""

from __future__ import annotations

from ..ir import index as ix
from ..ir.loop import Assign, Block, Choose, Const, Do, For, Store, Var, as_expr, call
from ..schedule import tuning
from .environment import Env, size_of, stride_of


def lower_transposed(stmt: ix.Forall, lanes: int, env: Env) -> Block:
    """Copy squares of ``lanes`` by ``lanes`` values, and the remainder of either extent value by value.

    Each worker copies a part of the columns, unless an outer loop is shared out. The last worker copies the remaining columns.
    """
    inner = stmt.body
    if not isinstance(inner, ix.Forall) or not isinstance(inner.body, ix.Assignment) or not isinstance(inner.body.rhs, ix.Access):
        raise TypeError(f"{stmt} is not a copy in two loops")
    target, source, outer, start = inner.body.lhs, inner.body.rhs, stmt.var, as_expr(0)
    row, column, one, worker, workers = map(Var, (outer.name, inner.var.name, f"{outer}_u0", "worker", "workers"))
    columns, blocks = size_of(inner.var), size_of(inner.var) // lanes
    first, stop, end = (Var(f"{inner.var}_{at}") for at in ("first", "stop", "end"))
    bounds: Block = (Assign(first, Const(0)), Assign(stop, blocks * lanes), Assign(end, columns))
    if not env.coords:
        starts = (blocks * at // workers * lanes for at in (worker, worker + 1))
        bounds = (*map(Assign, (first, stop), starts), Assign(end, Choose(worker + 1 < workers, stop, columns)))
    in_edge = _one(source, target, env.bind(outer, one).bind(inner.var, column))
    loops = list[For]()
    for count in (tuning.TRANSPOSED_SQUARES, 1):
        width = count * lanes
        squares = For(column, first, stop, _squares(source, target, outer, inner.var, lanes, count, env), step=Const(lanes))
        edge = For(column, stop, end, (For(one, row, row + width, in_edge),))
        loops.append(For(row, start, size_of(outer) // width * width, (squares, edge), step=Const(width)))
        start = loops[-1].stop
    remainder = _one(source, target, env.bind(outer, row).bind(inner.var, column))
    copy: Block = (*bounds, *loops, For(row, start, size_of(outer), (For(column, first, end, remainder),)))
    return copy if env.coords else (For(worker, Const(0), workers, copy, parallel=True),)


def _squares(source: ix.Access, target: ix.Access, outer: ix.IndexVar, inner: ix.IndexVar, lanes: int, count: int, env: Env) -> Block:
    """Return the code that copies ``count`` adjacent squares."""
    here = env.bind(outer, Var(outer.name)).bind(inner, Var(inner.name))
    apart, between = stride_of(source, source.indices.index(inner)), stride_of(target, target.indices.index(outer))
    read, written = (Var(f"{access.tensor}_vals") for access in (source, target))
    places = [(here.position(source) + at, here.position(target) + between * at) for at in range(0, count * lanes, lanes)]
    return tuple(Do(call("transpose", read, first, apart, written, to, between, Const(lanes))) for first, to in places)


def _one(source: ix.Access, target: ix.Access, env: Env) -> Block:
    return (Store(Var(f"{target.tensor}_vals"), env.position(target), Var(f"{source.tensor}_vals")[env.position(source)]),)
