"""Measuring: two functions called in turn, so that whatever else the machine does hits both alike."""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

SECONDS = float(os.environ.get("NUMSCORCH_BENCH_SECONDS", "0.6"))  # for a pair: half of it ours
FEWEST, MOST = 5, 400  # turns of a pair
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds a call took in each turn: ours and the peer's."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer: of the medians."""
        return statistics.median(self.theirs) / statistics.median(self.ours)

    @property
    def ratio_of_minima(self) -> float:
        """The same of the fastest calls, which other work on the machine disturbs least."""
        return min(self.theirs) / min(self.ours)


def in_turns(
    ours: Callable[[], object], theirs: Callable[[], object], *, seconds: float = SECONDS, most: int = MOST, calls: int = 1
) -> Pair:
    """Call both functions a b a b ..., and time each.

    Args:
        ours: the first function; what it returns is allocated in the timed call and freed after it.
        theirs: the second one, likewise.
        seconds: stop after so long, but not before a few turns.
        most: stop after so many turns.
        calls: so many calls make a turn, where one is too short for the clock.
    """
    for _ in range(WARM_UP):
        ours(), theirs()
    taken: tuple[list[float], list[float]] = [], []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        stop = time.perf_counter() + seconds
        while len(taken[0]) < most and (len(taken[0]) < FEWEST or time.perf_counter() < stop):
            taken[0].append(_timed(ours, calls))
            taken[1].append(_timed(theirs, calls))
    finally:
        if was_enabled:
            gc.enable()
    return Pair(tuple(taken[0]), tuple(taken[1]))


def _timed(function: Callable[[], object], calls: int) -> float:
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


def check(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Refuse to time two functions that don't compute the same."""
    scale = theirs.abs().max().item() if theirs.numel() else 0.0
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * scale)


def enter(benchmark: Any, times: Iterable[float]) -> None:
    """Enter seconds that were measured here as rounds of a pytest-benchmark, for its JSON."""
    benchmark.pedantic(lambda: None)  # its own ways to measure can't take turns
    if benchmark.stats is not None:  # --benchmark-disable
        benchmark.stats.stats.data.clear()
        for seconds in times:
            benchmark.stats.update(seconds)
