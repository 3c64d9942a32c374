"""Loops over one variable: over a dimension, over the positions of one level, or over several levels, with or without branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import ScheduleError
from ..ir.functions import simplified
from ..ir.index import Blend, Forall, Gallop, IndexVar, map_rhs, result_of, value_of
from ..ir.lattice import Lattice, make_lattice
from ..ir.level import Segment
from ..ir.loop import (
    Accumulate,
    Assign,
    BinOp,
    Block,
    Choose,
    Const,
    Do,
    Expr,
    For,
    If,
    Stmt,
    Var,
    While,
    all_of,
    any_of,
    call,
    names_read,
    names_used,
    rewrite,
)
from ..schedule import tuning
from ..schedule.cost import can_enter, can_seek
from .environment import Env, Iterator, Lower
from .expressions import guarded, is_mask

Bounds = tuple[Expr, Expr]
Body = Callable[[Env], Block]
Case = Callable[[Env, frozenset[str]], Block]
Step = Callable[[IndexVar, list[Iterator], Env, Lattice, frozenset[str], Case], Block]


def loop(var: IndexVar, env: Env, lattice: Lattice, case: Case, bounds: Bounds | None = None, leader: str | None = None) -> Block:
    """Lower the loop over a variable.

    ``bounds`` are positions if one operand is walked, and coordinates otherwise. ``case`` lowers the body for a set of absent
    operands. If an intersection has a ``leader``, the other operands are searched for its coordinates.
    """
    iterators = [it for it in env.iterated(var) if it.name in lattice.iterated]
    if not lattice.points:
        return ()
    if not iterators:
        coord, (start, stop) = Var(var.name), bounds or env.bounds(var)
        if (start, stop) == (Const(0), Const(1)):
            return case(env.bind(var, start), frozenset())
        return (For(coord, start, stop, case(env.bind(var, coord), frozenset())),)
    if bounds is None and (walked := _walked_alone(iterators, lattice)) is not None:
        return bounded_loop(var, walked, iterators, env, lambda inner: case(inner, frozenset()))
    if len(iterators) > 1 and len([point for point in lattice.points if point]) > tuning.MOST_CASES:
        return united_loop(var, iterators, env, lattice, case, bounds)
    if lattice.whole:
        return followed_loop(var, iterators, env, lattice, case, bounds)
    if len(iterators) == 1:
        return position_loop(var, iterators[0], env, lambda inner: case(inner, frozenset()), bounds)
    if leader is not None:
        return gallop_loop(var, iterators, env, lattice, case, leader)
    return merge_loops(var, iterators, env, lattice, case, bounds)


def position_loop(var: IndexVar, it: Iterator, env: Env, body: Body, bounds: Bounds | None = None) -> Block:
    """Loop over the positions of one level. A run of equal coordinates is one step."""
    start, stop = bounds or it.bounds
    if it.is_single and bounds is None:
        return at_position(var, it, start, env, body)
    if it.is_unique:
        return (For(it.position, start, stop, at_position(var, it, it.position, env, body)),)
    run = at_position(var, it, it.position, env, body)
    step = _walk_to_stop(run, Var(var.name), it) or (*find_stop(it), *run, Assign(it.position, it.stop))
    return (Assign(it.position, start), Assign(it.end, stop), While(it.position < it.end, step))


def _walk_to_stop(run: Block, coord: Var, it: Iterator) -> Block | None:
    """Find the end of a run in the loop over its positions, if the run has a single such loop and does not need its end before.

    Otherwise each position would be compared twice, and two mispredicted branches would end each run.
    """
    users = [at for at, stmt in enumerate(run) if it.stop.name in names_used((stmt,))]
    loop = run[users[0]] if len(users) == 1 else None
    if not isinstance(loop, For) or (loop.start, loop.stop, loop.step) != (it.position, it.stop, Const(1)):
        return None
    if it.stop.name in names_used(loop.body):
        return None
    again = all_of([loop.var < it.end, BinOp("==", it.coordinate(loop.var), coord)])
    walk = While(again, (*loop.body, Accumulate(loop.var, Const(1))), loop.sums)
    return (*run[: users[0]], Assign(loop.var, it.position), walk, *run[users[0] + 1 :], Assign(it.position, loop.var))


def _walked_alone(iterators: list[Iterator], lattice: Lattice) -> Iterator | None:
    """Return the only operand that an intersection has to walk, if all others have every coordinate below some end; else None."""
    walked = [it for it in iterators if not it.level.ends]
    alone = len(walked) == 1 < len(iterators) and lattice.points == (lattice.iterated,)
    return walked[0] if alone and (walked[0].level.is_unique or walked[0].is_single) and walked[0].here is None else None


def bounded_loop(var: IndexVar, it: Iterator, iterators: list[Iterator], env: Env, body: Body) -> Block:
    """Loop over one level, and skip coordinates past the ends of the other levels."""
    coord, implicit = Var(var.name), [other for other in iterators if other != it]
    tests = [other.level.within(other.mode, coord) for other in implicit]

    def inside(inner: Env) -> Block:
        return (If(all_of(tests), body(inner.bind(var, coord, {other.name: Segment(coord) for other in implicit}))),)

    return position_loop(var, it, env, inside)


def at_position(var: IndexVar, it: Iterator, position: Expr, env: Env, body: Body) -> Block:
    """Lower the body at one position of one level."""
    coord = Var(var.name)
    inner = env.bind(var, coord, {it.name: it.segment(position)})
    block = body(inner)
    step: Block = (Assign(coord, it.coordinate(position)), *_rows_ahead(var, it, position, env, block), *block)
    present = it.present(position)
    return (If(all_of(present), step),) if present else step


def _rows_ahead(var: IndexVar, it: Iterator, position: Expr, env: Env, body: Block) -> Block:
    """Prefetch the start of the rows that a later coordinate chooses, from each array that the body reads; absent operands have no rows."""
    if var not in env.ahead:
        return ()
    distance, rows = env.ahead[var]
    coord, read = Var(f"{var}_ahead"), _read_in(body)
    later = env.bind(var, coord)
    prefetches: list[Stmt] = []
    for access, at in rows:
        name = access.tensor.name
        mode, start = later.mode(access, at, later.segments[name]), Var(f"p{name}{at + 1}_ahead")
        arrays = (mode.crd, mode.values) if at + 1 == len(access.indices) else (mode.crd,)
        loads = [Do(call("prefetch", array, start)) for array in arrays if array.name in read]
        row: Block = (Assign(start, mode.pos[mode.parent.begin]), *loads) if loads else ()
        prefetches += (If(env.conditions[name], row),) if row and name in env.conditions else row
    if not prefetches:
        return ()
    last = Var(f"{it.name}_entries") - 1
    return (Assign(coord, it.coordinate(call("min", position + distance, last))), *prefetches)


def _read_in(body: Block) -> set[str]:
    """The names that statements read, apart from assignments to variables that no statement reads."""
    needed = names_read(body)
    return names_used(rewrite(body, lambda stmt: () if isinstance(stmt, Assign) and stmt.var.name not in needed else (stmt,)))


def find_stop(it: Iterator) -> Block:
    """Find the end of the run of positions that share the current coordinate."""
    again = BinOp("==", it.coordinate(it.stop), it.coordinate(it.position))
    advance = (Assign(it.stop, it.stop + 1),)
    return (Assign(it.stop, it.position + 1), While(all_of([it.stop < it.end, again]), advance))


def merge_loops(
    var: IndexVar,
    iterators: list[Iterator],
    env: Env,
    lattice: Lattice,
    case: Case,
    bounds: Bounds | None = None,
    step: Step | None = None,
    lower_branchless: Callable[[While, list[Iterator], frozenset[str]], Stmt] | None = None,
) -> Block:
    """Co-iterate several ordered levels: one loop for each lattice point, which runs while all of the point's operands have entries.

    ``step`` builds the body of each loop; by default, one step handles one coordinate, with a case for each point.
    ``lower_branchless`` replaces each loop, if given.
    """
    start: list[Stmt] = [*_start_positions(iterators, bounds)]
    for point in lattice.points:
        walked = [it for it in iterators if it.name in point]
        if len(walked) == 1 and walked[0].level.is_unique:
            start.append(_remaining_entries(var, walked[0], env, lattice, case))
            continue
        body = (step or _merge_step)(var, walked, env, lattice, point, case)
        loop = While(all_of([it.position < it.end for it in walked]), body)
        start.append(loop if lower_branchless is None else lower_branchless(loop, walked, point))
    return tuple(start)


def _remaining_entries(var: IndexVar, it: Iterator, env: Env, lattice: Lattice, case: Case) -> For:
    """Walk the remaining entries of one operand after the others are exhausted."""
    absent = lattice.iterated - {it.name}
    return For(it.position, it.position, it.end, at_position(var, it, it.position, env, lambda inner: case(inner, absent)))


def _start_positions(iterators: list[Iterator], bounds: Bounds | None = None) -> Block:
    """Assign each operand's first position and end; if there are bounds, only coordinates within them are walked.

    Raises:
        ScheduleError: there are bounds, but a level doesn't store its coordinates in order.
    """
    out: list[Stmt] = []
    for it in iterators:
        first, end = it.bounds
        if bounds is not None:
            if not can_enter(it.level):
                raise ScheduleError(
                    f"{it.access}: a parallel loop starts at any coordinate, but a {it.level} level can't be entered there: "
                    "run the loop serially, or use a format that stores coordinates in order"
                )
            first, end = (call("seek", it.mode.crd, start, end, cut) for start, cut in ((first, bounds[0]), (it.position, bounds[1])))
        out += [Assign(it.position, first), Assign(it.end, end)]
    return tuple(out)


def _merge_step(var: IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, point: frozenset[str], case: Case) -> Block:
    """Process the smallest current coordinate by the first case that holds, then advance the operands that have it."""
    coord = Var(var.name)
    coords = {it.name: Var(f"{var}{it.name}") for it in walked}
    step: list[Stmt] = [Assign(coords[it.name], it.coordinate(it.position)) for it in walked]
    step.append(Assign(coord, call("min", *coords.values()) if len(walked) > 1 else coords[walked[0].name]))
    step += [stmt for it in walked if not it.level.is_unique for stmt in find_stop(it)]
    at = {it.name: BinOp("==", coords[it.name], coord) for it in walked}
    step += _cases(var, walked, env, lattice, point, case, {it.name: [at[it.name], *it.present(it.position)] for it in walked})
    step += [If(at[it.name], _advance(it)) for it in walked] if len(walked) > 1 else _advance(walked[0])
    return tuple(step)


def _advance(it: Iterator) -> Block:
    return (Accumulate(it.position, Const(1)) if it.level.is_unique else Assign(it.position, it.stop),)


def _cases(
    var: IndexVar,
    walked: list[Iterator],
    env: Env,
    lattice: Lattice,
    point: frozenset[str],
    case: Case,
    tests: dict[str, list[Expr]],
) -> Block:
    """Test the points below this one in turn: ``if`` all operands of the first are present, ``elif`` all of the next, and so on."""
    chain: Block = ()
    for present in reversed(lattice.below(point)):
        segments: dict[str, Segment] = {it.name: it.segment(it.position) for it in walked if it.name in present}
        body = case(env.bind(var, Var(var.name), segments), lattice.iterated - present)
        conditions = [test for it in walked if it.name in present for test in tests[it.name]]
        certain = not conditions or (len(walked) == 1 and not lattice.whole and not walked[0].present(walked[0].position))
        chain = body if certain else (If(all_of(conditions), body, chain),)
    return chain


def united_loop(var: IndexVar, iterators: list[Iterator], env: Env, lattice: Lattice, case: Case, bounds: Bounds | None = None) -> Block:
    """Merge all operands in one loop with one body. Absent operands are 0 and have no positions in the levels below.

    With a loop and a case for each point, a sum of n operands would have 3**n bodies, and each of these would contain 3**n bodies
    for the next level.
    """
    coord, coords = Var(var.name), {it.name: Var(f"{var}{it.name}") for it in iterators}
    at = {name: BinOp("==", position, coord) for name, position in coords.items()}
    here = {it.name: all_of([at[it.name], *it.present(it.position)]) for it in iterators}
    size = env.extent(var)
    step: list[Stmt] = [Assign(coords[it.name], Choose(it.position < it.end, it.coordinate(it.position), size)) for it in iterators]
    step += [] if lattice.whole else [Assign(coord, call("min", *coords.values()))]
    step += [If(at[it.name], find_stop(it)) for it in iterators if not it.level.is_unique]
    inner = env.bind(var, coord, {it.name: it.segment(it.position) for it in iterators})
    is_assured = not lattice.whole and not any(it.present(it.position) for it in iterators)
    assured = tuple(frozenset({name}) for name in coords) if is_assured else ()
    step += case(replace(inner, conditions={**inner.conditions, **here}, assured=assured), frozenset())
    step += [If(at[it.name], _advance(it)) for it in iterators]
    if lattice.whole:
        start, stop = bounds or (Const(0), size)
        return (*_start_positions(iterators, bounds), For(coord, start, stop, tuple(step)))
    unfinished = [all_of([it.position < it.end for it in iterators if it.name in point]) for point in lattice.least]
    return (*_start_positions(iterators, bounds), While(any_of(unfinished), tuple(step)))


def gallop_loop(var: IndexVar, iterators: list[Iterator], env: Env, lattice: Lattice, case: Case, leader: str) -> Block:
    """Walk the leader; at each step, search the other operands for their first coordinate at or after the leader's.

    Raises:
        ScheduleError: the loop is not an intersection that includes the leader, or a level can't be searched.
    """
    first = next((it for it in iterators if it.name == leader), None)
    if first is None or lattice.points != (lattice.iterated,) or not all(can_seek(it.level) for it in iterators):
        raise ScheduleError(f"{Gallop(leader)}({var}, ...): galloping needs an intersection of ordered levels that includes {leader}")
    coord, followers = Var(var.name), [it for it in iterators if it != first]
    body = case(env.bind(var, coord, {it.name: it.segment(it.position) for it in iterators}), frozenset())
    for it in reversed(followers):
        there = all_of([it.position < it.end, BinOp("==", it.coordinate(it.position), coord)])
        body = (Assign(it.position, call("seek", it.mode.crd, it.position, it.end, coord)), If(there, body))
    step = (Assign(coord, first.coordinate(first.position)), *body, Accumulate(first.position, Const(1)))
    return (*_start_positions(iterators), While(all_of([it.position < it.end for it in iterators]), step))


def followed_loop(var: IndexVar, iterators: list[Iterator], env: Env, lattice: Lattice, case: Case, bounds: Bounds | None = None) -> Block:
    """Visit every coordinate, and advance the sparse levels along with it."""
    coord = Var(var.name)
    tests: dict[str, list[Expr]] = {it.name: [it.position < it.end, BinOp("==", it.coordinate(it.position), coord)] for it in iterators}
    step: list[Stmt] = [If(all_of(tests[it.name]), find_stop(it)) for it in iterators if not it.level.is_unique]
    here = {it.name: tests[it.name] + it.present(it.position) for it in iterators}
    step += _cases(var, iterators, env, lattice, lattice.iterated, case, here)
    step += [If(all_of(tests[it.name]), _advance(it)) for it in iterators]
    start, stop = bounds or (Const(0), env.extent(var))
    return (*_start_positions(iterators, bounds), For(coord, start, stop, tuple(step)))


def lower_blended(stmt: Forall, env: Env, lower: Lower) -> Block:
    """Lower a merge without branches: for each set of operands, one loop runs while all operands of the set have entries.

    The operand with the next coordinate is practically random, so a branch on it is mispredicted half of the time. Instead,
    each step reads the values of all operands. Each operand has a mask, with all bits set if it is present. The mask selects
    the operand's value. As an integer it is -1, and so advances the position.
    """
    var, lattice = stmt.var, make_lattice(stmt.var, value_of(stmt.body))

    def case(inner: Env, absent: frozenset[str]) -> Block:
        simpler = map_rhs(stmt.body, lambda rhs: simplified(rhs, absent))
        entry, present = guarded(value_of(simpler), inner)
        is_summed = result_of(simpler).tensor.name in env.registers
        return _mask_counters(lower(simpler, inner if is_summed else present), entry)

    iterators = [it for it in env.iterated(var) if it.name in lattice.iterated]
    appends, ahead = not result_of(stmt).tensor.is_scalar, isinstance(stmt.tag, Blend) and stmt.tag.ahead

    def merge_blended(loop: While, walked: list[Iterator], point: frozenset[str]) -> Stmt:
        """Put faster loops before a loop: one for equal coordinates of two rows, and one that loads coordinates ahead."""
        equal = (_walk_equal(var, walked, env, lattice, case),) if appends else ()
        return If(loop.condition, (*equal, _merge_ahead(var, walked, env, lattice, point, case), loop))

    lower_branchless = merge_blended if ahead and len(iterators) == 2 else None
    return merge_loops(var, iterators, env, lattice, case, step=_masked_step, lower_branchless=lower_branchless)


def _walk_equal(var: IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, case: Case) -> While:
    """Walk two rows while their coordinates are equal. Nothing is masked, and the branch on the comparison is predicted.

    Rows of tensors with the same pattern or the same blocks are equal to the end. Other rows leave this loop early, once per row.
    """
    coord = Var(var.name)
    coords = [it.coordinate(it.position) for it in walked]
    are_equal = all_of([*(it.position < it.end for it in walked), BinOp("==", coords[0], coords[1])])
    inner = env.bind(var, coord, {it.name: it.segment(it.position) for it in walked})
    body = case(inner, lattice.iterated - {it.name for it in walked})
    return While(are_equal, (Assign(coord, coords[0]), *body, *(Accumulate(it.position, Const(1)) for it in walked)))


def _merge_ahead(var: IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, point: frozenset[str], case: Case) -> If:
    """Merge until one operand has one entry left, and load each next coordinate one step before it is compared.

    Otherwise a step would mostly wait for a load at the position that the previous step computed.
    """
    coords, ahead = ({it.name: Var(f"{var}{it.name}{which}") for it in walked} for which in ("", "_next"))
    step: list[Stmt] = [Assign(ahead[it.name], it.coordinate(it.position + 1)) for it in walked]
    step += _masked_step(var, walked, env, lattice, point, case)[len(walked) :]  # without the loads of the current coordinates
    step += [Assign(coord, coord + BinOp("&", ahead[name] - coord, Var(f"{name}_here"))) for name, coord in coords.items()]
    first = [Assign(coords[it.name], it.coordinate(it.position)) for it in walked]
    more = all_of([it.position < it.end - 1 for it in walked])
    return If(more, (*first, While(more, tuple(step))))


def _masked_step(var: IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, point: frozenset[str], case: Case) -> Block:
    """Process the smallest current coordinate, with masks for the operands that lack it."""
    coord, coords = Var(var.name), {it.name: Var(f"{var}{it.name}") for it in walked}
    step: list[Stmt] = [Assign(coords[it.name], it.coordinate(it.position)) for it in walked]
    step.append(Assign(coord, call("min", *coords.values())))
    masks = {it.name: Var(f"{it.name}_here") for it in walked}
    for it in walked:
        others = [coordinate for name, coordinate in coords.items() if name != it.name]
        step.append(Assign(masks[it.name], call("at_most", coords[it.name], others[0] if len(others) == 1 else coord)))
    inner = env.bind(var, coord, {it.name: it.segment(it.position) for it in walked})
    assured = tuple(frozenset({it.name}) for it in walked)
    absent = lattice.iterated - point
    step += case(replace(inner, conditions={**inner.conditions, **masks}, masked=True, assured=assured), absent)
    return (*step, *(Assign(it.position, it.position - masks[it.name]) for it in walked))


def _mask_counters(body: Block, entry: Expr | None) -> Block:
    """Make the counters of a body advance only where a coordinate has an entry.

    A mask is -1 there. A condition that contains comparisons of outer loops may be 1 or -1.

    >>> step = (Accumulate(Var("n"), Const(1)),)
    >>> _mask_counters(step, Var("A_here")) == (Assign(Var("n"), Var("n") - Var("A_here")),)
    True
    >>> entry = BinOp("and", BinOp("==", Var("iB"), Var("i")), Var("A_here"))
    >>> _mask_counters(step, entry) == (Accumulate(Var("n"), Choose(entry, Const(1), Const(0))),)
    True
    """
    if entry is None:
        return body

    def advanced(count: Var) -> Stmt:
        return Assign(count, count - entry) if is_mask(entry) else Accumulate(count, Choose(entry, Const(1), Const(0)))

    return tuple(advanced(stmt.var) if isinstance(stmt, Accumulate) and stmt.value == Const(1) else stmt for stmt in body)
