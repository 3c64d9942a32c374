"""What a loop order costs, from the operands' measured counts."""

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

    A full level can be located at any time; one that must be iterated needs the position of its
    parent, so every variable above it comes first.
    """
    place = {var: at for at, var in enumerate(order)}
    levels = access.tensor.format.levels
    places = [place[access.level_var(level)] for level in range(len(levels))]
    return all(level.full or places[at] > max(places[:at], default=-1) for at, level in enumerate(levels))


def reordered(access: Access, order: tuple[IndexVar, ...]) -> Access:
    """The access with its tensor stored so that this loop order reads it from the top down."""
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
    """Whether :func:`in_rows` stores a tensor with a dense first level: an array of all rows is not much longer than the entries."""
    return len(access.indices) > 1 and facts.extent(first) < tuning.LISTED_ROWS * counts_of(access, facts)[-1]


def in_rows(access: Access, others: Sequence[Access], order: tuple[IndexVar, ...], facts: Facts) -> Access:
    """The access with its tensor stored so that the first level is located or searched; the same access if that is not needed.

    A loop that walks a sparse first level together with another operand picks few of its coordinates. Below an outer loop over
    a variable that the tensor does not have, each step of that loop would walk the whole level again. Relations store nothing,
    and have no other format.
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
    """What it costs to store an operand's tensor as in another access; a dense first level has a place for each row."""
    rows = not access.tensor.format.levels[0].full and stored.tensor.format.levels[0].full
    return tuning.COST_TRANSPOSE * counts_of(access, facts)[-1] + (facts.extent(stored.level_var(0)) if rows else 0.0)


def mergeable(accesses: Sequence[Access]) -> list[Access]:
    """The accesses, stored in order where several levels of one variable are walked together."""
    walked = Counter(access.level_var(at) for access in accesses for at in _iterated(access))
    return [sorted_access(a) if any(walked[a.level_var(at)] > 1 for at in _unordered(a)) else a for a in accesses]


def sorted_access(access: Access) -> Access:
    """The access with its tensor stored in order."""
    return Access(replace(access.tensor, format=sorted_format(access.tensor.format)), access.indices)


def _iterated(access: Access) -> list[int]:
    return [at for at, level in enumerate(access.tensor.format.levels) if not level.full]


def _unordered(access: Access) -> list[int]:
    return [at for at, level in enumerate(access.tensor.format.levels) if not level.is_ordered]


def counts_of(access: Access, facts: Facts) -> tuple[float, ...]:
    """Coordinates in each level, those of one parent counted once.

    Estimated where coordinates repeat (in how many runs isn't known), and where the tensor is to
    be stored otherwise than it is: no more than there are values, or places for them.
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
    """Positions of a pattern that stores nothing."""
    counts, parents = [], 1.0
    for at, level in enumerate(access.tensor.format.levels):
        parents *= level.fan(facts.extent(access.level_var(at)))
        counts.append(parents)
    return tuple(counts)


def can_seek(level: Level) -> bool:
    """Whether a coordinate can be searched for: each is stored once, and they are in order."""
    return can_enter(level) and level.is_unique


def can_enter(level: Level) -> bool:
    """Whether a loop can start at any coordinate: they are stored in order."""
    return "crd" in level.arrays and level.is_ordered


def fan_of(access: Access, at: int, facts: Facts) -> float:
    """Average number of coordinates of a level below one parent."""
    counts = counts_of(access, facts)
    return counts[at] / max(counts[at - 1] if at else 1.0, 1.0)


def estimated_fill(stmt: Assignment, facts: Facts) -> float:
    """About which share of the result's coordinates gets a value, if values are spread evenly."""
    sparse = [(a, counts_of(a, facts)) for a in accesses_in(stmt.rhs) if not a.tensor.is_dense]
    steps, places = 1.0, 1.0
    for var in variables_in(stmt.rhs):
        steps *= iterations(var, sparse, facts, not is_intersection(stmt.rhs))[0]
    for var in stmt.lhs.indices:
        places *= max(facts.extent(var), 1.0)
    return 1.0 - exp(-steps / places)


def _spread(access: Access, at: int, sparse: Sequence[tuple[Access, tuple[float, ...]]], facts: Facts) -> float:
    """How many times longer than the average the rows are where another sparse operand chooses them.

    Long rows are chosen more often only if long columns lead to them, as in a product of a matrix with itself; so the other
    operand must be as large and as uneven.
    """
    if not at or is_relation(access) or facts.count(access.tensor.name)[0] != access.tensor.format:
        return 1.0
    alike = [other for other, _ in sparse if other is not access and facts.alike(access.tensor.name, other.tensor.name)]
    return facts.spread(access.tensor.name, at) if any(_chooses(other, access, at) for other in alike) else 1.0


def _chooses(other: Access, access: Access, at: int) -> bool:
    """Whether another sparse operand chooses the coordinates above a level, but not those of the level."""
    var, level_var = access.level_var(at - 1), other.tensor.format.levels
    chosen = any(other.level_var(up) == var and not level.full for up, level in enumerate(level_var))
    return chosen and access.level_var(at) not in other.indices


def iterations(
    var: IndexVar, sparse: Sequence[tuple[Access, tuple[float, ...]]], facts: Facts, united: bool = False
) -> tuple[float, float]:
    """(coordinates that survive a loop, steps the loop takes) for one iteration of the loops around it.

    Factors of a product intersect; the operands of anything else are taken to be ``united``.
    """
    extent = max(facts.extent(var), 1.0)
    fans = []
    searched = not united
    for access, counts in sparse:
        for at, level in enumerate(access.tensor.format.levels):
            if access.level_var(at) == var and not level.full and not level.ends:
                parents = counts[at - 1] if at else 1.0
                fans.append(min(counts[at] / max(parents, 1.0) * (1.0 if united else _spread(access, at, sparse, facts)), extent))
                searched = searched and can_seek(level)
    if not fans:
        return extent, extent
    survivors = extent
    for fan in fans:
        survivors *= fan / extent
    if united:
        survivors = min(sum(fans), extent)
    if len(fans) == 1:
        return survivors, fans[0]
    return survivors, tuning.COST_MERGE * min(sum(fans), (1 + tuning.SEEK) * min(fans) if searched else inf)
