"""A* search for the cheapest loop orders of a statement, over prefixes of orders.

Pricing all orders takes n! evaluations of the cost model. The cost of a loop depends on the set of loops around it, but hardly
on their order. So a dynamic program over sets of variables (Held and Karp, 1962) bounds the cost of the remaining loops, with
the cheapest format of each operand at each loop. The search extends the prefix with the lowest bound first. Complete orders
get the price of the cost model, and an order is returned when no prefix has a lower bound.
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
UNTOUCHED, KEPT = -2, -1  # storage modes of an operand: undecided, in its own format; from 0 on: converted
ROWS = 1 << 16  # storage modes from this on: with rows that are located or searched, plus the first variable
EXACT = 1 - 1e-9  # factor that keeps rounded bounds below the price
FEW = 5  # variables up to which the search finds several cheapest orders instead of one
WIDEST = 16  # variables up to which every set has a lower bound


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first loops of an order: storage modes of operands, cost of conversions, steps so far, and iterations of the innermost loop."""

    order: tuple[int, ...] = ()
    bound: int = 0
    modes: tuple[int, ...] = ()
    conversions: float = 0.0
    steps: float = 0.0
    runs: float = 1.0
    scatters: bool = False


@dataclass(frozen=True)
class Space:
    """The search space: variables, extents, sparse operands, and costs that depend on the first and the last loop.

    ``may_follow`` says whether a variable may follow a prefix. ``last`` is a lower bound on the cost of a step of an innermost
    loop, by the variable and whether outer loops scatter. An outermost loop multiplies the price of the nest by ``serial``, and
    that of the nest and the conversions by ``alone``. ``extra_key`` is any other part of a prefix that affects the price.
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
    extra_key: Callable[[tuple[int, ...]], object]

    @cached_property
    def full(self) -> int:
        """The set of all variables."""
        return (1 << len(self.variables)) - 1

    @cached_property
    def choosers(self) -> set[int]:
        """The operands that choose long rows of other operands."""
        return {at for operand in self.operands for level in operand.levels.values() for at, _ in level.choosers}

    @cached_property
    def bounds(self) -> list[list[tuple[float, float]]]:
        """Lower bounds on the cost of the loops outside each set of variables: per iteration of the set's loops, and in total.

        The first list is for prefixes without a scattering loop, the second list for other prefixes.
        """
        return lower_bounds(self) if 3 < len(self.variables) <= WIDEST else []

    def bound_of(self, prefix: Prefix) -> float:
        """Lower bound on the price of an order that starts with this prefix."""
        if not prefix.order:
            return 0.0
        each, in_total = self.bounds[prefix.scatters][prefix.bound] if self.bounds and prefix.bound != self.full else (0.0, 0.0)
        first, remaining = prefix.order[0], max(prefix.runs * each, in_total)
        return (prefix.conversions + (prefix.steps + remaining) * self.serial[first]) * self.alone[first] * EXACT

    def extended(self, prefix: Prefix) -> Iterator[Prefix]:
        """Yield the prefixes with one more loop, for each storage mode of the operands that this loop walks first."""
        names = tuple(self.variables[at] for at in prefix.order)
        for var, name in enumerate(self.variables):
            if prefix.bound >> var & 1 or not self.may_follow(names, name):
                continue
            choices = [
                self.storage_modes(operand, mode, var, prefix.bound) for operand, mode in zip(self.operands, prefix.modes, strict=True)
            ]
            for modes in product(*choices):
                yield self.with_loop(prefix, var, modes)

    def storage_modes(self, operand: Walked, mode: int, var: int, bound: int) -> tuple[int, ...]:
        """Possible storage modes of an operand if a variable is bound next."""
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
        """Return the prefix with one more loop, and operands in these storage modes."""
        survivors, steps = self.iterations(var, prefix.bound, modes)
        bound = prefix.bound | 1 << var
        scatters = prefix.scatters or (not self.summed >> var & 1 and bool(prefix.bound & self.summed))
        walk = tuning.COST_WALK if survivors < self.extents[var] else 1.0
        step = self.last(var, prefix.scatters) if bound == self.full else walk
        pairs = zip(self.operands, prefix.modes, modes, strict=True)
        conversions = sum(operand.conversion for operand, before, after in pairs if before == UNTOUCHED and after >= 0)
        total_steps = prefix.steps + prefix.runs * steps * step
        return Prefix((*prefix.order, var), bound, modes, prefix.conversions + conversions, total_steps, prefix.runs * survivors, scatters)

    def iterations(self, var: int, bound: int, modes: Sequence[int]) -> tuple[float, float]:
        """Compute :func:`cost.iterations` from the tables of the operands."""
        extent, fans, is_searchable = self.extents[var], list[float](), not self.united
        for operand, mode in zip(self.operands, modes, strict=True):
            if not operand.mask >> var & 1:
                continue
            if mode == KEPT:
                level = operand.levels[var]
                if level.is_walked:
                    long = level.spread if any(self.is_walked(at, up, modes[at]) for at, up in level.choosers) else 1.0
                    fans.append(min(level.fan * long, extent))
                    is_searchable = is_searchable and level.can_seek
            elif (converted := operand.in_rows(var, bound) if mode >= ROWS else operand.converted(var, bound)) is not None:
                fans.append(converted[0])
                is_searchable = is_searchable and converted[1]
        if not fans:
            return extent, extent
        survivors = min(sum(fans), extent) if self.united else extent * prod(fan / extent for fan in fans)
        if len(fans) == 1:
            return survivors, fans[0]
        return survivors, tuning.COST_MERGE * min(sum(fans), (1 + tuning.SEEK) * min(fans) if is_searchable else inf)

    def is_walked(self, operand: int, var: int, mode: int) -> bool:
        """Whether an operand in this storage mode lacks coordinates of a variable."""
        owner = self.operands[operand]
        if mode == KEPT:
            return not owner.levels[var].is_full
        return not (owner.located >> var & 1 and mode == ROWS + var) if mode >= ROWS else not (owner.starts_full and mode == var)

    def state_key(self, prefix: Prefix) -> object:
        """Key of all that affects the price of further loops; prefixes with equal keys differ only in their cost so far."""
        pairs = enumerate(zip(self.operands, prefix.modes, strict=True))
        modes = tuple(mode if operand.mask & ~prefix.bound or at in self.choosers else KEPT for at, (operand, mode) in pairs)
        first = prefix.order[0]
        return prefix.bound, modes, prefix.scatters, self.serial[first], self.alone[first], self.extra_key(prefix.order)


@dataclass
class Search(Generic[T]):
    """A search in a space. ``price`` returns the price and the result of a complete order, or None if it cannot be compiled."""

    space: Space
    price: Callable[[tuple[IndexVar, ...]], tuple[float, T] | None]
    queue: list[tuple[float, tuple[int, ...], int, Prefix | None]] = field(default_factory=list)
    priced_orders: list[T] = field(default_factory=list)
    seen: dict[object, dict[tuple[int, ...], float]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def cheapest(self, most: int) -> list[T]:
        """The cheapest orders by ascending price; ties follow the order of the variables.

        With more than ``FEW`` variables, the search stops at the first order; the other orders are the cheapest priced so far.
        After ``tuning.SEARCHED_PREFIXES`` prefixes, or without bounds for sets, a beam search takes over.
        """
        order_count = most if len(self.space.variables) <= FEW else 1
        self.add(Prefix(modes=(UNTOUCHED,) * len(self.space.operands)))
        best: list[T] = []
        prefix_limit: float = tuning.SEARCHED_PREFIXES if len(self.space.variables) <= WIDEST else 0
        while self.queue and len(best) < order_count:
            if len(self.seen) > prefix_limit:
                if self.search_beam(order_count):
                    break
                prefix_limit = inf  # no order of the beam can be compiled: continue with the other prefixes
            _, order, number, prefix = heappop(self.queue)
            if prefix is None:
                best.append(self.priced_orders[number])
            elif prefix.bound == self.space.full:
                self.complete(order)
            elif self.is_new(prefix, order_count):
                for longer in self.space.extended(prefix):
                    self.add(longer)
        priced = sorted((price, order, number) for price, order, number, prefix in self.queue if prefix is None)
        return [*best, *(self.priced_orders[number] for _, _, number in priced[: most - len(best)])]

    def search_beam(self, most: int) -> bool:
        """Extend the best prefixes of each length to complete orders, and return whether one of these has a price.

        All other prefixes stay in the queue.
        """
        for length in range(len(self.space.variables) + 1):
            beam = nsmallest(tuning.BEAM, (entry for entry in self.queue if len(entry[1]) == length and entry[3] is not None))
            numbers = {number for *_, number, _ in beam}
            self.queue = [entry for entry in self.queue if entry[3] is None or entry[2] not in numbers]
            heapify(self.queue)
            for _, order, _, prefix in beam:
                if length == len(self.space.variables):
                    self.complete(order)
                elif prefix is not None and self.is_new(prefix, most):
                    for longer in self.space.extended(prefix):
                        self.add(longer)
        return bool(self.priced_orders)

    def add(self, prefix: Prefix) -> None:
        """Queue a prefix with its lower bound."""
        heappush(self.queue, (self.space.bound_of(prefix), prefix.order, next(self.numbers), prefix))

    def complete(self, order: tuple[int, ...]) -> None:
        """Price a complete order once, and queue it."""
        if order in self.seen:
            return
        self.seen[order] = {}
        if (priced := self.price(tuple(self.space.variables[at] for at in order))) is not None:
            heappush(self.queue, (priced[0], order, len(self.priced_orders), None))
            self.priced_orders.append(priced[1])

    def is_new(self, prefix: Prefix, most: int) -> bool:
        """Whether fewer than ``most`` prefixes with the same key and no more iterations were extended before."""
        if not prefix.order:
            return True
        runs = self.seen.setdefault(self.space.state_key(prefix), {})
        count_before = sum(runs_before <= prefix.runs * (2 - EXACT) for runs_before in runs.values())
        if prefix.order in runs or count_before >= most:
            return False
        runs[prefix.order] = prefix.runs
        return True


def lower_bounds(space: Space) -> list[list[tuple[float, float]]]:
    """Compute :attr:`Space.bounds` by a dynamic program over sets, with the cheapest storage mode of each operand at each loop."""
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
    """Lower bound on the iterations of the innermost loop, for each set of variables; 0 unless operands intersect."""
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
    """Lower bounds for one loop, by the set of variables around it.

    ``steps`` bounds its steps, and ``in_all`` its steps per iteration of the fewest outer iterations. ``walk`` bounds the cost
    of a step, and ``survivors`` the coordinates that survive the loop.
    """

    steps: np.ndarray
    in_all: np.ndarray
    walk: np.ndarray
    survivors: np.ndarray


def _cheapest_loop(space: Space, var: int, sets: np.ndarray) -> _Loop:
    """Lower bounds for the loop over a variable."""
    extent, shape = space.extents[var], len(sets)
    ranges = [_fans(operand, var, sets) for operand in space.operands if operand.mask >> var & 1]
    certain_count, narrows, survivors = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.full(shape, extent)
    for low, _, high in ranges:
        certain_count += high < inf
        narrows |= high < extent
        survivors *= np.minimum(low, extent) / extent

    def summed(fans: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The sum over operands that lack coordinates in every storage mode, and the minimum over all operands."""
        least, certain_sum = np.full(shape, extent), np.zeros(shape)
        for fan, (_, _, high) in zip(fans, ranges, strict=True):
            least = np.minimum(least, fan)
            certain_sum += np.where(high < inf, fan, 0.0)
        return certain_sum, least

    def steps(fans: Sequence[np.ndarray]) -> np.ndarray:
        certain_sum, least = summed(fans)
        return np.where(certain_count > 1, tuning.COST_MERGE * np.minimum(certain_sum, (1 + tuning.SEEK) * least), least)

    if space.united:
        certain_sum, least = summed([low for low, _, _ in ranges])
        survivors = np.where(certain_count > 0, np.minimum(certain_sum, extent), least)
    survivors, walk = np.maximum(survivors, 1e-300), np.where(narrows & (survivors < extent), tuning.COST_WALK, 1.0)
    return _Loop(steps([low for low, _, _ in ranges]), steps([joint for _, joint, _ in ranges]), walk, survivors)


def _fans(operand: Walked, var: int, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bounds on an operand's coordinates at a loop: a lower bound, a lower bound relative to its smallest share, and an upper bound.

    The upper bound is infinite if every coordinate may have a position.
    """
    known = sets & operand.mask & ~(1 << var)
    inner, where = np.unique(known, return_inverse=True)
    low, joint, high = np.array([_fan_range(operand, var, int(bound)) for bound in inner]).T
    return low[where], joint[where], high[where]


def _fan_range(operand: Walked, var: int, bound: int) -> tuple[float, float, float]:
    """As :func:`_fans`, for one set of bound variables of the operand, in any order."""
    level, size = operand.levels[var], operand.sizes[var]
    ranges = []
    if operand.is_kept(bound) and operand.fits(var, bound):
        fan, most = (min(level.fan, size), min(level.fan * level.spread, size)) if level.is_walked else (size, inf)
        ranges.append((fan, operand.kept_share(bound) * fan, most))
    if operand.is_moved(bound) or (operand.may_move and operand.may_clash(bound | 1 << var)) or not ranges:
        fan_ = operand.converted(var, bound)
        fan, most = (size, inf) if fan_ is None else (fan_[0], fan_[0])
        ranges.append((fan, operand.moved_share(bound) * fan, most))
    if operand.has_rows:
        fan_ = operand.in_rows(var, bound)
        ranges.append((size, size, inf) if fan_ is None else (fan_[0], operand.moved_share(bound) * fan_[0], fan_[0]))
    low, joint, high = (choose(way) for choose, way in zip((min, min, max), zip(*ranges, strict=True), strict=True))
    return low, joint / max(operand.share(bound), 1e-300), high
