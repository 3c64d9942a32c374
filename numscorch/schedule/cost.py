"""Cost model of loop orders, based on the measured counts of the operands' levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import exp, inf

from ..ir.format import Format, sorted_format
from ..ir.functions import is_intersection
from ..ir.index import Access, Assignment, IndexVar, accesses_in, is_relation, variables_in
from ..ir.level import Level
from . import tuning
from .facts import Facts


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
    """Return the access with its tensor in a format that this loop order reads from the first level down."""
    fmt = access.tensor.format
    modes = tuple(sorted(range(len(fmt.levels)), key=lambda d: order.index(access.indices[d])))
    return Access(replace(access.tensor, format=_reordered(fmt, modes)), access.indices)


@lru_cache(maxsize=4096)
def _reordered(fmt: Format, modes: tuple[int, ...]) -> Format:
    letters = "".join("o" if not level.is_unique else level.letter if level.letter in "dso" else "s" for level in fmt.levels)
    if "d" in letters[1:]:
        letters = letters[0] + "s" * (len(letters) - 1)
    return Format(letters, modes)


def is_located(access: Access, first: IndexVar, facts: Facts) -> bool:
    """Whether :func:`in_rows` makes the first level dense: the tensor has fewer than ``tuning.LISTED_ROWS`` rows per entry."""
    return len(access.indices) > 1 and facts.extent(first) < tuning.LISTED_ROWS * counts_of(access, facts)[-1]


def in_rows(access: Access, others: Sequence[Access], order: tuple[IndexVar, ...], facts: Facts) -> Access:
    """Return the access in a format whose first level is located or searched; the same access if its format can stay.

    The format changes if the outermost loop runs over a variable that the tensor lacks, and another operand iterates the
    variable of its first level. Each step of the outermost loop would walk that level again, and use few of its coordinates.
    Relations store nothing and have no other format.
    """
    if not order or order[0] in access.indices or access.tensor.format.levels[0].full or is_relation(access):
        return access
    if not any(other.level_var(at) == access.level_var(0) for other in others if other is not access for at in _iterated(other)):
        return access
    indices = sorted(access.indices, key=order.index)
    first = "d" if is_located(access, indices[0], facts) else "s"
    rows = Format(first + "s" * (len(indices) - 1), tuple(map(access.indices.index, indices)))
    return access if rows == access.tensor.format else Access(replace(access.tensor, format=rows), access.indices)


def conversion(access: Access, stored: Access, facts: Facts) -> float:
    """Cost of converting an operand to the format of another access; a dense first level adds one place per row."""
    rows = not access.tensor.format.levels[0].full and stored.tensor.format.levels[0].full
    return tuning.COST_TRANSPOSE * counts_of(access, facts)[-1] + (facts.extent(stored.level_var(0)) if rows else 0.0)


def mergeable(accesses: Sequence[Access]) -> list[Access]:
    """Return the accesses, each in an ordered format if a loop merges one of its unordered levels."""
    walk_counts = Counter(access.level_var(at) for access in accesses for at in _iterated(access))
    return [sorted_access(a) if any(walk_counts[a.level_var(at)] > 1 for at in _unordered(a)) else a for a in accesses]


def sorted_access(access: Access) -> Access:
    """Return the access with all levels of its tensor ordered."""
    return Access(replace(access.tensor, format=sorted_format(access.tensor.format)), access.indices)


def _iterated(access: Access) -> list[int]:
    return [at for at, level in enumerate(access.tensor.format.levels) if not level.full]


def _unordered(access: Access) -> list[int]:
    return [at for at, level in enumerate(access.tensor.format.levels) if not level.is_ordered]


def counts_of(access: Access, facts: Facts) -> tuple[float, ...]:
    """Number of coordinates in each level; repeated coordinates below one parent count once.

    The count is measured if the tensor keeps its format and the level is unique. Otherwise it is an upper bound: the
    number of places, limited by the number of values unless the level is full.
    """
    if is_relation(access):
        return _implied(access, facts)
    fmt, measured = facts.count(access.tensor.name)
    counts, places = [], 1.0
    for at, level in enumerate(access.tensor.format.levels):
        places *= max(facts.extent(access.level_var(at)), 1.0)
        if fmt == access.tensor.format and level.is_unique:
            counts.append(measured[at])
        else:
            counts.append(places if level.full else min(places, measured[-1]))
    return tuple(counts)


def _implied(access: Access, facts: Facts) -> tuple[float, ...]:
    """Number of positions in each level of a relation, which stores nothing."""
    counts, parents = [], 1.0
    for at, level in enumerate(access.tensor.format.levels):
        parents *= level.fan(facts.extent(access.level_var(at)))
        counts.append(parents)
    return tuple(counts)


def can_seek(level: Level) -> bool:
    """Whether a level can be searched for a coordinate: its coordinates are ordered and unique."""
    return can_enter(level) and level.is_unique


def can_enter(level: Level) -> bool:
    """Whether a loop can start at any coordinate of a level: its coordinates are stored and ordered."""
    return "crd" in level.arrays and level.is_ordered


def fan_of(access: Access, at: int, facts: Facts) -> float:
    """Average number of coordinates of a level below one parent."""
    counts = counts_of(access, facts)
    return counts[at] / max(counts[at - 1] if at else 1.0, 1.0)


def estimated_fill(stmt: Assignment, facts: Facts) -> float:
    """Estimate the density of the result, assuming evenly spread values."""
    sparse = [(a, counts_of(a, facts)) for a in accesses_in(stmt.rhs) if not a.tensor.is_dense]
    steps, places = 1.0, 1.0
    for var in variables_in(stmt.rhs):
        steps *= iterations(var, sparse, facts, not is_intersection(stmt.rhs))[0]
    for var in stmt.lhs.indices:
        places *= max(facts.extent(var), 1.0)
    return 1.0 - exp(-steps / places)


def _spread(access: Access, at: int, sparse: Sequence[tuple[Access, tuple[float, ...]]], facts: Facts) -> float:
    """Ratio of the mean length of rows chosen by another sparse operand to the mean length of all rows; 1 if none chooses.

    Long rows are chosen more often only if long columns lead to them, as in a product of a matrix with itself. So the other
    operand must have about the same counts and the same unevenness.
    """
    if not at or is_relation(access) or facts.count(access.tensor.name)[0] != access.tensor.format:
        return 1.0
    similar = [other for other, _ in sparse if other is not access and facts.alike(access.tensor.name, other.tensor.name)]
    return facts.spread(access.tensor.name, at) if any(_chooses(other, access, at) for other in similar) else 1.0


def _chooses(other: Access, access: Access, at: int) -> bool:
    """Whether another sparse operand iterates the variable of the level above, and lacks the variable of the level itself."""
    var, levels = access.level_var(at - 1), other.tensor.format.levels
    is_chosen = any(other.level_var(up) == var and not level.full for up, level in enumerate(levels))
    return is_chosen and access.level_var(at) not in other.indices


def iterations(
    var: IndexVar, sparse: Sequence[tuple[Access, tuple[float, ...]]], facts: Facts, united: bool = False
) -> tuple[float, float]:
    """(surviving coordinates, steps) of a loop, for one iteration of the loops around it.

    The factors of a product intersect. The operands of any other expression are treated as ``united``.
    """
    extent = max(facts.extent(var), 1.0)
    fans = []
    is_searchable = not united
    for access, counts in sparse:
        for at, level in enumerate(access.tensor.format.levels):
            if access.level_var(at) == var and not level.full and not level.ends:
                parents = counts[at - 1] if at else 1.0
                fans.append(min(counts[at] / max(parents, 1.0) * (1.0 if united else _spread(access, at, sparse, facts)), extent))
                is_searchable = is_searchable and can_seek(level)
    if not fans:
        return extent, extent
    survivors = extent
    for fan in fans:
        survivors *= fan / extent
    if united:
        survivors = min(sum(fans), extent)
    if len(fans) == 1:
        return survivors, fans[0]
    return survivors, tuning.COST_MERGE * min(sum(fans), (1 + tuning.SEEK) * min(fans) if is_searchable else inf)
