"""Cost model of loop orders, based on the measured counts of the operands' levels.

It also chooses formats that suit a loop order, and estimates the lengths of loops and sums, for even and uneven rows and columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import exp, inf, log2, prod
from operator import mul

from ..ir.format import Format, sorted_format
from ..ir.functions import is_intersection
from ..ir.index import (
    Access,
    Assignment,
    IndexVar,
    TensorVar,
    accesses_in,
    is_product,
    is_relation,
    variables_in,
)
from ..ir.level import Level
from ..ir.levels import Compressed, Dense
from . import tuning
from .facts import EVEN, Crossings, Facts, Target

_format = lru_cache(maxsize=4096)(Format)  # called with the text and the mode order


@dataclass(frozen=True, slots=True)
class Fan:
    """How many coordinates a level has below one parent on average.

    Rows that another operand chooses are ``spreads`` times as long: see ``Pattern.crossings``.
    """

    level: int
    average: float
    spreads: Crossings
    can_seek: bool


@dataclass(frozen=True, slots=True, eq=False)
class SparseWalk:
    """A sparse operand as loops walk it: the number of coordinates in each level, and the fan of the level that a loop iterates."""

    access: Access
    counts: tuple[float, ...]
    fans: dict[IndexVar, Fan]


def walk_of(access: Access, facts: Facts) -> SparseWalk:
    """Describe how loops walk a sparse operand."""
    counts, name, fans = counts_of(access, facts), access.tensor.name, {}
    is_measured, crossings = not is_relation(access) and facts.count(name)[0] == access.tensor.format, dict(facts.crossings)
    for at in access.sparse_levels():
        level = access.tensor.format.levels[at]
        if not level.ends:
            spread = facts.spread(name, at) if at and is_measured else 1.0
            spreads = crossings.get(name, (spread,) * 3) if at else EVEN
            fans[access.level_var(at)] = Fan(at, _average(counts, at), spreads, can_seek(level))
    return SparseWalk(access, counts, fans)


def walks_of(accesses: Iterable[Access], facts: Facts) -> list[SparseWalk]:
    """Describe how loops walk the sparse operands among the accesses."""
    return [walk_of(access, facts) for access in accesses if not access.tensor.is_dense]


def is_concordant(access: Access, order: tuple[IndexVar, ...]) -> bool:
    """Whether a loop order reads a sparse tensor from its first level down.

    A full level can be located at any time. Any other level is iterated from the position of its parent, so the
    variables of all levels above it must come first.
    """
    place = {var: at for at, var in enumerate(order)}
    levels = access.tensor.format.levels
    places = [place[access.level_var(level)] for level in range(len(levels))]
    return all(level.full or places[at] > max(places[:at], default=-1) for at, level in enumerate(levels))


def reordered(access: Access, order: tuple[IndexVar, ...]) -> Access:
    """Return the access with the levels of its tensor in this loop order."""
    fmt = access.tensor.format
    modes = tuple(sorted(range(len(fmt.levels)), key=lambda d: order.index(access.indices[d])))
    return access.with_changes(format=_reordered(fmt, modes))


@lru_cache(maxsize=4096)
def _reordered(fmt: Format, modes: tuple[int, ...]) -> Format:
    letters = "".join("o" if not level.is_unique else level.letter if level.letter in "dso" else "s" for level in fmt.levels)
    if "d" in letters[1:]:
        letters = letters[0] + "s" * (len(letters) - 1)
    return _format(letters, modes)


def is_located(access: Access, first: IndexVar, facts: Facts) -> bool:
    """Whether :func:`in_rows` makes the first level dense: the tensor has fewer than ``tuning.LISTED_ROWS`` rows per entry."""
    return len(access.indices) > 1 and facts.extent(first) < tuning.LISTED_ROWS * counts_of(access, facts)[-1]


def in_rows(walk: SparseWalk, others: Sequence[SparseWalk], order: tuple[IndexVar, ...], facts: Facts) -> Access:
    """Return the access, in a format whose first level is located or searched if the loops would walk this level too often.

    That is so if the outermost loop runs over a variable that the tensor lacks, and another operand iterates the variable of
    the first level: each step of the outermost loop would walk the level again, and use few of its coordinates.
    Relations store nothing and have no other format.
    """
    access = walk.access
    if not order or order[0] in access.indices or access.tensor.format.levels[0].full or is_relation(access):
        return access
    if not any(access.level_var(0) in other.fans for other in others if other is not walk):
        return access
    indices = sorted(access.indices, key=order.index)
    first = "d" if is_located(access, indices[0], facts) else "s"
    rows = _format(first + "s" * (len(indices) - 1), tuple(map(access.indices.index, indices)))
    return access if rows == access.tensor.format else access.with_changes(format=rows)


def without_empty_rows(stmt: Assignment, order: tuple[IndexVar, ...], access: Access, facts: Facts) -> Access:
    """Return the access with its rows listed if loops in this order walk the rows and most rows are empty; else the same access.

    In a loop over all rows, an empty row takes as long as an entry. The list of nonempty rows is built once and cached with
    the pattern; columns and values are shared. The result vector starts as zeros, so empty rows need no step.

    The statement must sum over each row into a dense vector, and the matrix must be its only sparse operand, since other
    operands could contribute to empty rows. A result with more dimensions gains nothing: filling it with zeros takes as
    long as a loop over all rows.

    >>> from numscorch.ir.format import CSR
    >>> from numscorch.ir.index import TensorVar
    >>> i, j = IndexVar("i"), IndexVar("j")
    >>> A, y = Access(TensorVar("A", CSR), (i, j)), Access(TensorVar("y", Format("d")), (i,))
    >>> facts = Facts(((i, 1000), (j, 1000)), (("A", CSR, (1000, 100)),))
    >>> str(without_empty_rows(Assignment(y, A), (i, j), A, facts).tensor.format)
    '(i, j) -> (i: compressed, j: compressed)'
    """
    tensor, result = access.tensor, stmt.lhs.tensor
    if len(order) != 2 or tensor.format.levels != (Dense(), Compressed()) or order != (access.level_var(0), access.level_var(1)):
        return access
    is_sum = stmt.op in ("=", "+=") and is_product(stmt.rhs) and result.is_dense
    is_only_sparse = all(other.tensor.is_dense or other == access for other in accesses_in(stmt.rhs))
    rows, entries = counts_of(access, facts)
    if not (is_sum and is_only_sparse) or set(stmt.lhs.indices) == set(order) or entries * tuning.LISTED_ROWS > rows:
        return access
    return access.with_changes(format=Format((Compressed(), Compressed()), tensor.format.parts))


def conversion(walk: SparseWalk, stored: Access, facts: Facts, target: Target) -> float:
    """Cost of converting an operand to the format of another access.

    Values in another order lie far apart. A dense first level adds one place per row.
    """
    rows = not walk.access.tensor.format.levels[0].full and stored.tensor.format.levels[0].full
    is_moved = walk.access.tensor.format.mode_order != stored.tensor.format.mode_order
    each = tuning.COST_TRANSPOSE + (far(stored.tensor, walk.counts[-1], target) if is_moved else 0.0)
    return each * walk.counts[-1] + (facts.extent(stored.level_var(0)) if rows else 0.0)


def far(tensor: TensorVar, values: float, target: Target) -> float:
    """Cost of reading one of a tensor's values at random: it grows with each doubling beyond the cache of a core.

    >>> A = TensorVar("A", Format("ds"))
    >>> far(A, 2**17, Target(own_cache=2**20)), far(A, 2**20, Target(own_cache=2**20))
    (0.0, 4.0)
    """
    return tuning.COST_FAR * max(0.0, log2(max(values * tensor.type.itemsize, 1.0) / target.own_cache))


def mergeable(accesses: Sequence[Access]) -> list[Access]:
    """Return the accesses, each in an ordered format if a loop merges one of its unordered levels."""
    if all(access.tensor.format.is_ordered for access in accesses):
        return list(accesses)
    walk_counts = Counter(access.level_var(at) for access in accesses for at in access.sparse_levels())

    def merged(access: Access) -> Access:
        fmt = access.tensor.format
        must_sort = any(walk_counts[access.level_var(at)] > 1 for at, level in enumerate(fmt.levels) if not level.is_ordered)
        return access.with_changes(format=sorted_format(fmt)) if must_sort else access

    return list(map(merged, accesses))


def counts_of(access: Access, facts: Facts) -> tuple[float, ...]:
    """Number of coordinates in each level; repeated coordinates below one parent count once.

    The count is measured if the tensor keeps its format and the level is unique. Otherwise it is an upper bound: the
    number of places, limited by the number of values unless the level is full.
    """
    if is_relation(access):  # it stores nothing
        fans = (level.fan(facts.extent(access.level_var(at))) for at, level in enumerate(access.tensor.format.levels))
        return tuple(accumulate(fans, mul))
    (fmt, measured), levels = facts.count(access.tensor.name), access.tensor.format.levels
    places = accumulate((max(facts.extent(access.level_var(at)), 1.0) for at in range(len(levels))), mul)
    counts = [most if level.full else min(most, measured[-1]) for level, most in zip(levels, places, strict=True)]
    if fmt == access.tensor.format:
        counts = [measured[at] if level.is_unique else counts[at] for at, level in enumerate(levels)]
    return tuple(counts)


def can_seek(level: Level) -> bool:
    """Whether a level can be searched for a coordinate: its coordinates are ordered and unique."""
    return can_enter(level) and level.is_unique


def can_enter(level: Level) -> bool:
    """Whether a loop can start at any coordinate of a level: its coordinates are stored and ordered."""
    return "crd" in level.arrays and level.is_ordered


def fan_of(access: Access, at: int, facts: Facts) -> float:
    """Average number of coordinates of a level below one parent."""
    return _average(counts_of(access, facts), at)


def _average(counts: tuple[float, ...], at: int) -> float:
    return counts[at] / max(counts[at - 1] if at else 1.0, 1.0)


def estimated_fill(stmt: Assignment, facts: Facts) -> float:
    """Estimate the fraction of nonzero entries in the result, assuming that the operands' entries are evenly spread."""
    steps, _ = executions(variables_in(stmt.rhs), walks_of(accesses_in(stmt.rhs), facts), facts, not is_intersection(stmt.rhs))
    return 1.0 - exp(-steps / prod(max(facts.extent(var), 1.0) for var in stmt.lhs.indices))


def length_of_row(walk: SparseWalk, var: IndexVar, walks: Sequence[SparseWalk], facts: Facts) -> float:
    """Average length of the rows of one operand that a loop walks."""
    return min(_length(walk, walk.fans[var], walks, facts), max(facts.extent(var), 1.0))


def _length(walk: SparseWalk, fan: Fan, walks: Sequence[SparseWalk], facts: Facts) -> float:
    """Average length of the rows that a loop walks. Another sparse operand may choose long rows more often than short ones.

    This is assumed if the other operand has about the same counts and the same unevenness, as in a product of a matrix with
    itself: long columns then choose long rows, or short ones.
    """
    access, name = walk.access, walk.access.tensor.name
    others = (other.access for other in walks if other is not walk and facts.alike(name, other.access.tensor.name))
    choosing = [other for other in others if _chooses(other, access, fan.level)]
    shared = access.level_var(fan.level - 1)
    return fan.average * max((fan.spreads[sum(_is_column(a, shared, facts) for a in (access, other))] for other in choosing), default=1.0)


def _is_column(access: Access, var: IndexVar, facts: Facts) -> bool:
    """Whether a variable does not index the outermost level of an operand as it is given."""
    return access.indices[facts.count(access.tensor.name)[0].mode_order[0]] != var


def _chooses(other: Access, access: Access, at: int) -> bool:
    """Whether another sparse operand iterates the variable of the level above, and lacks the variable of the level itself."""
    return bool(other.sparse_levels(access.level_var(at - 1))) and access.level_var(at) not in other.indices


def executions(variables: Iterable[IndexVar], walks: Sequence[SparseWalk], facts: Facts, united: bool = False) -> tuple[float, float]:
    """(coordinates that survive all of these loops, steps of the innermost loop); see :func:`iterations`."""
    survivors, steps = 1.0, 1.0
    for var in variables:
        surviving, walked = iterations(var, walks, facts, united)
        survivors, steps = survivors * surviving, survivors * walked
    return survivors, steps


def iterations(var: IndexVar, walks: Sequence[SparseWalk], facts: Facts, united: bool = False) -> tuple[float, float]:
    """(surviving coordinates, steps) of a loop, for one iteration of the loops around it.

    The factors of a product intersect. The operands of any other expression are treated as ``united``.
    """
    extent = max(facts.extent(var), 1.0)
    iterated = [(walk, walk.fans[var]) for walk in walks if var in walk.fans]
    if not iterated:
        return extent, extent
    lengths = [min(fan.average if united or fan.spreads == EVEN else _length(walk, fan, walks, facts), extent) for walk, fan in iterated]
    survivors = min(sum(lengths), extent) if united else prod((length / extent for length in lengths), start=extent)
    if len(lengths) == 1:
        return survivors, lengths[0]
    is_searchable = not united and all(fan.can_seek for _, fan in iterated)
    return survivors, tuning.COST_MERGE * min(sum(lengths), (1 + tuning.SEEK) * min(lengths) if is_searchable else inf)


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
