"""lower: turn a scheduled statement into loop IR, with one function for each kind of statement and loop."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from ..errors import ScheduleError
from ..ir import index as ix
from ..ir.functions import is_zero, simplified, terms_of
from ..ir.lattice import make_lattice
from ..ir.level import Segment
from ..ir.loop import Accumulate, Assign, BinOp, Block, Const, Do, Expr, For, If, Stmt, Store, Var, any_of, call, names_used
from ..ir.verify import chosen_rows
from ..ir.workspace_levels import Held, Scattered, Workspace
from .coiteration import loop, lower_blended
from .environment import Env, Lanes, clear, partial_register, size_of
from .expressions import guarded, is_varying, joined, load, lower_product, named_position
from .long_sums import lower_blocks, with_sums
from .table_loops import lower_constant, lower_kind_tiles, lower_kinds, registers_of
from .transpose import lower_transposed
from .unrolling import lower_jam, lower_jammed, lower_positions, lower_unrolled
from .workspaces import (
    append,
    appends,
    has_level,
    insert,
    lower_counted,
    lower_scattered,
    lower_workspace,
    scatter,
    stamps,
)


def lower(stmt: ix.Stmt, env: Env) -> Block:
    """Return the loop IR of a statement in an environment."""
    match stmt:
        case ix.Assignment():
            return lower_assignment(stmt, env)
        case ix.Where():
            return lower_where(stmt, env)
        case ix.Forall():
            return with_sums(_lower_tagged(stmt, env), stmt)
        case _:
            assert_never(stmt)


def _lower_tagged(stmt: ix.Forall, env: Env) -> Block:
    match stmt.tag:
        case ix.Serial():
            return lower_serial(stmt, env)
        case ix.Parallel():
            return lower_parallel(stmt, env)
        case ix.Divide(var, blocks):
            plain = replace(stmt, tag=ix.Blocks(blocks) if blocks else ix.Serial())
            return _divided(plain, var, env)
        case ix.Unroll(times):
            if isinstance(stmt.body, ix.Where):
                return lower_jammed(stmt, stmt.body, times, env, lower)
            return lower_unrolled(stmt, times, env, lower)
        case ix.Positions() as tag:
            return lower_positions(stmt, tag, env, lower)
        case ix.Vector() as tag:
            return lower_vector(stmt, tag, env)
        case ix.FlatSum():
            raise ScheduleError(f"{stmt.tag}({stmt.var}, ...): the tag is only for a producer that fills a workspace with one sum")
        case ix.Each():
            return lower_serial(stmt, replace(env, each=env.each | {stmt.var}))
        case ix.Ahead(positions):
            return lower_serial(stmt, replace(env, ahead={**env.ahead, stmt.var: (positions, chosen_rows(stmt))}))
        case ix.Gallop(leader):
            return lower_serial(stmt, env, leader=leader)
        case ix.Blend():
            merges = len(make_lattice(stmt.var, ix.value_of(stmt.body)).iterated) > 1  # outer loops may leave one operand
            return lower_blended(stmt, env, lower) if merges else lower_serial(stmt, env)
        case ix.Tile(size):
            return lower_tile(stmt, size, env)
        case ix.Blocks(count):
            return lower_blocks(stmt, count, env, lower_serial)
        case ix.Transpose(lanes):
            return lower_transposed(stmt, lanes, env)
        case ix.Jam() as tag:
            return lower_jam(stmt, tag, env, lower, lower_serial)
        case ix.Specialize("kinds", lanes):
            return lower_kinds(stmt, lanes, env, lower)
        case ix.Specialize("tiles"):
            return lower_kind_tiles(stmt, env, lower)
        case ix.Specialize():
            return lower_constant(stmt, env, lower)
        case _:
            assert_never(stmt.tag)


def _divided(stmt: ix.Stmt, var: str, env: Env) -> Block:
    """Lower a statement for a single worker, and for several ones, each of which takes its part of the coordinates of a variable."""
    last = [(access, len(access.tensor.format.levels)) for access in env.operands if not access.tensor.format.levels[-1].full]
    walked, count = next((access, count) for access, count in last if access.level_var(count - 1).name == var)
    bounds = Var(f"{walked.tensor.name}{count}_parts")  # the array starts with the bounds of the parts
    part = bounds[Var("worker")], bounds[Var("worker") + 1]
    shared = replace(env, divided=var, tiles={**env.tiles, ix.IndexVar(var): part})
    work = If(BinOp("==", Var("workers"), Const(1)), lower(stmt, env), lower(stmt, shared))
    return (For(Var("worker"), Const(0), Var("workers"), (work,), parallel=True),)


def lower_serial(stmt: ix.Forall, env: Env, bounds: tuple[Expr, Expr] | None = None, leader: str | None = None) -> Block:
    """Lower a plain loop. In its body, 0 replaces operands that are absent."""

    def case(inner: Env, absent: frozenset[str]) -> Block:
        simpler = ix.map_rhs(stmt.body, lambda rhs: simplified(rhs, absent))
        guard, inner = guarded(ix.value_of(simpler), inner)
        body = inner.assembly.around(stmt.var, inner.coords, lower(simpler, inner))
        return body if guard is None else (If(guard, body),)

    value = ix.value_of(stmt.body)
    lattice = make_lattice(stmt.var, value)
    optional = frozenset(env.conditions) - lattice.iterated
    if lattice.whole and optional and not (sparse_lattice := make_lattice(stmt.var, simplified(value, optional))).whole:
        condition = any_of([env.conditions[name] for name in sorted(optional)])
        orelse = loop(stmt.var, env, sparse_lattice, lambda inner, absent: case(inner, absent | optional), bounds, leader)
        return (If(condition, loop(stmt.var, env, lattice, case, bounds, leader), orelse),)
    return loop(stmt.var, env, lattice, case, bounds, leader)


def lower_parallel(stmt: ix.Forall, env: Env) -> Block:
    """Lower a parallel loop: each worker runs consecutive blocks. The bounds of blocks don't depend on the number of workers."""
    block, cuts = Var("block"), Var("cuts")
    inner = env.assembly.in_block(lower_serial(replace(stmt, tag=ix.Serial()), env, (cuts[block], cuts[block + 1])), block)
    return (For(Var("worker"), Const(0), Var("workers"), (*stamps(stmt), loop_over_blocks(inner)), parallel=True),)


def lower_where(stmt: ix.Where, env: Env) -> Block:
    """Lower a where: the producer fills the workspace, then the consumer reads it."""
    target = next(ix.assignments(stmt.producer)).lhs.tensor
    if has_level(target, Scattered):
        return lower_scattered(stmt, env, lower)
    if has_level(target, Held):
        return _lower_held(stmt, target, env)
    if isinstance(stmt.producer, ix.Forall) and isinstance(stmt.producer.tag, ix.Divide):
        return _divided(replace(stmt, producer=replace(stmt.producer, tag=ix.Serial())), stmt.producer.tag.var, env)
    if has_level(target, Workspace):
        return lower_workspace(stmt, env, lower)
    match stmt.producer:
        case ix.Forall(tag=ix.FlatSum() as tag) as producer:
            return _lower_entries(stmt, producer, tag, target, env)
        case ix.Forall(tag=ix.Parallel()):
            return _lower_parallel_sum(stmt, target, env)
    if not target.is_scalar:
        return (*lower(stmt.producer, env), *lower(stmt.consumer, env))
    inner = with_registers(stmt.producer, target, env)
    op = next(a.op for a in ix.assignments(stmt.producer) if a.lhs.tensor == target)
    if op == "=":
        return (*lower(stmt.producer, inner), *lower(stmt.consumer, inner))
    if op == "+=" and not appends(stmt.consumer, env):
        return (*clear(target, inner), *lower(stmt.producer, inner), *lower(stmt.consumer, inner))
    return lower_counted(stmt, target, op, inner, lower)


def _lower_held(stmt: ix.Where, target: ix.TensorVar, env: Env) -> Block:
    """Clear the register of each row of the current kind, run the producer, then the consumer."""
    sums, kind = registers_of(target), env.kind
    if kind is None:
        raise ScheduleError(f"{stmt}: no loop over kinds is around the registers of {target}")
    inner = env
    for register in sums:
        inner = with_registers(ix.with_tensor(stmt.producer, target, register), register, inner)
    zeros = [assign for row in kind.rows for assign in clear(sums[row], inner)]
    fresh = replace(inner, kind=replace(kind, rows=kind.fresh))
    others = replace(inner, kind=replace(kind, rows=tuple(row for row in kind.rows if row not in kind.fresh)))
    written = lower(ix.map_assignments(stmt.consumer, lambda assignment: replace(assignment, op="=")), fresh)
    if kind.is_first is not None:
        written = (If(kind.is_first, written, lower(stmt.consumer, fresh)),) if kind.fresh else ()
    return (*zeros, *lower(stmt.producer, inner), *written, *lower(stmt.consumer, others))


def with_registers(producer: ix.Stmt, target: ix.TensorVar, env: Env) -> Env:
    """Return the environment with a register for the workspace, which is a tile if the summed value varies between lanes."""
    varies = any(_varies(a, producer, env) for a in ix.assignments(producer) if a.lhs.tensor == target)
    varying = env.varying | {target.name} if varies and env.lanes is not None else env.varying - {target.name}
    return replace(env, registers={**env.registers, target.name: Var(target.name)}, varying=varying)


def _varies(assignment: ix.Assignment, producer: ix.Stmt, env: Env) -> bool:
    """Whether the summed value varies between lanes, directly or through an inner workspace."""
    inner = {a.lhs.tensor: a for a in ix.assignments(producer) if a is not assignment}
    sources = [inner[access.tensor] for access in ix.accesses_in(assignment.rhs) if access.tensor in inner]
    return is_varying(assignment.rhs, env) or any(_varies(source, producer, env) for source in sources)


def _lower_parallel_sum(stmt: ix.Where, target: ix.TensorVar, env: Env) -> Block:
    """Sum each block into one element of ``partial_vals``, then add the elements in order."""
    total = Var("total")
    inner = with_registers(stmt.producer, target, env)
    (outer,) = lower(stmt.producer, inner)
    if not isinstance(outer, For) or not isinstance(inner_loop := outer.body[-1], For):
        raise ScheduleError(f"expected a parallel loop, found {stmt.producer}")
    register = inner.registers[target.name]
    run = replace(inner_loop, body=(*clear(target, inner), *inner_loop.body, Store(Var("partial_vals"), Var("block"), register)))
    workers, summed = replace(outer, body=(*outer.body[:-1], run)), inner.with_register(target.name, total)
    return (workers, *sum_of_blocks(total, target.dtype), *lower(stmt.consumer, summed))


def loop_over_blocks(body: Block) -> For:
    """Return the loop over the consecutive blocks of a worker."""
    worker, workers, blocks = Var("worker"), Var("workers"), Var("blocks")
    return For(Var("block"), blocks * worker // workers, blocks * (worker + 1) // workers, body)


def sum_of_blocks(total: Var, dtype: str) -> Block:
    """Return the code that adds the partial sums of the blocks in order."""
    block = Var("block")
    return Assign(total, Const(0.0, dtype)), For(block, Const(0), Var("blocks"), (Accumulate(total, Var("partial_vals")[block]),))


def _lower_entries(stmt: ix.Where, producer: ix.Forall, tag: ix.FlatSum, target: ix.TensorVar, env: Env) -> Block:
    """Sum the entries in full steps of all registers, then the remaining entries one by one, and run the consumer.

    Blocks consist of full steps. The number of blocks does not depend on the number of threads, and their sums are added in order.
    """
    loops, term = ix.loops_of(producer), next(ix.assignments(producer))
    walked = next(a.tensor for a in ix.accesses_in(term.rhs) if not a.tensor.is_scalar and a.tensor.shares is None)
    name, depth = walked.name, len(walked.format.levels)
    position, entries, steps, split = Var(f"p{name}{depth}"), Var(f"{name}_entries"), Var(f"{name}_steps"), Var(f"p{name}{depth}_split")
    unknown = {loop.var: Var(loop.var.name) for loop in loops}
    segments = (*(Segment(Var(f"p{name}{at + 1}")) for at in range(depth - 1)), Segment(position))
    env = replace(env, coords={**env.coords, **unknown}, segments={**env.segments, name: segments})

    def sum_into(register: Var, first: Expr, stop: Expr, inner: Env, width: int = 1) -> For:
        body = lower(term, inner.with_register(target.name, register))
        if needed := {var.name for var in unknown} & names_used(body):
            raise ScheduleError(f"{term} needs {', '.join(sorted(needed))}, which a loop over entries does not compute")
        return For(position, first, stop, body, step=Const(width))

    total, register, block, width = Var("total"), Var(target.name), Var("block"), tag.width
    first, stop = (steps * at // Var("blocks") * width for at in (block, block + 1))
    if width == 1:
        sums: Block = (*clear(target, env.with_register(target.name, register)), sum_into(register, first, stop, env))
        rest: Block = ()
    else:
        tile = partial_register(target.name)
        inner = replace(env, lanes=Lanes(loops[-1].var, tag.lanes, tag.registers), varying=env.varying | {target.name})
        cleared = clear(target, inner.with_register(target.name, tile))
        sums = (*cleared, sum_into(tile, first, stop, inner, width), Assign(register, call("hsum", tile)))
        rest = (Assign(split, steps * width), sum_into(total, split, entries, env))
    run = loop_over_blocks((*sums, Store(Var("partial_vals"), block, register)))
    workers = For(Var("worker"), Const(0), Var("workers"), (run,), parallel=True)
    consumer = lower(stmt.consumer, env.with_register(target.name, total))
    blocks = with_sums((workers,), producer)
    return (Assign(steps, entries // width), *blocks, *sum_of_blocks(total, target.dtype), *rest, *consumer)


def lower_tile(stmt: ix.Forall, size: int, env: Env) -> Block:
    """Run the body for each tile; the last tile ends at the extent. The loop over workers, if any, encloses the loop over tiles."""
    start, end, extent = Var(f"{stmt.var}_tile"), Var(f"{stmt.var}_end"), env.extent(stmt.var)
    body = lower(stmt.body, replace(env, tiles={**env.tiles, stmt.var: (start, end)}))

    def tiles(inner: Block) -> Block:
        return (For(start, Const(0), extent, (Assign(end, call("min", start + size, extent)), *inner), step=Const(size)),)

    match body:
        case (For(parallel=True) as workers,):  # each worker loops over the tiles of its blocks, so threads synchronise once
            return (replace(workers, body=tiles(workers.body)),)
        case _:
            return tiles(body)


def lower_vector(stmt: ix.Forall, tag: ix.Vector, env: Env) -> Block:
    """Loop over full tiles of registers, then process the tail of the extent. Within cache tiles, only the last one has the tail."""
    base, size = Var(stmt.var.name), size_of(stmt.var)
    width = tag.width
    full = (size // width) * width if tag.tail and width else size
    start, stop = env.tiles.get(stmt.var, (Const(0), full))
    targets = [a.lhs.tensor for a in ix.assignments(stmt.body)] if env.lanes is None else []
    sums = {tensor.name: tensor.dtype for tensor in targets if tensor.name in env.registers}  # outer workspaces
    out: list[Stmt] = [Assign(partial_register(name), call("splat", Const(0.0, dtype), tag.lanes)) for name, dtype in sums.items()]
    inner = replace(env, lanes=Lanes(stmt.var, tag.lanes, tag.registers)).bind(stmt.var, base)
    if tag.overlapped:
        at = Var(f"{stmt.var}_next")  # no index variable has such a name
        body = (Assign(base, call("min", at, size - width)), *lower(stmt.body, inner))
        return (For(at, start, stop, body, step=Const(width)),)
    if tag.registers:
        limit = call("min", stop, full) if tag.tail and stop != full else stop
        out.append(For(base, start, limit, lower(stmt.body, inner), step=Const(width)))
    if tag.tail:
        tail = _tail_of_extent(stmt, tag, full, env)
        out += tail if stop == full else [If(full < stop, tail)]
    out += [Accumulate(env.registers[name], call("hsum", partial_register(name))) for name in sums]
    return tuple(out)


def _tail_of_extent(stmt: ix.Forall, tag: ix.Vector, full: Expr, env: Env) -> Block:
    """Lower the last tile, which has fewer registers."""
    base, out = Var(stmt.var.name), list[Stmt]()
    start: Expr = base if tag.registers else Const(0)
    out += [Assign(base, full)] if tag.registers else []
    out += [Assign(Var("left"), size_of(stmt.var) - start - (tag.tail - 1) * tag.lanes)] if tag.masked else []
    lanes = Lanes(stmt.var, tag.lanes, tag.tail, Var("left") if tag.masked else None)
    return (*out, *lower(stmt.body, replace(env, lanes=lanes).bind(stmt.var, start)))


def lower_assignment(stmt: ix.Assignment, env: Env) -> Block:
    """Add the value to a register, or write it to the result."""
    if is_zero(stmt.rhs):
        return ()
    stmt = replace(stmt, rhs=terms_of(stmt.rhs, stmt.op, stmt.lhs.tensor.dtype))
    if stmt.lhs.tensor.name in env.registers:
        return _add_to_register(stmt, env)
    if has_level(stmt.lhs.tensor, Scattered):
        return scatter(stmt, env)
    if has_level(stmt.lhs.tensor, Workspace):
        return insert(stmt, env)
    if env.assembly.appends_values and stmt.lhs.tensor == env.assembly.access.tensor:
        return append(stmt, env)
    if env.assembly.counting:
        return ()
    if env.lanes is not None and env.lanes.var in stmt.lhs.indices:
        return _store_tile(stmt, env, env.lanes)
    product = lower_product(stmt.rhs, env, as_vector=False)
    values, place = Var(f"{stmt.lhs.tensor.name}_vals"), env.position(stmt.lhs)
    if stmt.op in ("=", "+="):
        return (*product.setup, Store(values, place, product.scalar, stmt.op == "+="))
    return (*product.setup, Store(values, place, joined(stmt.op, values[place], product.scalar)))


def _add_to_register(stmt: ix.Assignment, env: Env) -> Block:
    name = stmt.lhs.tensor.name
    register = env.registers[name]
    seen = (Accumulate(Var(f"{name}_seen"), Const(1)),) if name in env.counted else ()
    if env.assembly.counting:
        return seen
    if stmt.op == "=":
        product = lower_product(stmt.rhs, env, as_vector=name in env.varying)
        return (*product.setup, Assign(register, product.value()))
    if stmt.op != "+=":
        product = lower_product(stmt.rhs, env, as_vector=name in env.varying, in_order=True)
        return (*product.setup, Assign(register, joined(stmt.op, register, product.value(), name in env.varying)), *seen)
    varies = is_varying(stmt.rhs, env)
    product = lower_product(stmt.rhs, env, as_vector=varies)
    if not varies:
        # with an integer, Numba would make the register of a float32 sum a float64
        value = replace(product.scalar, dtype=stmt.lhs.tensor.dtype) if isinstance(product.scalar, Const) else product.scalar
        return (*product.setup, Accumulate(register, value), *seen)
    if name in env.varying:
        return (*product.setup, Assign(register, product.added_to(register)))
    partial, is_tile = partial_register(name), env.lanes is not None and env.lanes.count > 1
    return (*product.setup, Assign(partial, product.added_to(partial, in_one=is_tile)))


def _store_tile(stmt: ix.Assignment, env: Env, lanes: Lanes) -> Block:
    product = lower_product(stmt.rhs, env, as_vector=True)
    setup: list[Assign] = []
    place = named_position(stmt.lhs, env, setup)
    name = stmt.lhs.tensor.name
    value = product.added_to(load(lanes, name, place)) if stmt.op == "+=" else product.value()
    left = () if lanes.left is None else (lanes.left,)
    return (*product.setup, *setup, Do(call("store", Var(f"{name}_vals"), place, value, *left)))
