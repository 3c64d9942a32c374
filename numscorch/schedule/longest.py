"""Estimates of the longest sum of a statement, for operands with uneven rows and columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, prod

from ..ir.index import Access, IndexVar, is_relation
from . import tuning
from .cost import SparseWalk
from .facts import Facts


def longest_sum(summed: Collection[IndexVar], walks: Sequence[SparseWalk], united: bool, facts: Facts) -> float:
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
    >>> A = SparseWalk(Access(TensorVar("A", CSR), (i, j)), (1000.0, 2000.0), {})
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


def is_uneven(summed: Collection[IndexVar], walks: Sequence[SparseWalk], united: bool, average: float, facts: Facts) -> bool:
    """Whether one scattered sum is so much longer than the average that it would need too many blocks."""
    longest = longest_sum(summed, walks, united, facts)
    return longest >= max(tuning.LONG_COLUMN, tuning.BLOCK_OF_LONGEST * average / tuning.TERMS_PER_MOVE)
