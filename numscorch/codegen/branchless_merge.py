"""Merges without branches: at each step every operand's value is read, and masked where it has no entry.

Which of two rows has the next coordinate is as good as random, and a branch on it is mispredicted every other time. Here
it is a mask, all bits set where an operand is present: of its value, and of how far it advances, since -1 has all bits set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import index as ix
from ..ir.functions import simplified
from ..ir.lattice import Lattice, make_lattice
from ..ir.loop import Accumulate, Assign, BinOp, Block, Const, Expr, If, Stmt, Var, While, all_of, call
from .coiteration import Case, merge_loops
from .environment import Env, Iterator
from .expressions import guarded


def lower_blended(stmt: ix.Forall, env: Env, lower: Callable[[ix.Stmt, Env], Block]) -> Block:
    """A loop for each set of operands, which runs while all of them last; one operand that is left over is walked."""
    var, lattice = stmt.var, make_lattice(stmt.var, ix.value_of(stmt.body))

    def case(inner: Env, absent: frozenset[str]) -> Block:
        rest = ix.map_rhs(stmt.body, lambda rhs: simplified(rhs, absent))
        entry, present = guarded(ix.value_of(rest), inner)
        summed = ix.result_of(rest).tensor.name in env.registers
        return _counted(lower(rest, inner if summed else present), entry)

    iterators = [it for it in env.iterated(var) if it.name in lattice.iterated]
    appends, ahead = not ix.result_of(stmt).tensor.is_scalar, isinstance(stmt.tag, ix.Blend) and stmt.tag.ahead

    def merge_blended(loop: While, walked: list[Iterator], point: frozenset[str]) -> Stmt:
        """Two rows, which are walked faster while they are alike, and up to the last of their entries."""
        alike = (_alike(var, walked, env, lattice, case),) if appends else ()
        return If(loop.condition, (*alike, _looking_ahead(var, walked, env, lattice, point, case), loop))

    lower_branchless = merge_blended if ahead and len(iterators) == 2 else None
    return merge_loops(var, iterators, env, lattice, case, step=_step, lower_branchless=lower_branchless)


def _alike(var: ix.IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, case: Case) -> While:
    """Two rows for as long as they are alike: nothing is masked, and positions don't wait for what was compared, which is predicted.

    Rows of tensors with one pattern, or with the same blocks, are alike to their end; others leave this at once, once in each row.
    """
    coord = Var(var.name)
    mine = [it.coordinate(it.position) for it in walked]
    alike = all_of([*(it.position < it.end for it in walked), BinOp("==", mine[0], mine[1])])
    inner = env.bind(var, coord, {it.name: it.segment(it.position) for it in walked})
    both = case(inner, lattice.iterated - {it.name for it in walked})
    return While(alike, (Assign(coord, mine[0]), *both, *(Accumulate(it.position, Const(1)) for it in walked)))


def _looking_ahead(var: ix.IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, point: frozenset[str], case: Case) -> If:
    """The merge up to where one operand has one entry left: of each operand the next coordinate is loaded a step before it is compared.

    A step waits for a load at the position that the one before it found, otherwise: most of its time.
    """
    mine, ahead = ({it.name: Var(f"{var}{it.name}{which}") for it in walked} for which in ("", "_next"))
    step: list[Stmt] = [Assign(ahead[it.name], it.coordinate(it.position + 1)) for it in walked]
    step += _step(var, walked, env, lattice, point, case)[len(walked) :]  # but for the coordinates at hand
    for it in walked:
        coord = mine[it.name]
        step.append(Assign(coord, coord + BinOp("&", ahead[it.name] - coord, Var(f"{it.name}_here"))))
    first = [Assign(mine[it.name], it.coordinate(it.position)) for it in walked]
    more = all_of([it.position < it.end - 1 for it in walked])
    return If(more, (*first, While(more, tuple(step))))


def _step(var: ix.IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, point: frozenset[str], case: Case) -> Block:
    """One coordinate, the least of those at hand."""
    coord, mine = Var(var.name), {it.name: Var(f"{var}{it.name}") for it in walked}
    step: list[Stmt] = [Assign(mine[it.name], it.coordinate(it.position)) for it in walked]
    step.append(Assign(coord, call("min", *mine.values())))
    masks = {it.name: Var(f"{it.name}_here") for it in walked}
    for it in walked:
        others = [coordinate for name, coordinate in mine.items() if name != it.name]
        step.append(Assign(masks[it.name], call("at_most", mine[it.name], others[0] if len(others) == 1 else coord)))
    inner = env.bind(var, coord, {it.name: it.segment(it.position) for it in walked})
    assured = tuple(frozenset({it.name}) for it in walked)
    absent = lattice.iterated - point
    step += case(replace(inner, conditions={**inner.conditions, **masks}, masked=True, assured=assured), absent)
    return (*step, *(Assign(it.position, it.position - masks[it.name]) for it in walked))


def _counted(body: Block, entry: Expr | None) -> Block:
    """The body for a coordinate at which there may be no entry: what it advances by one advances by the mask of the entry."""
    if entry is None:
        return body
    return tuple(Assign(stmt.var, stmt.var - entry) if isinstance(stmt, Accumulate) and stmt.value == Const(1) else stmt for stmt in body)
