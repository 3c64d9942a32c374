"""Functions called in turn, so that whatever else the machine does hits all of them alike.

Each turn has another order: what a function leaves in the caches is met by all others.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from .intervals import ratio_of_medians

SECONDS = float(os.environ.get("NUMSCORCH_BENCH_SECONDS", "0.2"))  # for all functions that are compared together
FEWEST, MOST = 5, 400  # turns
LONGEST = 10  # times as many seconds for the fewest turns, where calls are long
WARM_UP = 3
DISTURBED = 2.0  # times as long as the fastest call takes the median one where something else runs
PATIENCE = 3.0  # a peer so many times slower than the best one is called for its result and its warm-up only

Function = Callable[[], object]
Times = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds a call took in each turn: of ours, of its peers, and of what is measured beside them."""

    ours: Times
    peers: Mapping[str, Times]
    beside: Mapping[str, Times]

    @property
    def best(self) -> str:
        """The fastest peer."""
        return min(self.peers, key=lambda peer: statistics.median(self.peers[peer]))

    @property
    def disturbance(self) -> float:
        """How many times as long as our fastest call the median one took: about 1, unless something else runs on this machine."""
        return statistics.median(self.ours) / min(self.ours)

    @property
    def ratio(self) -> float:
        """How many times as fast as the best peer: of the medians."""
        return statistics.median(self.peers[self.best]) / statistics.median(self.ours)

    def against(self, peer_times: Times) -> dict[str, float]:
        """A peer's time, and the ratios to ours: of the medians, with an interval, and of the fastest calls, which are disturbed least."""
        interval = ratio_of_medians(peer_times, self.ours)
        return {
            "seconds": statistics.median(peer_times),
            "ratio": interval.ratio,
            "low": interval.low,
            "high": interval.high,
            "ratio_of_minima": min(peer_times) / min(self.ours),
            "turns": len(peer_times),
        }


def in_turns(
    ours: Function,
    peers: Mapping[str, Function],
    *,
    beside: Mapping[str, Function] | None = None,
    seconds: float = SECONDS,
    calls: int = 1,
    rest: float = 0.0,
    patience: float = PATIENCE,
) -> Turns:
    """Call the functions a b c b a c ..., each turn in another order, and time each.

    Args:
        ours: the first function; what it returns is allocated in the timed call and freed after it.
        peers: the other ones by their names, likewise; there may be none.
        beside: functions to be reported that are no peers.
        seconds: stop after so long, but not before a few turns.
        calls: so many calls make a turn, where one is too short for the clock.
        rest: sleep so long before each turn, while the threads of a library with a pool of its own stop spinning.
        patience: leave out peers that are so many times slower than the best one; their warm-up is what is known.
    """
    others = {**peers, **(beside or {})}
    own_seconds = _warm_up(ours, calls, seconds)
    seconds_of = {name: _warm_up(function, calls, seconds) for name, function in others.items()}
    limit = patience * min((min(seconds_of[peer]) for peer in peers), default=math.inf)
    racing = {name: function for name, function in others.items() if min(seconds_of[name]) <= limit}
    own_seconds, seconds_of = [], seconds_of | {name: [] for name in racing}
    functions = [(own_seconds, ours), *((seconds_of[name], function) for name, function in racing.items())]
    order = Random(0)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        while not _enough(len(own_seconds), (time.perf_counter() - start) / seconds):
            for times, function in order.sample(functions, len(functions)):
                times.append(_time_call(function, calls, rest))
    finally:
        if was_enabled:
            gc.enable()
    turns = {name: tuple(times) for name, times in seconds_of.items()}
    return Turns(tuple(own_seconds), {name: turns[name] for name in peers}, {name: turns[name] for name in beside or {}})


def _enough(turns: int, share: float) -> bool:
    """Whether to stop after so many turns, which took this share of the time they are given."""
    return turns >= MOST or share >= LONGEST or (turns >= FEWEST and share >= 1)


def _warm_up(function: Function, calls: int, seconds: float) -> list[float]:
    """The times of the first calls, of which long ones are one."""
    times: list[float] = []
    while len(times) < WARM_UP and sum(times) < seconds:
        times.append(_time_call(function, calls, 0.0))
    return times


def _time_call(function: Function, calls: int, rest: float) -> float:
    if rest:
        time.sleep(rest)
    if calls == 1:
        start = time.perf_counter()
        result = function()
        stop = time.perf_counter()
        del result
        return stop - start
    turns = range(calls)
    start = time.perf_counter()
    for _ in turns:
        function()
    return (time.perf_counter() - start) / calls


def geometric_mean(ratios: Iterable[float]) -> float:
    """The mean of ratios: twice as fast and half as fast make 1.

    >>> geometric_mean([2.0, 0.5])
    1.0
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


def record_rounds(benchmark: Any, times: Iterable[float]) -> None:
    """Enter seconds that were measured here as rounds of a pytest-benchmark, for its JSON."""
    benchmark.pedantic(lambda: None)  # its own ways to measure can't take turns
    if benchmark.stats is not None:  # --benchmark-disable
        benchmark.stats.stats.data.clear()
        for seconds in times:
            benchmark.stats.update(seconds)
