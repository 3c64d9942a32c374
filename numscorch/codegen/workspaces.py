"""Rows of a result with a new pattern: workspaces that collect them, and values that are appended or pruned.

A result with a new pattern is appended to in the order of its levels. If the loop of a summed variable encloses the innermost
loop, a row's entries arrive out of order and with duplicates. A workspace then holds the row: coordinates are inserted, and
then appended to the result when the row is complete.

For a pruned result, each row is computed, and only its kept values are appended, without a branch for each value. An entry is
stored if the condition of its value holds, ``where(condition, value, 0)``, or if it is among the largest of its block. The
lanes of a register are packed at once. A single value is always written; if it is not kept, the next value
overwrites it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from ..errors import ScheduleError
from ..ir import index as ix
from ..ir.assembled import around_result
from ..ir.functions import counts_absent, is_zero, start_of
from ..ir.level import Level
from ..ir.loop import Accumulate, Assign, BinOp, Block, Const, Do, Expr, For, If, Stmt, Store, Var, call, mul, rewrite
from ..ir.workspace_levels import Cleared, Flagged, Hashed, Held, Listed, ListWorkspace, PackedWorkspace, Sorted, Workspace
from .environment import Env, Lanes, Lower, clear, size_of
from .expressions import joined, lower_product
from .result_assembly import MOST_ENTRIES


def workspaces_of(stmt: ix.Stmt) -> list[ix.Access]:
    """Return the workspaces that are arrays."""
    written = {a.lhs.tensor.name: a.lhs for a in ix.assignments(stmt) if a.lhs.tensor != ix.result_of(stmt).tensor}
    return [
        access for access in written.values() if access.indices and not access.tensor.is_returned and not has_level(access.tensor, Held)
    ]


def has_level(space: ix.TensorVar, *kinds: type[Level]) -> bool:
    """Whether a workspace is an array with a level of one of these classes."""
    return not space.is_scalar and isinstance(space.format.levels[0], kinds)


def counts(space: ix.Access) -> bool:
    """Whether the workspace counts the terms of each value."""
    level = space.tensor.format.levels[0]
    return isinstance(level, Workspace) and level.counts


def arrays_of(space: ix.Access) -> tuple[str, ...]:
    """Return the names of a workspace's arrays, without its values."""
    return (*space.tensor.format.levels[0].arrays, *(("seen",) if counts(space) else ()))


def stamps(stmt: ix.Stmt) -> Block:
    """Initialise the stamps of a statement's workspaces, so that no coordinate is marked."""
    names = sorted(space.tensor.name for space in workspaces_of(stmt) if has_level(space.tensor, Workspace))
    return tuple(Assign(_part(name, "stamp"), Const(0)) for name in names)


def _part(name: str, part: str) -> Var:
    """Return a workspace's array or variable, such as w_list."""
    return Var(f"{name}_{part}")


def lower_workspace(stmt: ix.Where, env: Env, lower: Lower) -> Block:
    """Insert coordinates and sum their values, then append them to the result, sorted if the result's level is ordered.

    The values of a dense result are written in place.
    """
    space, assembly = ix.result_of(stmt.producer), env.assembly
    name = space.tensor.name
    join = _join_absent(stmt.producer, space, env) if counts(space) else ()
    clear = _clear_row(stmt.producer, space, env) if has_level(space.tensor, Cleared) else ()
    if has_level(space.tensor, Flagged, Cleared):
        return (*clear, *lower(stmt.producer, env), *join, *lower(stmt.consumer, replace(env, operands=(*env.operands, space))))
    if assembly.stage == "room":
        return lower(stmt.producer, env)
    if assembly.bounding:
        return (*_insertions(stmt.producer, name, env, lower), Assign(MOST_ENTRIES, call("max", MOST_ENTRIES, _part(name, "bound"))))
    count = _part(name, "count")
    fill = (*_empty(stmt.producer, space, env, lower), Assign(count, Const(0)), *lower(stmt.producer, env))
    if has_level(space.tensor, Sorted):
        fill = (*fill, Assign(count, call("combined", _part(name, "list"), _part(name, "vals"), count)))
    limit = assembly.access.tensor.row_limit
    if assembly.counting:
        return (*fill, Accumulate(assembly.counters[-1], call("min", count, Const(limit)) if limit else count))
    keep = (_keep_largest(space, assembly.access.tensor),) if limit else ()
    is_in_order = has_level(space.tensor, Sorted) or not assembly.access.tensor.is_assembled or not assembly.format.levels[-1].is_ordered
    sort = () if is_in_order else (_sort_list(space),)
    return (*fill, *join, *keep, *sort, *lower(stmt.consumer, replace(env, operands=(*env.operands, space))))


def _insertions(producer: ix.Stmt, name: str, env: Env, lower: Lower) -> Block:
    """Count the producer's insertions. For a product of matrices, adding up the lengths of rows suffices."""
    return (Assign(_part(name, "bound"), Const(0)), *lower(producer, replace(env, assembly=replace(env.assembly, stage="bound"))))


def _empty(producer: ix.Stmt, space: ix.Access, env: Env, lower: Lower) -> Block:
    """Empty a workspace: take a new stamp that no coordinate has, or clear a hash table. A list needs no code.

    Stamps count down while filling, so that the stamps of the counting stage need not be cleared.
    """
    name, stamp = space.tensor.name, _part(space.tensor.name, "stamp")
    if has_level(space.tensor, Sorted):
        return ()
    if not has_level(space.tensor, Hashed):
        return (Accumulate(stamp, Const(1)) if env.assembly.counting else Assign(stamp, stamp - 1),)
    most = call("min", _part(name, "bound"), size_of(space.indices[0]))
    return (*_insertions(producer, name, env, lower), Assign(_part(name, "bits"), call("emptied", _part(name, "table"), most)))


def _clear_row(producer: ix.Stmt, space: ix.Access, env: Env) -> Block:
    """Set the row's values to the reduction's identity, and the number of terms of each value to 0."""
    _, added = around_result(producer)
    name, dtype, at = space.tensor.name, space.tensor.dtype, Var(f"p{space.tensor.name}")
    starts: Block = (Store(_part(name, "vals"), at, Const(start_of(added.op, added.rhs, dtype), dtype)),)
    starts = (*starts, Store(_part(name, "seen"), at, Const(0))) if counts(space) else starts
    return (For(at, *env.bounds(space.indices[0]), starts),)


def _join_absent(producer: ix.Stmt, space: ix.Access, env: Env) -> Block:
    """Reduce each value with 0 if it has fewer terms than the loops have steps. If inner loops have no steps, a term has no value."""
    loops, added = around_result(producer)
    inner = [loop.var for loop in ix.loops_of(producer) if loop not in loops and loop.var not in space.indices]
    name, at = space.tensor.name, Var(f"p{space.tensor.name}")
    place = _part(name, "list")[at] if has_level(space.tensor, Listed) else at
    places = (Const(0), _part(name, "count")) if has_level(space.tensor, ListWorkspace) else env.bounds(space.indices[0])
    values, zero = _part(name, "vals"), Const(0.0, space.tensor.dtype)
    complete = Store(values, place, joined(added.op, values[place], zero))
    terms = _steps([loop.var for loop in loops if loop.var not in space.indices])
    join: Stmt = For(at, *places, (If(_part(name, "seen")[place] < terms, (complete,)),))
    return (If(Const(0) < _steps(inner), (join,)),) if inner else (join,)


def _steps(variables: list[ix.IndexVar]) -> Expr:
    """Return the number of steps of a loop nest over these variables. With several, it is a float, since it may exceed int64."""
    one: Expr = Const(1) if len(variables) < 2 else Const(1.0, "float64")
    return reduce(mul, map(size_of, variables), one)


def _sort_list(space: ix.Access) -> If:
    """Sort the list of coordinates, and with it the values of a hashed workspace. Rows with one entry skip the call."""
    name = space.tensor.name
    listed, count = _part(name, "list"), _part(name, "count")
    by_marks = call("ordered", listed, _part(name, "mark"), _part(name, "stamp"), count, size_of(space.indices[0]))
    do = Do(call("ordered_pairs", listed, _part(name, "vals"), count) if has_level(space.tensor, Hashed) else by_marks)
    return If(Const(1) < count, (do,))


def _keep_largest(space: ix.Access, result: ix.TensorVar) -> Assign:
    """Keep the values of largest magnitude in a list. They lie beside their coordinates, or in a dense row."""
    listed, values, count = (_part(space.tensor.name, part) for part in ("list", "vals", "count"))
    is_beside, is_packed = has_level(space.tensor, PackedWorkspace), result.dtype == "float32" and result.index_dtype == "int32"
    return Assign(count, call("keep_largest", listed, values, count, Const(result.row_limit), Const(int(is_beside)), Const(int(is_packed))))


def insert(stmt: ix.Assignment, env: Env) -> Block:
    """Add to a workspace's value. The first term at a coordinate appends the coordinate to the list."""
    stmt = replace(stmt, op="+=") if stmt.op == "=" else stmt  # the sum of a register, which is the only term
    name, counting = stmt.lhs.tensor.name, env.assembly.counting
    if env.assembly.bounding:  # one counter for all rows in the room stage, so that row loops can fuse
        return (Accumulate(MOST_ENTRIES if env.assembly.stage == "room" else _part(name, "bound"), Const(1)),)
    coord, count = env.coords[stmt.lhs.indices[0]], _part(name, "count")
    if has_level(stmt.lhs.tensor, Flagged, Cleared):
        setup, add = _add(stmt, coord, env)
        flag = (Store(_part(name, "flag"), coord, Const(1)),) if has_level(stmt.lhs.tensor, Flagged) else ()
        return (*setup, *flag, *add)
    if has_level(stmt.lhs.tensor, Sorted):
        return _append_unsorted(stmt, coord, env)
    if has_level(stmt.lhs.tensor, Hashed):
        inserted = call("insert", _part(name, "table"), _part(name, "list"), _part(name, "bits"), count, coord)
        place: Expr = Var(f"p{name}")
        position: Block = (Assign(Var(f"p{name}"), inserted),)
        is_new, first = BinOp("==", place, count), list[Stmt]()
    else:
        mark, stamp = _part(name, "mark"), _part(name, "stamp")
        place, position, is_new = coord, (), BinOp("!=", mark[coord], stamp)
        first = [Store(mark, coord, stamp), *([] if counting else [Store(_part(name, "list"), count, coord)])]
    if counting:
        return (*position, If(is_new, (*first, Accumulate(count, Const(1)))))
    setup, add = _add(stmt, place, env)
    clear: Block = (Store(_part(name, "vals"), place, Const(start_of(stmt.op, stmt.rhs, stmt.lhs.tensor.dtype), stmt.lhs.tensor.dtype)),)
    clear = (Store(_part(name, "seen"), place, Const(0)), *clear) if counts(stmt.lhs) else clear
    return (*setup, *position, If(is_new, (*first, *clear, Accumulate(count, Const(1)))), *add)


def _append_unsorted(stmt: ix.Assignment, coord: Expr, env: Env) -> Block:
    """Append a coordinate and its term to the list. The counting stage needs no values."""
    name, count = stmt.lhs.tensor.name, _part(stmt.lhs.tensor.name, "count")
    listed: Block = (Store(_part(name, "list"), count, coord),)
    if not env.assembly.counting:
        product = lower_product(stmt.rhs, env, as_vector=False)
        listed = (*product.setup, *listed, Store(_part(name, "vals"), count, product.scalar))
    return (*listed, Accumulate(count, Const(1)))


def _add(stmt: ix.Assignment, place: Expr, env: Env) -> tuple[Block, Block]:
    """Return the setup of a term, and the statements that reduce it into the workspace's value at a place and count it if needed."""
    product, values = lower_product(stmt.rhs, env, as_vector=False), _part(stmt.lhs.tensor.name, "vals")
    new = product.scalar if stmt.op == "+=" else joined(stmt.op, values[place], product.scalar)
    seen = (Store(_part(stmt.lhs.tensor.name, "seen"), place, Const(1), add=True),) if counts(stmt.lhs) else ()
    return product.setup, (Store(values, place, new, add=stmt.op == "+="), *seen)


def lower_scattered(stmt: ix.Where, env: Env, lower: Lower) -> Block:
    """Scatter a row, run the consumer, which reads the row's values by coordinate, and clear the places of the row."""
    row, fill = ix.result_of(stmt.producer).tensor, lower(stmt.producer, env)
    values = _part(row.name, "vals")

    def cleared(each: Stmt) -> Block:
        return (replace(each, value=Const(0.0, row.dtype)) if isinstance(each, Store) and each.array == values else each,)

    return (*fill, *lower(stmt.consumer, env), *rewrite(fill, cleared))


def scatter(stmt: ix.Assignment, env: Env) -> Block:
    """Store one value of a row that is looked up by coordinate, and a zero as -0.0."""
    product, tensor = lower_product(stmt.rhs, env, as_vector=False), stmt.lhs.tensor
    negated = BinOp("-", Const(0.0, tensor.dtype), product.scalar)
    value = BinOp("*", Const(-1.0, tensor.dtype), negated) if tensor.type.is_rounded else product.scalar
    return (*product.setup, Store(_part(tensor.name, "vals"), env.position(stmt.lhs), value))


def append(stmt: ix.Assignment, env: Env) -> Block:
    """Append the next value of an assembled result, with its coordinates."""
    if env.assembly.counting:
        return env.assembly.append(env.coords)
    if stmt.lhs.tensor.prunes:
        return append_pruned(stmt, env)
    product, name = lower_product(stmt.rhs, env, as_vector=False), stmt.lhs.tensor.name
    values, place = Var(f"{name}_vals"), env.position(stmt.lhs)
    write = (*env.assembly.locate_entry(env.coords), Store(values, place, product.scalar), *env.assembly.append(env.coords))
    return (*product.setup, *write)


def appends(consumer: ix.Stmt, env: Env) -> bool:
    """Whether the consumer appends an entry, or adds to its sum, only if there is a term. In pruned results, the value decides instead."""
    result, assembled = ix.result_of(consumer).tensor, env.assembly.access.tensor
    if not assembled.is_assembled or result.prunes:
        return False
    return has_level(result, Workspace) or result.name in env.counted or (result == assembled and env.assembly.appends_values)


def lower_counted(stmt: ix.Where, target: ix.TensorVar, op: str, env: Env, lower: Lower) -> Block:
    """Lower a reduction in a register and count its terms. Missing terms count as 0; without terms, no entry is appended."""
    seen = Var(f"{target.name}_seen")
    inner = replace(env, counted=env.counted | {target.name})
    start = start_of(op, ix.value_of(stmt.producer), target.dtype)
    body = (Assign(seen, Const(0)), *clear(target, inner, start), *lower(stmt.producer, inner))
    if counts_absent(op, ix.value_of(stmt.producer)):
        terms, register = _steps([loop.var for loop in ix.loops_of(stmt.producer)]), inner.registers[target.name]
        with_zero = joined(op, register, Const(0.0, target.dtype), target.name in inner.varying and inner.lanes is not None)
        body = (*body, If(seen < terms, (Assign(register, with_zero),)))
    consumer = lower(stmt.consumer, inner)
    return (*body, If(Const(0) < seen, consumer)) if appends(stmt.consumer, env) else (*body, *consumer)


@dataclass(frozen=True, slots=True)
class PruningTest:
    """An entry's value and its condition. An entry is stored if the condition is nonzero (zero if ``is_dropped``) or None."""

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


def append_pruned(stmt: ix.Assignment, env: Env) -> Block:
    """Append one value, or the lanes of a tile, if they are kept."""
    if env.lanes is not None and env.lanes.var in stmt.lhs.indices:
        return _append_tile(stmt, env, env.lanes)
    name, test = stmt.lhs.tensor.name, pruning_test(stmt.rhs)
    product, value = lower_product(test.value, env, as_vector=False), Var(f"{name}_value")
    before, is_kept = _is_kept(stmt, test, env)
    write = (Assign(value, product.scalar), Store(Var(f"{name}_vals"), env.position(stmt.lhs), value))
    return (*product.setup, *write, *before, *env.assembly.append(env.coords, is_kept))  # a branch would be mispredicted


def _is_kept(stmt: ix.Assignment, test: PruningTest, env: Env) -> tuple[Block, Expr]:
    """Return the setup of the test, and the expression that is 1 if a value is kept."""
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


def _append_tile(stmt: ix.Assignment, env: Env, lanes: Lanes) -> Block:
    name, test = stmt.lhs.tensor.name, pruning_test(stmt.rhs)
    (counter,) = env.assembly.counters
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
