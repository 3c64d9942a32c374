"""Loops whose coordinates are known when a kernel is generated: the body is emitted once for each, with separate registers."""

from __future__ import annotations

from dataclasses import replace

from ..ir import index as ix
from ..ir.dtype import DTYPES
from ..ir.level import Segment
from ..ir.loop import Accumulate, Assign, BinOp, Block, Const, Do, Expr, For, Stmt, Var, call
from ..ir.workspace_levels import Held
from ..schedule import tuning
from .coiteration import at_position
from .environment import Env, Iterator, Lower, TableKind, partial_register
from .expressions import gathered_product
from .unrolling import interleaved
from .workspaces import has_level


def lower_kind_tiles(stmt: ix.Forall, env: Env, lower: Lower) -> Block:
    """Lower the body for each kind of the positions in a tile, or of all positions. The first sums of a row are written, others added."""
    it, (start, _) = env.iterated(stmt.var)[0], env.bounds(stmt.var)
    table = _table_below(it)
    is_first = None if start == Const(0) else BinOp("==", start, Const(0))
    body: list[Stmt] = []
    for kind, rows in enumerate(table):
        fresh = tuple(row for row in rows if not any(row in earlier for earlier in table[:kind]))
        body += lower(stmt.body, replace(env, kind=TableKind(kind, rows, fresh, is_first)))
    return tuple(body)


def lower_kinds(stmt: ix.Forall, lanes: int, env: Env, lower: Lower) -> Block:
    """Loop over the positions of the current kind, chunk by chunk. Only a shorter last chunk needs computed bounds.

    Unless it is 0, ``lanes`` is the number of positions that fill a register in whole chunks.
    """
    it, number = env.iterated(stmt.var)[0], env.kind.number if env.kind is not None else 0
    chunk, first, stop = Var(f"{stmt.var}_chunk"), Var(f"{stmt.var}_first"), Var(f"{stmt.var}_stop")
    (start, end), size = env.bounds(stmt.var), it.level.kind_chunk
    step = at_position(stmt.var, it, it.position, env, lambda known: lower(stmt.body, known))
    whole, part = (it.level.kind_starts(it.mode, chunk, is_whole)[number : number + 2] for is_whole in (True, False))
    clears, sums = list[Stmt](), list[Stmt]()
    walk = For(it.position, whole[0], whole[1], step)
    if lanes:
        clears, step_of_lanes, sums = _in_lanes(stmt, it, lanes, env)
        walk = For(it.position, whole[0], whole[1], step_of_lanes, step=Const(lanes))
    in_chunk = (*_prefetched(it, whole[0]), walk)
    in_part = (Assign(first, part[0]), Assign(stop, part[1]), For(it.position, first, stop, step))
    return (
        *clears,
        For(chunk, start if start == Const(0) else start // size, end // size, in_chunk),
        For(chunk, end // size, (end + (size - 1)) // size, in_part),
        *sums,
    )


def _in_lanes(stmt: ix.Forall, it: Iterator, lanes: int, env: Env) -> tuple[list[Stmt], Block, list[Stmt]]:
    """Return the code that clears a register for each row, that adds a register of positions to each, and that sums their lanes."""
    clears, steps, sums, rows = list[Stmt](), list[Stmt](), list[Stmt](), stmt.body
    if not isinstance(rows, ix.Forall):
        raise TypeError(f"{stmt} has no loop over the rows of a kind")
    for at, (row, _) in enumerate(_coordinates(rows, env)):
        inner, added = replace(env, copy=(rows.var, at)), next(ix.assignments(_at(rows.body, rows.var, row)))
        register = inner.registers[added.lhs.tensor.name]
        total, terms = partial_register(register.name), gathered_product(added.rhs, stmt.var, it, lanes, inner)
        clears.append(Assign(total, call("splat", Const(0.0, added.lhs.tensor.dtype), lanes)))
        steps.append(Assign(total, terms.added_to(total)))
        sums.append(Accumulate(register, call("hsum", total)))
    return clears, tuple(steps), sums


def _prefetched(it: Iterator, first: Expr) -> Block:
    """Load the positions of a kind that starts at ``first``, but of the next parent, into the nearest cache.

    The processor does not load the positions of the next parent ahead: those of one kind in a tile are few, and far from the others.
    """
    table, tensor = _table_below(it), it.access.tensor
    each, ahead = it.level.kind_chunk // len(table), first + it.mode.size
    index_bytes = DTYPES[it.level.array_dtype("crd") or tensor.index_dtype].itemsize
    arrays = ((it.mode.crd, 1, index_bytes), (it.mode.values, len(table[0]), tensor.type.itemsize))
    return tuple(
        Do(call("prefetch", array, ahead * times + at))
        for array, times, itemsize in arrays
        for at in range(0, each * times, tuning.PREFETCHED_LINE // itemsize)
    )


def _table_below(it: Iterator) -> tuple[tuple[int, ...], ...]:
    """Return the coordinates of each kind in the level below."""
    return it.access.tensor.format.levels[it.at + 1].constants


def lower_constant(stmt: ix.Forall, env: Env, lower: Lower) -> Block:
    """Lower the body for each coordinate; loads that all coordinates share run once."""
    copies = [
        lower(_at(stmt.body, stmt.var, coordinate), replace(env.bind(stmt.var, Const(coordinate), segments), copy=(stmt.var, at)))
        for at, (coordinate, segments) in enumerate(_coordinates(stmt, env))
    ]
    return interleaved(copies)


def _coordinates(stmt: ix.Forall, env: Env) -> list[tuple[int, dict[str, Segment]]]:
    """Return the rows of the current kind, with their positions if the loop iterates an operand."""
    rows = () if env.kind is None else env.kind.rows
    iterators = env.iterated(stmt.var)
    if not iterators:
        return [(row, {}) for row in rows]
    (it,), first = iterators, iterators[0].bounds[0]
    return [(row, {it.name: it.segment(first + at)}) for at, row in enumerate(rows)]


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
