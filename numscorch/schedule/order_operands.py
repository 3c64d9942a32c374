"""Sparse operands as the search for a loop order sees them: their coordinates at each loop, in their own format or converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ..ir.index import Access, IndexVar, is_relation
from . import cost, tuning
from .facts import Facts


@dataclass(frozen=True, slots=True)
class At:
    """The level of an operand at a variable: the variables above it as a bit set, coordinates per parent, and how loops can walk it."""

    above: int
    fan: float
    is_full: bool
    is_walked: bool
    can_seek: bool
    spread: float = 1.0
    choosers: tuple[tuple[int, int], ...] = ()  # (operand, variable) pairs that choose long rows


@dataclass(frozen=True)
class Walked:
    """A sparse operand: its variables as a bit set, its levels as stored, and its properties after a conversion."""

    mask: int
    levels: Mapping[int, At]
    stored: float
    conversion: float
    starts_full: bool  # whether the first level is dense after a conversion
    seeks: tuple[bool, ...]  # by level after a conversion: whether it can be searched
    may_move: bool
    has_rows: bool  # whether a format with a located or searched first level exists (cost.in_rows)
    located: int  # the variables whose rows that format locates, as a bit set
    sizes: Mapping[int, float]
    position_counts: dict[int, float] = field(default_factory=dict)

    def fits(self, var: int, bound: int) -> bool:
        """Whether a variable can be bound next in the operand's own format."""
        level = self.levels[var]
        return level.is_full or level.above & ~bound == 0

    def may_clash(self, bound: int) -> bool:
        """Whether an order that starts with these variables may need a conversion at a later variable."""
        return any(not bound >> var & 1 and not self.fits(var, bound) for var in self.levels)

    def may_be_reversed(self, bound: int) -> bool:
        """Whether some order of these variables needs a conversion."""
        return any(bound >> var & 1 and not level.is_full and level.above for var, level in self.levels.items())

    def is_kept(self, bound: int) -> bool:
        """Whether some order of these variables reads the operand in its own format."""
        return all(self.fits(var, bound) for var in self.levels if bound >> var & 1)

    def is_moved(self, bound: int) -> bool:
        """Whether an order that starts with these variables, in any order, may use a converted operand."""
        return self.has_rows or not self.is_kept(bound) or (self.may_move and (self.may_be_reversed(bound) or self.may_clash(bound)))

    def kept_share(self, bound: int) -> float:
        """Share of the coordinates of these variables that have positions in the operand's own format."""
        shares = (level.fan / self.sizes[var] for var, level in self.levels.items() if bound >> var & 1 and level.is_walked)
        return prod(min(share, 1.0) for share in shares)

    def moved_share(self, bound: int) -> float:
        """The same share after a conversion to another mode order."""
        return self.count(bound) / prod(size for var, size in self.sizes.items() if bound >> var & 1)

    def share(self, bound: int) -> float:
        """The smaller of both shares, as far as they are possible."""
        kept = [self.kept_share(bound)] if self.is_kept(bound) else []
        return min([*kept, *([self.moved_share(bound)] if self.is_moved(bound) else [])])

    def count(self, bound: int) -> float:
        """Number of positions of these variables after a conversion."""
        if bound not in self.position_counts:
            places = prod(size for var, size in self.sizes.items() if bound >> var & 1)
            is_first = self.starts_full and bound.bit_count() == 1
            self.position_counts[bound] = places if is_first or not bound else min(places, self.stored)
        return self.position_counts[bound]

    def in_rows(self, var: int, bound: int) -> tuple[float, bool] | None:
        """As :meth:`converted`, in the format whose rows are located or searched."""
        own_bound = bound & self.mask
        if not own_bound:
            return None if self.located >> var & 1 else (self.count(1 << var), True)
        places = prod(size for at, size in self.sizes.items() if own_bound >> at & 1)
        is_first = own_bound.bit_count() == 1 and own_bound & self.located
        fan = self.count(own_bound | 1 << var) / max(places if is_first else self.count(own_bound), 1.0)
        return min(fan, self.sizes[var]), True

    def converted(self, var: int, bound: int) -> tuple[float, bool] | None:
        """Coordinates per parent after a conversion, and whether they can be searched; None if every coordinate has a position."""
        own_bound = bound & self.mask
        if not own_bound and self.starts_full:
            return None
        fan = self.count(own_bound | 1 << var) / max(self.count(own_bound), 1.0)
        return min(fan, self.sizes[var]), self.seeks[own_bound.bit_count()]


def operands_walked(given: Sequence[Access], variables: Sequence[IndexVar], facts: Facts, shared: str | None) -> list[Walked]:
    """The operands for the search; a relation, or the operand whose pattern the result keeps, is never converted."""
    number = {var: at for at, var in enumerate(variables)}
    return [_describe(access, given, number, facts, access.tensor.name != shared and not is_relation(access)) for access in given]


def _describe(access: Access, operands: Sequence[Access], number: dict[IndexVar, int], facts: Facts, may_move: bool) -> Walked:
    counts, levels = cost.counts_of(access, facts), access.tensor.format.levels
    var_numbers = [number[access.level_var(at)] for at in range(len(levels))]
    levels_by_var = {}
    for at, (var, level) in enumerate(zip(var_numbers, levels, strict=True)):
        above = sum(1 << up for up in var_numbers[:at])
        fan = counts[at] / max(counts[at - 1] if at else 1.0, 1.0)
        if not all(level_.is_ordered for level_ in levels):  # the operand may be sorted first
            fan = min(fan, counts[-1], 1.0)
        unevenness, choosers = _choosers(access, at, operands, number, facts)
        levels_by_var[var] = At(above, fan, level.full, not level.full and not level.ends, cost.can_seek(level), unevenness, choosers)
    converted_access = cost.reordered(access, tuple(access.level_var(at) for at in range(len(levels)))) if may_move else access
    stored = converted_access.tensor.format.levels
    sizes = {number[var]: max(facts.extent(var), 1.0) for var in access.indices}
    mask = sum(1 << var for var in var_numbers)
    seeks = tuple(cost.can_seek(level) for level in stored)
    starts_full = bool(stored) and stored[0].full
    located = sum(1 << number[var] for var in access.indices if cost.is_located(access, var, facts))
    rows = may_move and bool(stored) and not starts_full
    return Walked(mask, levels_by_var, counts[-1], tuning.COST_TRANSPOSE * counts[-1], starts_full, seeks, may_move, rows, located, sizes)


def _choosers(
    access: Access, at: int, operands: Sequence[Access], number: dict[IndexVar, int], facts: Facts
) -> tuple[float, tuple[tuple[int, int], ...]]:
    """The unevenness of the rows, and the operands that may choose long rows (see :func:`cost._spread`)."""
    name = access.tensor.name
    if not at or is_relation(access) or facts.spread(name, at) == 1.0:
        return 1.0, ()
    above, var = access.level_var(at - 1), access.level_var(at)
    similar = [(n, other) for n, other in enumerate(operands) if other is not access and facts.alike(name, other.tensor.name)]
    choosers = tuple((n, number[above]) for n, other in similar if above in other.indices and var not in other.indices)
    return facts.spread(name, at), choosers
