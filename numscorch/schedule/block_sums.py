"""block_sums: loops that add many terms to a register take partial sums, which are added in turn.

The rounding error of a sequential sum grows with its number of terms: the sum of 10^7 terms of 0.1 in float32 is wrong by 0.6
%. So a long loop adds each block of ``tuning.SUM_BLOCK`` terms in a separate register, and then adds the sums of blocks in blocks
too. A loop inside a summed loop adds in a separate register if it has ``tuning.NESTED_SUM`` terms or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, prod

from ..ir.index import (
    Access,
    Assignment,
    FlatSum,
    Forall,
    PartialSums,
    Serial,
    Specialize,
    Stmt,
    Vector,
    Where,
    accesses_in,
    is_relation,
    operands_of,
    result_of,
    value_of,
)
from ..ir.lattice import make_lattice
from ..ir.verify import adds_to_register, walked
from . import cost, tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target


def block_sums(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Choose the partial sums of loops that may add many terms to a register; None if no sum may be long.

    >>> from ..ir.format import CSR
    >>> from ..ir.index import IndexVar, TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> nest = parse_stmt("forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j])))", {"A": TensorVar("A", CSR)})
    >>> extents = (IndexVar("i"), 10), (IndexVar("j"), 10**5)
    >>> print(*block_sums(nest, Facts(extents, (("A", CSR, (10, 10**5)),))) or (), sep="\\n")
    forall(i, where(y[i] = t, forall(j: sums<64>, t += A[i,j] * x[j])))
    t takes up to 1e+04 terms along j: sums<64>
    >>> block_sums(nest, Facts(extents, (("A", CSR, (10, 100)),)))
    """
    reasons: list[str] = []
    blocked = _blocked(stmt, facts, reasons)
    return (blocked, "; ".join(reasons)) if reasons else None


def _blocked(stmt: Stmt, facts: Facts, reasons: list[str], is_nested: bool = False, runs: float = 1.0) -> Stmt:
    """Set the partial sums of the loops that add to registers.

    ``is_nested`` tells whether a loop around the statement adds to its register too. ``runs`` is the number of consecutive runs of
    positions that the statement's loop walks as one run, if ``codegen`` fuses it with the loop around it.
    """
    match stmt:
        case Assignment():
            return stmt
        case Where(consumer, producer):
            return Where(_blocked(consumer, facts, reasons, is_nested), _blocked(producer, facts, reasons))
        case Forall(_, body, tag) if isinstance(tag, Specialize) or not adds_to_register(stmt):  # a kind has few columns in a chunk
            return replace(stmt, body=_blocked(body, facts, reasons, is_nested))
        case Forall(var, body, tag):
            terms = _terms(stmt, facts, runs)
            widths = _widths(terms, _terms_per_step(stmt, facts))
            is_apart = is_nested and terms >= tuning.NESTED_SUM and not isinstance(tag, Vector)  # vector loops have a separate register
            sums = PartialSums(widths) if widths or is_apart else None
            if sums is not None:
                reasons.append(f"{result_of(stmt)} takes up to {terms:.3g} terms along {var}: {sums}")
            if not isinstance(tag, FlatSum):  # which becomes a single loop
                body = _blocked(body, facts, reasons, is_nested=True, runs=_length(stmt, facts) if _may_join(stmt) else 1.0)
            return replace(stmt, body=body, sums=sums)


def _widths(terms: float, per_step: float) -> tuple[int, ...]:
    """The number of steps in a block, in a block of blocks, and so on, for a loop of ``terms`` terms; empty for few terms."""
    widths, width = list[int](), max(int(tuning.SUM_BLOCK / per_step), 1)
    while terms >= tuning.FEWEST_SUM_BLOCKS * tuning.SUM_BLOCK:
        widths.append(width)
        width, terms = width * tuning.SUM_BLOCK, terms / tuning.SUM_BLOCK
    return tuple(widths)


def _terms(loop: Forall, facts: Facts, runs: float = 1.0) -> float:
    """Estimate the maximum number of terms that a loop adds to a register; a loop of a single tile counts as one step."""
    return max(runs * _length(loop, facts) / (loop.tag.width or inf), 1.0) * _terms_per_step(loop, facts)


def _terms_per_step(loop: Forall, facts: Facts) -> float:
    """Estimate the terms that one step of a loop adds to a register."""
    match loop.tag:
        case Vector(_, registers):
            return max(registers, 1)  # the registers of a summed tile are added in order
        case FlatSum():
            return 1.0
        case _:
            return _terms_in(loop.body, facts)


def _terms_in(stmt: Stmt, facts: Facts) -> float:
    """Estimate the terms that the body of a summed loop adds to the register; an inner loop of many terms counts as one term."""
    match stmt:
        case Assignment() | Forall(tag=Vector()):
            return 1.0
        case Where(consumer):
            return _terms_in(consumer, facts)
        case Forall():
            terms = _terms(stmt, facts) if adds_to_register(stmt) else _terms_in(stmt.body, facts)
            return 1.0 if terms >= tuning.NESTED_SUM else terms


def _may_join(loop: Forall) -> bool:
    """Whether a loop and its inner loop may become one loop, because the inner runs are consecutive, like the rows of a matrix.

    ``codegen.peephole.simplify`` can fuse them if no other operand depends on the outer coordinate.
    """
    inner = loop.body
    if not isinstance(inner, Forall) or inner.tag != Serial() or (iterated := walked(inner)) is None:
        return False
    access, at = iterated
    owner, levels = access.tensor, access.tensor.format.levels
    is_free = all(loop.var not in a.indices for a in accesses_in(value_of(loop)) if owner.name not in (a.tensor.name, a.tensor.shares))
    return is_free and at > 0 and access.level_var(at - 1) == loop.var and (at == 1 or not levels[at - 1].full)


def _length(loop: Forall, facts: Facts) -> float:
    """Estimate the maximum number of coordinates that a loop visits; a loop over all entries visits one parallel block at a time."""
    if isinstance(loop.tag, FlatSum):
        owner = next(access for access in accesses_in(value_of(loop)) if not access.tensor.is_scalar and access.tensor.shares is None)
        return cost.counts_of(owner, facts)[-1] / tuning.BLOCKS
    lattice = make_lattice(loop.var, value_of(loop.body))
    measured = {name for name, _, _ in facts.counts}
    known = [a for a in operands_of(loop) if a.tensor.name in lattice.iterated and (is_relation(a) or a.tensor.name in measured)]
    runs = [_longest_run(access, at, facts) for access in known for at in access.sparse_levels(loop.var)]
    extent = float(facts.sizes.get(loop.var, 1))
    if lattice.whole or not runs:
        return extent
    return min(runs) if lattice.points == (lattice.iterated,) else max(runs)


def _longest_run(access: Access, at: int, facts: Facts) -> float:
    """Estimate the maximum number of positions of a level below one parent."""
    counts = cost.counts_of(access, facts)
    fan = counts[at] / max(_parents(access, at, counts, facts), 1.0) * facts.spread(access.tensor.name, at)
    peak = cost.peak_of(access, [access.level_var(up) for up in range(at)], inf, facts)
    return max(fan, peak * counts[at] / max(counts[-1], 1.0) if peak < inf else 0.0)


def _parents(access: Access, at: int, counts: Sequence[float], facts: Facts) -> float:
    """Estimate the number of runs in a level: one for each coordinate above, even if that coordinate is stored several times."""
    if not at:
        return 1.0
    above = access.tensor.format.levels[:at]
    places = prod(facts.extent(access.level_var(level)) for level in range(at))
    return counts[at - 1] if all(level.is_unique for level in above) else min(counts[at - 1], places)
