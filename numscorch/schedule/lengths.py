"""Estimated lengths of loops and sums, for operands with even or uneven rows and columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, prod

from ..ir.index import Access, FlatSum, IndexVar, Stmt, is_relation, loops_of, operands_of
from . import cost, tuning
from .facts import Facts, by_answers


@by_answers
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


def longest_sum(summed: Collection[IndexVar], walks: Sequence[cost.SparseWalk], united: bool, facts: Facts) -> float:
    """Estimate the number of terms of the longest sum over some variables; 0 if no sum is known to be long.

    Args:
        summed: the variables of the sum.
        walks: the sparse operands with the counts of their levels.
        united: whether one operand suffices for a term, as in ``A + B``.
        facts: extents, counts and peaks.

    >>> from ..ir.format import CSR
    >>> from ..ir.index import TensorVar
    >>> i, j = IndexVar("i"), IndexVar("j")
    >>> facts = Facts(((i, 1000), (j, 1000)), peaks=(("A", ((i, 0), (j, 1024))),))
    >>> A = cost.SparseWalk(Access(TensorVar("A", CSR), (i, j)), (1000.0, 2000.0), {})
    >>> longest_sum([i], [A], False, facts), longest_sum([j], [A], False, facts)
    (1024.0, 0.0)
    """
    sums = []
    for walk in walks:
        access, fixed = walk.access, [var for var in walk.access.indices if var not in summed]
        peak = inf if is_relation(access) else peak_of(access, fixed, walk.counts[-1], facts)
        sums.append(peak * prod(facts.extent(var) for var in summed if var not in access.indices))
    finite_sums = [terms for terms in sums if terms < inf]
    return (max if united else min)(finite_sums, default=0.0)


def peak_of(access: Access, fixed: Sequence[IndexVar], values: float, facts: Facts) -> float:
    """Estimate how many values of an operand share the coordinates of the ``fixed`` variables; 0 if few, infinity if unknown."""
    peaks = dict(dict(facts.peaks).get(access.tensor.name, ()))
    return min((float(peaks.get(var, inf)) for var in fixed), default=values)


def is_uneven(summed: Collection[IndexVar], walks: Sequence[cost.SparseWalk], united: bool, average: float, facts: Facts) -> bool:
    """Whether one scattered sum is so much longer than the average that it would need too many blocks."""
    longest = longest_sum(summed, walks, united, facts)
    return longest >= max(tuning.LONG_COLUMN, tuning.BLOCK_OF_LONGEST * average / tuning.TERMS_PER_MOVE)
