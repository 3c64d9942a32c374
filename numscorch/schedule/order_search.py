"""The cheapest loop orders of a statement, by A* search over their first loops.

Pricing every order takes n! prices. What a loop costs depends on which loops are around it, but hardly on their order: the
least cost of all loops that are left is a dynamic program over sets of variables (Held and Karp, 1962), computed with the
cheapest way to store each operand at each loop. That is a lower bound, by which the search extends the most promising prefix
first. Complete orders get the price of the cost model, and an order is only returned when no prefix is left whose bound is lower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush, nsmallest
from itertools import count, product
from math import inf, prod
from typing import Generic, TypeVar

import numpy as np

from ..ir.index import IndexVar
from . import tuning
from .order_operands import Walked

T = TypeVar("T")
UNTOUCHED, KEPT = -2, -1  # how an operand is stored, as far as a prefix decides it; other numbers: in another order
ROWS = 1 << 16  # and from this on: so that rows are located or searched, the first variable added
EXACT = 1 - 1e-9  # what rounding may add to a bound
FEW = 5  # variables up to which each of the cheapest orders is found, not just the first
WIDEST = 16  # variables up to which every set has a bound


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first loops of an order: how operands are stored, conversions, steps so far, and iterations of the innermost one."""

    order: tuple[int, ...] = ()
    bound: int = 0
    modes: tuple[int, ...] = ()
    moved: float = 0.0
    steps: float = 0.0
    runs: float = 1.0
    scatters: bool = False


@dataclass(frozen=True)
class Space:
    """What is searched: the variables, their extents, sparse operands, and what the last and the first loop are charged.

    ``may_follow`` says whether a variable may come after some others; ``last`` is the least that a step of an innermost loop
    costs, by the variable and whether earlier loops scatter; ``serial`` and ``alone`` are by how much an outermost loop multiplies
    the price of the nest, and that of conversions, too. ``apart`` is what else of a prefix decides on the price.
    """

    variables: Sequence[IndexVar]
    extents: Sequence[float]
    operands: Sequence[Walked]
    united: bool
    summed: int
    may_follow: Callable[[tuple[IndexVar, ...], IndexVar], bool]
    last: Callable[[int, bool], float]
    serial: Sequence[float]
    alone: Sequence[float]
    apart: Callable[[tuple[int, ...]], object]

    @cached_property
    def whole(self) -> int:
        """The set of all variables."""
        return (1 << len(self.variables)) - 1

    @cached_property
    def choosers(self) -> set[int]:
        """The operands that choose long rows of others."""
        return {at for operand in self.operands for level in operand.levels.values() for at, _ in level.choosers}

    @cached_property
    def left(self) -> list[list[tuple[float, float]]]:
        """For each set of variables the least that the loops over all others cost: for one iteration of those in it, and for all.

        The first list is for loops none of which scatters so far, the second one for others.
        """
        return lower_bounds(self) if 3 < len(self.variables) <= WIDEST else []

    def bound_of(self, prefix: Prefix) -> float:
        """The least price of an order that starts so."""
        if not prefix.order:
            return 0.0
        each, all_of_them = self.left[prefix.scatters][prefix.bound] if self.left and prefix.bound != self.whole else (0.0, 0.0)
        first, left = prefix.order[0], max(prefix.runs * each, all_of_them)
        return (prefix.moved + (prefix.steps + left) * self.serial[first]) * self.alone[first] * EXACT

    def extended(self, prefix: Prefix) -> Iterator[Prefix]:
        """The prefixes with a loop more, for each way to store the operands that it walks first."""
        names = tuple(self.variables[at] for at in prefix.order)
        for var, name in enumerate(self.variables):
            if prefix.bound >> var & 1 or not self.may_follow(names, name):
                continue
            ways = [self.ways(operand, mode, var, prefix.bound) for operand, mode in zip(self.operands, prefix.modes, strict=True)]
            for modes in product(*ways):
                yield self.with_loop(prefix, var, modes)

    def ways(self, operand: Walked, mode: int, var: int, bound: int) -> tuple[int, ...]:
        """How an operand may be stored where a variable is bound next."""
        if not operand.mask >> var & 1:
            return (mode,)
        if mode == KEPT:
            return (KEPT,) if operand.fits(var, bound) else ()
        if mode != UNTOUCHED:
            return (mode,)
        kept = (KEPT,) if operand.fits(var, bound) else ()
        moves = operand.may_move and (not kept or operand.may_clash(bound | 1 << var))
        rows = (ROWS + var,) if operand.has_rows and bound else ()
        return (*kept, *((var if operand.starts_full else 0,) if moves else ()), *rows)

    def with_loop(self, prefix: Prefix, var: int, modes: tuple[int, ...]) -> Prefix:
        """A prefix with a loop more, operands stored so."""
        survivors, steps = self.iterations(var, prefix.bound, modes)
        bound = prefix.bound | 1 << var
        scatters = prefix.scatters or (not self.summed >> var & 1 and bool(prefix.bound & self.summed))
        walk = tuning.COST_WALK if survivors < self.extents[var] else 1.0
        step = self.last(var, prefix.scatters) if bound == self.whole else walk
        pairs = zip(self.operands, prefix.modes, modes, strict=True)
        moved = sum(operand.conversion for operand, before, after in pairs if before == UNTOUCHED and after >= 0)
        total = prefix.steps + prefix.runs * steps * step
        return Prefix((*prefix.order, var), bound, modes, prefix.moved + moved, total, prefix.runs * survivors, scatters)

    def iterations(self, var: int, bound: int, modes: Sequence[int]) -> tuple[float, float]:
        """As :func:`cost.iterations`, from tables."""
        extent, fans, searched = self.extents[var], list[float](), not self.united
        for operand, mode in zip(self.operands, modes, strict=True):
            if not operand.mask >> var & 1:
                continue
            if mode == KEPT:
                level = operand.levels[var]
                if level.is_walked:
                    long = level.spread if any(self.is_walked(at, up, modes[at]) for at, up in level.choosers) else 1.0
                    fans.append(min(level.fan * long, extent))
                    searched = searched and level.can_seek
            elif (walked := operand.in_rows(var, bound) if mode >= ROWS else operand.converted(var, bound)) is not None:
                fans.append(walked[0])
                searched = searched and walked[1]
        if not fans:
            return extent, extent
        survivors = min(sum(fans), extent) if self.united else extent * prod(fan / extent for fan in fans)
        if len(fans) == 1:
            return survivors, fans[0]
        return survivors, tuning.COST_MERGE * min(sum(fans), (1 + tuning.SEEK) * min(fans) if searched else inf)

    def is_walked(self, operand: int, var: int, mode: int) -> bool:
        """Whether an operand, stored so, leaves out coordinates of a variable."""
        walked = self.operands[operand]
        if mode == KEPT:
            return not walked.levels[var].is_full
        return not (walked.located >> var & 1 and mode == ROWS + var) if mode >= ROWS else not (walked.starts_full and mode == var)

    def likeness(self, prefix: Prefix) -> object:
        """What the price of further loops depends on: prefixes that have it in common differ only in their steps so far."""
        pairs = enumerate(zip(self.operands, prefix.modes, strict=True))
        modes = tuple(mode if operand.mask & ~prefix.bound or at in self.choosers else KEPT for at, (operand, mode) in pairs)
        first = prefix.order[0]
        return prefix.bound, modes, prefix.scatters, self.serial[first], self.alone[first], self.apart(prefix.order)


@dataclass
class Search(Generic[T]):
    """The search of a space: ``price`` makes of a complete order what is returned, and its price; None where it can't be compiled."""

    space: Space
    price: Callable[[tuple[IndexVar, ...]], tuple[float, T] | None]
    waiting: list[tuple[float, tuple[int, ...], int, Prefix | None]] = field(default_factory=list)
    priced_orders: list[T] = field(default_factory=list)
    seen: dict[object, dict[tuple[int, ...], float]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def cheapest(self, most: int) -> list[T]:
        """The cheapest orders, the first one first; of equally cheap ones, those in the variables' order.

        Of more than a ``FEW`` variables only the first one is searched for; the others are those that had a price by then.
        A search of more than ``tuning.SEARCHED_PREFIXES`` prefixes, or without bounds for sets, ends in a beam search.
        """
        wanted = most if len(self.space.variables) <= FEW else 1
        self.add(Prefix(modes=(UNTOUCHED,) * len(self.space.operands)))
        best: list[T] = []
        prefixes: float = tuning.SEARCHED_PREFIXES if len(self.space.variables) <= WIDEST else 0
        while self.waiting and len(best) < wanted:
            if len(self.seen) > prefixes:
                if self.search_beam(wanted):
                    break
                prefixes = inf  # no order of the beam can be compiled: the search goes on from what it left
            _, order, number, prefix = heappop(self.waiting)
            if prefix is None:
                best.append(self.priced_orders[number])
            elif prefix.bound == self.space.whole:
                self.complete(order)
            elif self.is_new(prefix, wanted):
                for longer in self.space.extended(prefix):
                    self.add(longer)
        priced = sorted((price, order, number) for price, order, number, prefix in self.waiting if prefix is None)
        return [*best, *(self.priced_orders[number] for _, _, number in priced[: most - len(best)])]

    def search_beam(self, most: int) -> bool:
        """Extend the best prefixes of each length to complete orders, and say whether one of these has a price.

        All other prefixes still wait.
        """
        for length in range(len(self.space.variables) + 1):
            beam = nsmallest(tuning.BEAM, (entry for entry in self.waiting if len(entry[1]) == length and entry[3] is not None))
            numbers = {number for *_, number, _ in beam}
            self.waiting = [entry for entry in self.waiting if entry[3] is None or entry[2] not in numbers]
            heapify(self.waiting)
            for _, order, _, prefix in beam:
                if length == len(self.space.variables):
                    self.complete(order)
                elif prefix is not None and self.is_new(prefix, most):
                    for longer in self.space.extended(prefix):
                        self.add(longer)
        return bool(self.priced_orders)

    def add(self, prefix: Prefix) -> None:
        """Let a prefix wait for its turn."""
        heappush(self.waiting, (self.space.bound_of(prefix), prefix.order, next(self.numbers), prefix))

    def complete(self, order: tuple[int, ...]) -> None:
        """Let a complete order wait with its price."""
        if order in self.seen:
            return
        self.seen[order] = {}
        if (priced := self.price(tuple(self.space.variables[at] for at in order))) is not None:
            heappush(self.waiting, (priced[0], order, len(self.priced_orders), None))
            self.priced_orders.append(priced[1])

    def is_new(self, prefix: Prefix, most: int) -> bool:
        """Whether fewer than ``most`` prefixes were extended that are as good for all further loops."""
        if not prefix.order:
            return True
        runs = self.seen.setdefault(self.space.likeness(prefix), {})
        alike = sum(runs_before <= prefix.runs * (2 - EXACT) for runs_before in runs.values())
        if prefix.order in runs or alike >= most:
            return False
        runs[prefix.order] = prefix.runs
        return True


def lower_bounds(space: Space) -> list[list[tuple[float, float]]]:
    """:attr:`Space.left`: a dynamic program over sets, each operand stored in the way that costs least at each loop."""
    every = len(space.variables)
    sets, sizes = np.arange(1 << every), np.zeros(1, np.int64)
    for _ in range(every):
        sizes = np.concatenate([sizes, sizes + 1])
    loops = [_cheapest_loop(space, var, sets) for var in range(every)]
    each, total = np.full((2, 1 << every), inf), np.full((2, 1 << every), inf)
    runs = _fewest_runs(space, sets)
    for size in reversed(range(every)):
        here = sets[sizes == size]
        for var, loop in enumerate(loops):
            without = here[here >> var & 1 == 0]
            scatters = (without & space.summed != 0) & (not space.summed >> var & 1)
            for side in (0, 1):
                if size == every - 1:
                    last = space.last(var, bool(side))
                    here_each, here_total = loop.steps[without] * last, runs[without] * loop.in_all[without] * last
                else:
                    after = scatters | side, without | 1 << var
                    here_each = loop.steps[without] * loop.walk[without] + loop.survivors[without] * each[after]
                    here_total = runs[without] * loop.in_all[without] * loop.walk[without] + total[after]
                each[side, without] = np.minimum(each[side, without], here_each)
                total[side, without] = np.minimum(total[side, without], here_total)
    return [list(zip(*sides, strict=True)) for sides in zip(each.tolist(), total.tolist(), strict=True)]


def _fewest_runs(space: Space, sets: np.ndarray) -> np.ndarray:
    """For each set of variables the fewest iterations of the innermost of its loops; of what is no product, none."""
    if space.united:
        return np.zeros(len(sets))
    runs = np.ones(len(sets))
    for var, extent in enumerate(space.extents):
        runs *= np.where(sets >> var & 1, extent, 1.0)
    for operand in space.operands:
        inner, where = np.unique(sets & operand.mask, return_inverse=True)
        runs *= np.array([operand.share(int(bound)) for bound in inner])[where]
    return runs


@dataclass(frozen=True)
class _Loop:
    """For each set of variables around a loop, lower bounds: of its steps, on their own and where the fewest iterations are around it,
    of what one step costs, and of the coordinates that survive it.
    """

    steps: np.ndarray
    in_all: np.ndarray
    walk: np.ndarray
    survivors: np.ndarray


def _cheapest_loop(space: Space, var: int, sets: np.ndarray) -> _Loop:
    """The bounds of the loop over a variable."""
    extent, shape = space.extents[var], len(sets)
    ranges = [_fans(operand, var, sets) for operand in space.operands if operand.mask >> var & 1]
    sure, narrows, survivors = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.full(shape, extent)
    for low, _, high in ranges:
        sure += high < inf
        narrows |= high < extent
        survivors *= np.minimum(low, extent) / extent

    def summed(fans: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The sum of those that each way of storing an operand has, and the least of all."""
        least, surely = np.full(shape, extent), np.zeros(shape)
        for fan, (_, _, high) in zip(fans, ranges, strict=True):
            least = np.minimum(least, fan)
            surely += np.where(high < inf, fan, 0.0)
        return surely, least

    def steps(fans: Sequence[np.ndarray]) -> np.ndarray:
        surely, least = summed(fans)
        return np.where(sure > 1, tuning.COST_MERGE * np.minimum(surely, (1 + tuning.SEEK) * least), least)

    if space.united:
        surely, least = summed([low for low, _, _ in ranges])
        survivors = np.where(sure > 0, np.minimum(surely, extent), least)
    survivors, walk = np.maximum(survivors, 1e-300), np.where(narrows & (survivors < extent), tuning.COST_WALK, 1.0)
    return _Loop(steps([low for low, _, _ in ranges]), steps([joint for _, joint, _ in ranges]), walk, survivors)


def _fans(operand: Walked, var: int, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fewest coordinates that an operand may have at a loop, on their own and beside its smallest share, and the most.

    The most are infinite where it may have all coordinates, in place.
    """
    known = sets & operand.mask & ~(1 << var)
    inner, where = np.unique(known, return_inverse=True)
    low, joint, high = np.array([_fan_range(operand, var, int(bound)) for bound in inner]).T
    return low[where], joint[where], high[where]


def _fan_range(operand: Walked, var: int, bound: int) -> tuple[float, float, float]:
    """As :func:`_fans`, where these of the operand's variables are bound, in whichever order."""
    level, size = operand.levels[var], operand.sizes[var]
    ways = []
    if operand.is_kept(bound) and operand.fits(var, bound):
        fan, most = (min(level.fan, size), min(level.fan * level.spread, size)) if level.is_walked else (size, inf)
        ways.append((fan, operand.kept_share(bound) * fan, most))
    if operand.is_moved(bound) or (operand.may_move and operand.may_clash(bound | 1 << var)) or not ways:
        fan_ = operand.converted(var, bound)
        fan, most = (size, inf) if fan_ is None else (fan_[0], fan_[0])
        ways.append((fan, operand.moved_share(bound) * fan, most))
    if operand.has_rows:
        fan_ = operand.in_rows(var, bound)
        ways.append((size, size, inf) if fan_ is None else (fan_[0], operand.moved_share(bound) * fan_[0], fan_[0]))
    low, joint, high = (choose(way) for choose, way in zip((min, min, max), zip(*ways, strict=True), strict=True))
    return low, joint / max(operand.share(bound), 1e-300), high
