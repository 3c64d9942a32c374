"""Branchless merges: each step reads the values of all operands, and masks the values of operands without an entry.

The operand with the next coordinate is practically random, so a branch on it is mispredicted half of the time. Instead, each
operand has a mask, with all bits set if it is present. The mask selects the operand's value. As an integer it is -1, and so
advances the position.
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
    """Lower a merge to one loop for each set of operands, which runs while all of them have entries."""
    var, lattice = stmt.var, make_lattice(stmt.var, ix.value_of(stmt.body))

    def case(inner: Env, absent: frozenset[str]) -> Block:
        simpler = ix.map_rhs(stmt.body, lambda rhs: simplified(rhs, absent))
        entry, present = guarded(ix.value_of(simpler), inner)
        is_summed = ix.result_of(simpler).tensor.name in env.registers
        return _mask_counters(lower(simpler, inner if is_summed else present), entry)

    iterators = [it for it in env.iterated(var) if it.name in lattice.iterated]
    appends, ahead = not ix.result_of(stmt).tensor.is_scalar, isinstance(stmt.tag, ix.Blend) and stmt.tag.ahead

    def merge_blended(loop: While, walked: list[Iterator], point: frozenset[str]) -> Stmt:
        """Run faster loops first: one while two rows have equal coordinates, and one up to the last entry of either row."""
        equal = (_walk_equal(var, walked, env, lattice, case),) if appends else ()
        return If(loop.condition, (*equal, _merge_ahead(var, walked, env, lattice, point, case), loop))

    lower_branchless = merge_blended if ahead and len(iterators) == 2 else None
    return merge_loops(var, iterators, env, lattice, case, step=_step, lower_branchless=lower_branchless)


def _walk_equal(var: ix.IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, case: Case) -> While:
    """Walk two rows while their coordinates are equal. Nothing is masked, and the branch on the comparison is predicted.

    Rows of tensors with the same pattern or the same blocks are equal to the end. Other rows leave this loop early, once per row.
    """
    coord = Var(var.name)
    coords = [it.coordinate(it.position) for it in walked]
    are_equal = all_of([*(it.position < it.end for it in walked), BinOp("==", coords[0], coords[1])])
    inner = env.bind(var, coord, {it.name: it.segment(it.position) for it in walked})
    body = case(inner, lattice.iterated - {it.name for it in walked})
    return While(are_equal, (Assign(coord, coords[0]), *body, *(Accumulate(it.position, Const(1)) for it in walked)))


def _merge_ahead(var: ix.IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, point: frozenset[str], case: Case) -> If:
    """Merge until one operand has one entry left, and load each next coordinate one step before it is compared.

    Otherwise a step would mostly wait for a load at the position that the previous step computed.
    """
    coords, ahead = ({it.name: Var(f"{var}{it.name}{which}") for it in walked} for which in ("", "_next"))
    step: list[Stmt] = [Assign(ahead[it.name], it.coordinate(it.position + 1)) for it in walked]
    step += _step(var, walked, env, lattice, point, case)[len(walked) :]  # without the loads of the current coordinates
    for it in walked:
        coord = coords[it.name]
        step.append(Assign(coord, coord + BinOp("&", ahead[it.name] - coord, Var(f"{it.name}_here"))))
    first = [Assign(coords[it.name], it.coordinate(it.position)) for it in walked]
    more = all_of([it.position < it.end - 1 for it in walked])
    return If(more, (*first, While(more, tuple(step))))


def _step(var: ix.IndexVar, walked: list[Iterator], env: Env, lattice: Lattice, point: frozenset[str], case: Case) -> Block:
    """Process the least of the current coordinates."""
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
    """Make the counters of a body advance by the mask of the entry, for a coordinate that may have no entry."""
    if entry is None:
        return body
    return tuple(Assign(stmt.var, stmt.var - entry) if isinstance(stmt, Accumulate) and stmt.value == Const(1) else stmt for stmt in body)
