"""Estimated lengths of loops, by the coordinate or position variable that a loop counts."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from ..ir.index import Access, FlatSum, Stmt, is_relation, loops_of, operands_of
from . import cost, tuning
from .facts import Facts
from .longest import peak_of


def run_lengths(stmt: Stmt, facts: Facts) -> dict[str, float]:
    """Estimate the longest run of each coordinate and position variable of a nest.

    Args:
        stmt: the scheduled statement.
        facts: extents, counts and peaks.

    >>> from ..ir.format import CSR
    >>> from ..ir.index import IndexVar, TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> stmt = parse_stmt("forall(i, forall(j, y[i] += A[i,j] * x[j]))", {"A": TensorVar("A", CSR)})
    >>> facts = Facts(((IndexVar("i"), 10), (IndexVar("j"), 5000)), (("A", CSR, (10, 2000)),))
    >>> run_lengths(stmt, facts)
    {'i': 10.0, 'j': 5000.0, 'pA1': 10.0, 'pA2': 200.0}
    """
    lengths = {var.name: float(size) for var, size in facts.extents}
    summed_whole = any(isinstance(loop.tag, FlatSum) for loop in loops_of(stmt))
    measured_names = {name for name, _, _ in facts.counts}
    for access in operands_of(stmt):
        tensor = access.tensor
        if not is_relation(access) and tensor.name not in measured_names:
            continue
        counts, levels = cost.counts_of(access, facts), len(tensor.format.levels)
        for at in range(levels):
            fan = counts[at] / max(_parents(access, at, counts, facts), 1.0) * facts.spread(tensor.name, at)
            lengths[f"p{tensor.name}{at + 1}"] = max(fan, _longest_run(access, at, counts, facts))
        if summed_whole:
            lengths[f"p{tensor.name}{levels}"] = counts[-1] / tuning.BLOCKS
    return lengths


def _parents(access: Access, at: int, counts: Sequence[float], facts: Facts) -> float:
    """Estimate the number of runs in a level: one for each coordinate above, even if that coordinate is stored several times."""
    if not at:
        return 1.0
    above = access.tensor.format.levels[:at]
    places = prod(facts.extent(access.level_var(level)) for level in range(at))
    return counts[at - 1] if all(level.is_unique for level in above) else min(counts[at - 1], places)


def _longest_run(access: Access, at: int, counts: Sequence[float], facts: Facts) -> float:
    """Estimate the number of positions in the longest run of a level; 0 if it is short or unknown."""
    peak = peak_of(access, [access.level_var(up) for up in range(at)], inf, facts)
    return peak * counts[at] / max(counts[-1], 1.0) if peak < inf else 0.0
