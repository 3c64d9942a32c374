"""Workspaces that hold a row: coordinates are inserted, and appended to the result when the row is done.

A result with a pattern of its own is appended to in the order of its levels. Where a summed loop
stands above the last one, a row's entries come in no order, and some more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import index as ix
from ..ir.functions import counts_absent, start_of
from ..ir.loop import Accumulate, Assign, BinOp, Block, Const, Do, Expr, For, If, Stmt, Store, Var, call
from ..ir.result_bounds import around_result
from ..ir.workspace_levels import Cleared, Flagged, Hashed, Held, Listed, Marked
from .environment import Env, clear, size_of
from .expressions import joined, lower_product
from .pruned_results import append_pruned
from .result_assembly import MOST_ENTRIES, Assembly

Lower = Callable[[ix.Stmt, Env], Block]


def workspaces_of(stmt: ix.Stmt) -> list[ix.Access]:
    """The workspaces that hold more than one value."""
    written = {a.lhs.tensor.name: a.lhs for a in ix.assignments(stmt) if a.lhs.tensor != ix.result_of(stmt).tensor}
    return [access for access in written.values() if access.indices and not access.tensor.is_returned and not is_held(access.tensor)]


def is_held(space: ix.TensorVar) -> bool:
    """Whether it is a register for each of a few coordinates."""
    return not space.is_scalar and isinstance(space.format.levels[0], Held)


def is_hashed(space: ix.Access) -> bool:
    """Whether coordinates are found by hashing, rather than in an array over the whole dimension."""
    return isinstance(space.tensor.format.levels[0], Hashed)


def is_listed(space: ix.Access) -> bool:
    """Whether coordinates are listed, and values lie at their coordinates."""
    return isinstance(space.tensor.format.levels[0], Listed)


def is_flagged(space: ix.Access) -> bool:
    """Whether it is one row in all, whose values start as the reduction's identity."""
    return isinstance(space.tensor.format.levels[0], Flagged)


def is_cleared(space: ix.Access) -> bool:
    """Whether it is a row of which every value is read."""
    return isinstance(space.tensor.format.levels[0], Cleared)


def is_collected(space: ix.TensorVar) -> bool:
    """Whether coordinates are inserted into it in no order, rather than that it is a row of its own."""
    return not space.is_scalar and isinstance(space.format.levels[0], Hashed | Listed | Flagged | Cleared)


def counts(space: ix.Access) -> bool:
    """Whether the number of terms of each value is kept."""
    level = space.tensor.format.levels[0]
    return isinstance(level, Hashed | Listed | Flagged | Cleared) and level.counts


def arrays_of(space: ix.Access) -> tuple[str, ...]:
    """The names of a workspace's arrays, its values left out."""
    return (*space.tensor.format.levels[0].arrays, *(("seen",) if counts(space) else ()))


def stamps(env: Env) -> Block:
    """No coordinate is marked yet in the workspaces of this worker."""
    return tuple(Assign(_part(name, "stamp"), Const(0)) for name in sorted(env.inserted))


def _part(name: str, part: str) -> Var:
    """A workspace's array or variable, as w_list."""
    return Var(f"{name}_{part}")


def lower_workspace(stmt: ix.Where, assembly: Assembly | None, env: Env, lower: Lower) -> Block:
    """Coordinates are inserted and their values added up; then all are appended, in order where the result's level has one.

    To a dense result, without ``assembly``, values are written where they belong.
    """
    space = ix.result_of(stmt.producer)
    name = space.tensor.name
    inner = replace(env, inserted=env.inserted | {name})
    completed = _with_absent(stmt.producer, space) if counts(space) else ()
    cleared = _cleared(stmt.producer, space) if is_cleared(space) else ()
    if is_flagged(space) or is_cleared(space):
        return (*cleared, *lower(stmt.producer, inner), *completed, *lower(stmt.consumer, replace(inner, operands=(*env.operands, space))))
    if assembly is not None and assembly.stage == "room":
        return lower(stmt.producer, inner)
    if assembly is not None and assembly.bounding:
        return (*_bounded(stmt.producer, name, inner, lower), Assign(MOST_ENTRIES, call("max", MOST_ENTRIES, _part(name, "bound"))))
    count = _part(name, "count")
    filled = (*_emptied(stmt.producer, space, inner, lower), Assign(count, Const(0)), *lower(stmt.producer, inner))
    if assembly is not None and assembly.counting:
        return (*filled, Accumulate(assembly.counters[-1], count))
    ordered = (_ordered(space),) if assembly is not None and assembly.format.levels[-1].is_ordered else ()
    by_coordinate = inner.inserted - {name} if is_hashed(space) else inner.inserted
    read = replace(inner, inserted=by_coordinate, operands=(*env.operands, space))
    return (*filled, *completed, *ordered, *lower(stmt.consumer, read))


def _bounded(producer: ix.Stmt, name: str, env: Env, lower: Lower) -> Block:
    """How often the producer inserts, which for a product is known from the ends of rows."""
    bounding = None if env.assembly is None else replace(env.assembly, stage="bound")
    return (Assign(_part(name, "bound"), Const(0)), *lower(producer, replace(env, assembly=bounding)))


def _emptied(producer: ix.Stmt, space: ix.Access, env: Env, lower: Lower) -> Block:
    """A new stamp, which no coordinate has, or a table for as much as there may be.

    Stamps count down while filling, so that those left from counting need not be cleared.
    """
    name, stamp = space.tensor.name, _part(space.tensor.name, "stamp")
    counting = env.assembly is not None and env.assembly.counting
    if not is_hashed(space):
        return (Accumulate(stamp, Const(1)) if counting else Assign(stamp, stamp - 1),)
    most = call("min", _part(name, "bound"), size_of(space.indices[0]))
    return (*_bounded(producer, name, env, lower), Assign(_part(name, "bits"), call("emptied", _part(name, "table"), most)))


def _cleared(producer: ix.Stmt, space: ix.Access) -> Block:
    """The row has no terms yet."""
    _, added = around_result(producer)
    name, dtype, at = space.tensor.name, space.tensor.dtype, Var(f"p{space.tensor.name}")
    starts: Block = (Store(_part(name, "vals"), at, Const(start_of(added.op, added.rhs, dtype), dtype)),)
    starts = (*starts, Store(_part(name, "seen"), at, Const(0))) if counts(space) else starts
    return (For(at, Const(0), size_of(space.indices[0]), starts),)


def _with_absent(producer: ix.Stmt, space: ix.Access) -> Block:
    """Join 0 to each value that has fewer terms than the loops have steps; loops within a term add nothing if they have no steps."""
    loops, added = around_result(producer)
    within = [loop.var for loop in ix.loops_of(producer) if loop not in loops and loop.var not in space.indices]
    name, at = space.tensor.name, Var(f"p{space.tensor.name}")
    place = _part(name, "list")[at] if is_listed(space) else at
    places = _part(name, "count") if is_listed(space) or is_hashed(space) else size_of(space.indices[0])
    values, zero = _part(name, "vals"), Const(0.0, space.tensor.dtype)
    complete = Store(values, place, joined(added.op, values[place], zero))
    terms = _steps([loop.var for loop in loops if loop.var not in space.indices])
    join: Stmt = For(at, Const(0), places, (If(_part(name, "seen")[place] < terms, (complete,)),))
    return (If(Const(0) < _steps(within), (join,)),) if within else (join,)


def _steps(variables: list[ix.IndexVar]) -> Expr:
    """How many steps the loops over these variables have."""
    steps: Expr = Const(1)
    for var in variables:
        steps = steps * size_of(var)
    return steps


def _ordered(space: ix.Access) -> If:
    """The list in order, which most rows of a matrix with few entries are; values that lie in the order of the list move with it."""
    name = space.tensor.name
    listed, count = _part(name, "list"), _part(name, "count")
    by_marks = call("ordered", listed, _part(name, "mark"), _part(name, "stamp"), count, size_of(space.indices[0]))
    do = Do(call("ordered_pairs", listed, _part(name, "vals"), count) if is_hashed(space) else by_marks)
    return If(Const(1) < count, (do,))


def insert(stmt: ix.Assignment, assembly: Assembly | None, env: Env) -> Block:
    """Add to a workspace's value; a coordinate's first one puts it into the list."""
    name = stmt.lhs.tensor.name
    if assembly is not None and assembly.bounding:  # of all rows together, so that nothing is read of where they end
        return (Accumulate(MOST_ENTRIES if assembly.stage == "room" else _part(name, "bound"), Const(1)),)
    coord, count = env.coords[stmt.lhs.indices[0]], _part(name, "count")
    if is_flagged(stmt.lhs) or is_cleared(stmt.lhs):
        setup, add = _add(stmt, coord, env)
        flagged = (Store(_part(name, "flag"), coord, Const(1)),) if is_flagged(stmt.lhs) else ()
        return (*setup, *flagged, *add)
    position, place, is_new = _find_hashed(name, coord) if is_hashed(stmt.lhs) else _find_marked(name, coord)
    counting = assembly is not None and assembly.counting
    first: list[Stmt] = [] if is_hashed(stmt.lhs) else _mark(name, coord, counting)
    if counting:
        return (*position, If(is_new, (*first, Accumulate(count, Const(1)))))
    setup, add = _add(stmt, place, env)
    clear: Block = (Store(_part(name, "vals"), place, Const(start_of(stmt.op, stmt.rhs, stmt.lhs.tensor.dtype), stmt.lhs.tensor.dtype)),)
    clear = (Store(_part(name, "seen"), place, Const(0)), *clear) if counts(stmt.lhs) else clear
    return (*setup, *position, If(is_new, (*first, *clear, Accumulate(count, Const(1)))), *add)


def _add(stmt: ix.Assignment, place: Expr, env: Env) -> tuple[Block, Block]:
    """The setup of a term, and the statements that join the term to the workspace's value at a place, and count it if terms are counted."""
    product, values = lower_product(stmt.rhs, env, as_vector=False), _part(stmt.lhs.tensor.name, "vals")
    new = product.scalar if stmt.op == "+=" else joined(stmt.op, values[place], product.scalar)
    seen = (Store(_part(stmt.lhs.tensor.name, "seen"), place, Const(1), add=True),) if counts(stmt.lhs) else ()
    return product.setup, (Store(values, place, new, add=stmt.op == "+="), *seen)


def _find_hashed(name: str, coord: Expr) -> tuple[Block, Expr, Expr]:
    """The value's place is that in the list; it is the end of the list where the coordinate is new."""
    place, count = Var(f"p{name}"), _part(name, "count")
    inserted = call("insert", _part(name, "table"), _part(name, "list"), _part(name, "bits"), count, coord)
    return (Assign(place, inserted),), place, BinOp("==", place, count)


def _find_marked(name: str, coord: Expr) -> tuple[Block, Expr, Expr]:
    """The value's place is the coordinate, which is new where it lacks the stamp."""
    return (), coord, BinOp("!=", _part(name, "mark")[coord], _part(name, "stamp"))


def _mark(name: str, coord: Expr, counting: bool) -> list[Stmt]:
    """A coordinate's stamp, and its place in the list, which nothing reads while counting."""
    mark: Stmt = Store(_part(name, "mark"), coord, _part(name, "stamp"))
    return [mark] if counting else [mark, Store(_part(name, "list"), _part(name, "count"), coord)]


def is_marked(space: ix.TensorVar) -> bool:
    """Whether it is a row that is laid out, to be looked up."""
    return not space.is_scalar and isinstance(space.format.levels[0], Marked)


def lower_laid_out(stmt: ix.Where, space: ix.TensorVar, env: Env, lower: Lower) -> Block:
    """The row gets a stamp that none before it had; then the consumer reads it at its coordinates."""
    read = replace(env, operands=(*env.operands, ix.result_of(stmt.producer)))
    return (Accumulate(_part(space.name, "stamp"), Const(1)), *lower(stmt.producer, env), *lower(stmt.consumer, read))


def lay(stmt: ix.Assignment, env: Env) -> Block:
    """One value of a row that is laid out."""
    name, coord = stmt.lhs.tensor.name, env.coords[stmt.lhs.indices[0]]
    product = lower_product(stmt.rhs, env, as_vector=False)
    return (*product.setup, Store(_part(name, "vals"), coord, product.scalar), Store(_part(name, "mark"), coord, _part(name, "stamp")))


def append(stmt: ix.Assignment, assembly: Assembly, env: Env) -> Block:
    """Write the next value of an assembled result, and its coordinates."""
    if assembly.counting:
        return assembly.append(env.coords)
    if stmt.lhs.tensor.prunes:
        return append_pruned(stmt, assembly, env)
    product, name = lower_product(stmt.rhs, env, as_vector=False), stmt.lhs.tensor.name
    values, place = Var(f"{name}_vals"), env.position(stmt.lhs)
    return (*product.setup, *assembly.locate_entry(env.coords), Store(values, place, product.scalar), *assembly.append(env.coords))


def appends(consumer: ix.Stmt, env: Env) -> bool:
    """Whether the consumer appends an entry to an assembled result, which is wanted only if there is a term; or if it is kept."""
    result = ix.result_of(consumer).tensor
    if env.assembly is None or result.prunes:
        return False
    return result.name in env.inserted or (result == env.assembly.access.tensor and env.assembly.appends_values)


def _with_zero(target: ix.TensorVar, op: str, env: Env) -> Block:
    """A reduction's register, joined with a term that isn't stored."""
    register = env.registers[target.name]
    return (Assign(register, joined(op, register, Const(0.0, target.dtype), target.name in env.varying and env.lanes is not None)),)


def lower_counted(stmt: ix.Where, target: ix.TensorVar, op: str, env: Env, lower: Lower) -> Block:
    """A register beside which its terms are counted: those that are missing are 0, and without any there is no entry."""
    seen = Var(f"{target.name}_seen")
    inner = replace(env, counted=env.counted | {target.name})
    start = start_of(op, ix.value_of(stmt.producer), target.dtype)
    body = (Assign(seen, Const(0)), *clear(target, inner, start), *lower(stmt.producer, inner))
    if counts_absent(op, ix.value_of(stmt.producer)):
        terms = _steps([loop.var for loop in ix.loops_of(stmt.producer)])
        body = (*body, If(seen < terms, _with_zero(target, op, inner)))
    consumer = lower(stmt.consumer, inner)
    return (*body, If(Const(0) < seen, consumer)) if appends(stmt.consumer, env) else (*body, *consumer)
