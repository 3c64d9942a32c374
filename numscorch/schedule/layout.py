"""choose_layout: dense tensors are copied to another layout if the cheapest loops and the copies cost less than the loops as stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..ir.index import Assignment, IndexVar
from . import tuning
from .facts import Facts, Target
from .loop_order import cheapest, is_contiguous, unit_stride


@dataclass(frozen=True, slots=True)
class Scheduled:
    """An assignment with the facts for scheduling it."""

    stmt: Assignment
    facts: Facts


P = TypeVar("P", bound=Scheduled)


def choose_layout(stored: P, copied: Iterable[tuple[IndexVar, P, float]], target: Target) -> tuple[P, str | None]:
    """Choose the problem that costs least, and return the reason; the reason is None if no other layout is possible.

    Args:
        stored: the problem with all tensors as they are stored.
        copied: for each other layout, the index that it makes contiguous, the problem in it, and the cost of the copies.
        target: the machine.
    """
    best, costs = stored, dict[str, float]()
    for index, problem, copies in copied:
        if not costs:
            loops = cheapest(stored.stmt, stored.facts, target)
            inner, lanes = loops.order[-1], target.lanes(stored.stmt.lhs.tensor.dtype)
            extent = stored.facts.exact[inner]
            slow = extent < tuning.SHORT_SUM * lanes and _sums_slowly(stored.stmt, loops.order, index)
            as_stored = all(unit_stride(access, inner) for access in loops.converted if inner in access.indices)
            if as_stored and not slow and is_contiguous(stored.stmt, inner) and extent >= lanes:
                return stored, f"{inner} is contiguous and fills a register: no dense tensor is copied"
            costs["as stored"] = loops.cost * (tuning.SHORT_SUM if slow else 1)
        cost = cheapest(problem.stmt, problem.facts, target).cost + copies
        if cost < min(costs.values()):
            best = problem
        costs[f"copied with {index} contiguous"] = cost
    return best, "; ".join(f"{layout}: {cost:.3g}" for layout, cost in sorted(costs.items(), key=lambda item: item[1])) or None


def _sums_slowly(stmt: Assignment, order: Sequence[IndexVar], index: IndexVar) -> bool:
    """Whether the sum needs horizontal adds or reads one cache line per term, so that it is faster if the index is contiguous."""
    around = [var for var in order[-2:-1] if var == index]
    return any(var not in stmt.lhs.indices for var in (order[-1], *around))
