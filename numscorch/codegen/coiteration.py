"""Loops over one variable: a dimension, the positions of one level, or several levels at once."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UnsupportedError
from ..ir.index import IndexVar
from ..ir.levels import Segment
from ..ir.loop import Assign, BinOp, Block, Const, Expr, For, If, Stmt, Var, While, all_of, call
from .environment import Env, Iterator, size_of
from .lattice import Lattice

Bounds = tuple[Expr, Expr]
Body = Callable[[Env], Block]


def loop(var: IndexVar, env: Env, lattice: Lattice, body: Body, bounds: Bounds | None = None) -> Block:
    """The loop over a variable; ``bounds`` replaces those of a dimension or position loop."""
    iterators = env.iterated(var)
    if len(lattice.points) > 1:
        raise UnsupportedError(f"sums of sparse operands are not compiled yet (co-iterating {lattice} over {var})")
    match iterators:
        case []:
            return dimension_loop(var, env, body, bounds)
        case [one]:
            return position_loop(var, one, env, body, bounds)
        case several:
            return merge_loop(var, several, env, body)


def dimension_loop(var: IndexVar, env: Env, body: Body, bounds: Bounds | None = None) -> Block:
    """for i in range(size): every operand is located."""
    coord = Var(var.name)
    start, stop = bounds or (Const(0), size_of(var))
    return (For(coord, start, stop, body(env.bind(var, coord))),)


def position_loop(var: IndexVar, it: Iterator, env: Env, body: Body, bounds: Bounds | None = None) -> Block:
    """One level is iterated; a run of equal coordinates, where the level has them, is one step."""
    start, stop = bounds or it.bounds
    if it.is_single and bounds is None:
        return at_position(var, it, start, env, body)
    if it.level.is_unique:
        return (For(it.position, start, stop, at_position(var, it, it.position, env, body)),)
    step = (*find_stop(it), *at_position(var, it, it.position, env, body), Assign(it.position, it.stop))
    return (Assign(it.position, start), Assign(it.end, stop), While(it.position < it.end, step))


def at_position(var: IndexVar, it: Iterator, position: Expr, env: Env, body: Body) -> Block:
    """The body at one position of one level."""
    coord = Var(var.name)
    inner = env.bind(var, coord, {it.name: it.segment(position)})
    return (Assign(coord, it.coordinate(position)), *body(inner))


def find_stop(it: Iterator) -> Block:
    """Search the end of the run of positions that share the coordinate at the current one."""
    again = BinOp("==", it.coordinate(it.stop), it.coordinate(it.position))
    advance = (Assign(it.stop, it.stop + 1),)
    return (Assign(it.stop, it.position + 1), While(all_of([it.stop < it.end, again]), advance))


def merge_loop(var: IndexVar, iterators: list[Iterator], env: Env, body: Body) -> Block:
    """Several ordered levels are walked together; the body runs where all hold the coordinate."""
    coord = Var(var.name)
    mine = {it.name: Var(f"{var}{it.name}") for it in iterators}
    start: list[Assign] = []
    for it in iterators:
        first, end = it.bounds
        start += [Assign(it.position, first), Assign(it.end, end)]
    step: list[Stmt] = [Assign(mine[it.name], it.coordinate(it.position)) for it in iterators]
    step.append(Assign(coord, call("min", *mine.values())))
    for it in iterators:
        step += [] if it.level.is_unique else find_stop(it)
    found: dict[str, Segment] = {it.name: it.segment(it.position) for it in iterators}
    everywhere = all_of([BinOp("==", mine[it.name], coord) for it in iterators])
    step.append(If(everywhere, body(env.bind(var, coord, found))))
    for it in iterators:
        following = it.position + 1 if it.level.is_unique else it.stop
        step.append(If(BinOp("==", mine[it.name], coord), (Assign(it.position, following),)))
    return (*start, While(all_of([it.position < it.end for it in iterators]), tuple(step)))
