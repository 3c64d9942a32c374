"""Loops whose coordinates are known when a kernel is generated: the body is emitted once for each, with separate registers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ..ir import index as ix
from ..ir.level import Segment
from ..ir.loop import Assign, BinOp, Block, Const, Expr, For, Stmt, Var, call
from ..ir.workspace_levels import Held
from .coiteration import at_position
from .environment import Env, Iterator, Lower, TableKind, size_of
from .unrolling import interleaved
from .workspaces import has_level


def lower_kinds(stmt: ix.Forall, env: Env, lower: Lower) -> Block:
    """Loop over the positions of one level chunk by chunk, with a loop for each kind within a chunk."""
    it = env.iterated(stmt.var)[0]
    if env.kind is not None and env.kind.bounds is not None:
        return (For(it.position, *env.kind.bounds, at_position(stmt.var, it, it.position, env, lambda known: lower(stmt.body, known))),)
    chunk, start, stop = Var(f"{stmt.var}_chunk"), Var(f"{it.position.name}_start"), it.end
    first, *ends = it.level.kind_starts(it.mode, chunk)
    body: list[Stmt] = []
    for kind, end in enumerate(ends):
        inner = replace(env, kind=TableKind(kind))
        step = at_position(stmt.var, it, it.position, inner, lambda known: lower(stmt.body, known))
        body += [Assign(start, stop if kind else first), Assign(stop, end), For(it.position, start, stop, step)]
    first_chunk, last_chunk = _chunks(stmt.var, it, env)
    return (For(chunk, first_chunk, last_chunk, tuple(body)),)


def lower_kind_tiles(stmt: ix.Forall, env: Env, lower: Lower) -> Block:
    """Lower the body for the positions of each kind, chunk by chunk. Only a shorter last chunk needs computed bounds."""
    it, chunk = env.iterated(stmt.var)[0], Var(f"{stmt.var}_chunk")
    start, stop = Var(f"{it.position.name}_start"), Var(f"{it.position.name}_end")
    empty = BinOp("==", chunk, Const(0))
    rows = next(a for a in ix.operands_of(stmt) if a.tensor.name == it.name).tensor.format.levels[-1].constants

    def kinds(whole: bool) -> Block:
        body: list[Stmt] = []
        starts = it.level.kind_starts(it.mode, chunk, whole)
        for kind, (first, last) in enumerate(pairwise(starts)):
            if not whole:
                body += [Assign(start, first), Assign(stop, last)]
            bounds = (first, last) if whole else (start, stop)
            body += lower(stmt.body, replace(env, kind=TableKind(kind, bounds, rows[kind], empty)))
        return tuple(body)

    first_chunk, last_chunk = _chunks(stmt.var, it, env)
    last_chunk = call("max", last_chunk, Const(1)) if first_chunk == Const(0) else last_chunk  # without columns, one chunk writes zeros
    full_chunks = Var(f"{stmt.var}_whole")
    count = Assign(full_chunks, call("min", last_chunk, size_of(stmt.var) // it.level.kind_chunk))
    return (count, For(chunk, first_chunk, full_chunks, kinds(True)), For(chunk, full_chunks, last_chunk, kinds(False)))


def _chunks(var: ix.IndexVar, it: Iterator, env: Env) -> tuple[Expr, Expr]:
    """Return the first chunk and one past the last chunk: of the tile, which holds full chunks, or of all positions."""
    start, end = env.bounds(var)
    size = it.level.kind_chunk
    return start if start == Const(0) else start // size, (end + (size - 1)) // size


def lower_constant(stmt: ix.Forall, env: Env, lower: Lower) -> Block:
    """Lower the body for each coordinate; loads that all coordinates share run once."""
    copies = []
    for at, (coordinate, segments) in enumerate(_coordinates(stmt, env)):
        inner = replace(env.bind(stmt.var, Const(coordinate), segments), copy=(stmt.var, at))
        copies.append(lower(_at(stmt.body, stmt.var, coordinate), inner))
    return interleaved(copies)


def _coordinates(stmt: ix.Forall, env: Env) -> list[tuple[int, dict[str, Segment]]]:
    """Return the loop's coordinates with their positions: only the current kind's, if there is one, else all that have registers."""
    iterators = env.iterated(stmt.var)
    if iterators and env.kind is not None:
        (it,), first = iterators, iterators[0].bounds[0]
        return [(coordinate, {it.name: it.segment(first + at)}) for at, coordinate in enumerate(it.level.constants[env.kind.number])]
    if env.kind is not None and env.kind.rows is not None:
        return [(coordinate, {}) for coordinate in env.kind.rows]
    accesses = (access for a in ix.assignments(stmt) for access in (a.lhs, *ix.accesses_in(a.rhs)))
    held = next(access.tensor for access in accesses if has_level(access.tensor, Held))
    return [(coordinate, {}) for coordinate in range(len(registers_of(held)))]


def _at(stmt: ix.Stmt, var: ix.IndexVar, coordinate: int) -> ix.Stmt:
    """Replace a workspace that has a register for each coordinate by the register of one coordinate."""

    def register(access: ix.Access) -> ix.Access:
        held = has_level(access.tensor, Held) and access.indices == (var,)
        return ix.Access(registers_of(access.tensor)[coordinate], ()) if held else access

    return ix.map_expr(stmt, register)


def registers_of(space: ix.TensorVar) -> tuple[ix.TensorVar, ...]:
    """Return a scalar for each coordinate of a workspace, named t_0_, t_1_, ..."""
    size = getattr(space.format.levels[0], "size", 0)
    return tuple(ix.TensorVar(f"{space.name}_{coordinate}_", ix.SCALAR, space.dtype) for coordinate in range(size))
