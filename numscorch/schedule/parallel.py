"""parallelize: the outermost loop is cut into blocks that run in parallel."""

from __future__ import annotations

from dataclasses import replace

from ..ir.index import Access, Assignment, Forall, Parallel, Serial, Stmt, Where, loops_of, operands_of, result_of
from . import cost
from .facts import Facts

WORTHWHILE = 1 << 15  # multiply-adds from which starting threads pays


def parallelize(stmt: Stmt, facts: Facts) -> tuple[Stmt, str]:
    """Run the outermost loop in parallel where its iterations write disjoint results, or one sum.

    A sum over the outermost loop is taken block by block, and the blocks' sums are added in order.
    """
    work = work_of(stmt, facts)
    if work < WORTHWHILE:
        return stmt, f"about {work:.3g} multiply-adds: too few to start threads"
    match stmt:
        case Forall(var, _, Serial()) if var in result_of(stmt).indices and len(_iterated(stmt)) <= 1:
            return replace(stmt, tag=Parallel()), f"about {work:.3g} multiply-adds: blocks of {var}, whose results are disjoint"
        case Where(Assignment(lhs) as consumer, Forall(var, _, Serial()) as producer) if lhs.tensor.is_scalar and len(_iterated(producer)) <= 1:
            return Where(consumer, replace(producer, tag=Parallel())), f"about {work:.3g} multiply-adds: one partial sum for each block of {var}"
        case _:
            return stmt, "the outermost loop scatters, co-iterates or is vectorised: it runs serially"


def work_of(stmt: Stmt, facts: Facts) -> float:
    """About how often the innermost statement runs."""
    sparse = [(a, cost.counts_of(a, facts)) for a in operands_of(stmt) if not a.tensor.is_dense]
    work = 1.0
    for var in dict.fromkeys(loop.var for loop in loops_of(stmt)):
        work *= cost.iterations(var, sparse, facts)[0]
    return work


def _iterated(loop: Forall) -> list[Access]:
    """The operands whose first level the loop iterates."""
    return [a for a in operands_of(loop) if not a.tensor.is_dense and not a.tensor.format.levels[0].full and a.level_var(0) == loop.var]
