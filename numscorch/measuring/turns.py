"""Timing of functions in turns, so that disturbances of the machine affect all of them alike, and ratios of the times.

Each turn calls the functions in a new random order, because a function's time depends on the cache contents that its predecessor leaves.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from timeit import timeit

import numpy as np

from ..machine.guards import paused
from ..runtime.confirming import steady

SECONDS = float(os.environ.get("NUMSCORCH_BENCH_SECONDS", "0.2"))  # total time of one comparison
FEWEST, MOST = 5, 400  # number of turns
LONGEST = 10  # time limit of the first FEWEST turns, as a multiple of the total time
WARM_UP = 3  # calls
DISTURBED = 2.0  # ratio of the median to the fastest call that indicates a busy machine
OURS = "numscorch"
RESAMPLED = 400  # bootstrap samples; ten of them lie beyond each end of a 95 % interval
CONFIDENCE = 0.95
PATIENCE = 3.0  # peers slower than the best one by this factor get no turns after the warm-up

Function = Callable[[], object]
Times = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Turns:
    """The seconds of a call in each turn: of our function, of its peers, and of other reported functions."""

    ours: Times
    peers: Mapping[str, Times]
    beside: Mapping[str, Times]

    @property
    def best(self) -> str:
        return min(self.peers, key=lambda peer: statistics.median(self.peers[peer]))

    @property
    def disturbance(self) -> float:
        """The ratio of our median time to our fastest time: about 1 on an idle machine."""
        return statistics.median(self.ours) / min(self.ours)

    @property
    def ratio(self) -> float:
        """Our speedup over the best peer, by medians."""
        return statistics.median(self.peers[self.best]) / statistics.median(self.ours)


@steady()
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
    """Call all functions once per turn, each turn in a new random order, and time each call.

    Args:
        ours: our function. The time includes the allocation of its result, but not the deallocation.
        peers: the peers' functions by name; may be empty.
        beside: other functions to report, which do not count as peers.
        seconds: the total time; at least a few turns are made.
        calls: the number of calls per turn, for calls that are too short for the clock.
        rest: the pause before each call, in seconds, while another library's idle threads stop spinning.
        patience: peers slower than the best one by this factor get no turns; their warm-up times are returned.
    """
    competitors = {OURS: ours, **peers, **(beside or {})}
    seconds_of = {name: _warm_up(function, calls, seconds) for name, function in competitors.items()}
    limit = patience * min((min(seconds_of[peer]) for peer in peers), default=math.inf)
    racing = [name for name in competitors if name == OURS or min(seconds_of[name]) <= limit]
    seconds_of |= {name: [] for name in racing}
    order = Random(0)
    with paused():
        start = time.perf_counter()
        while not _is_done(len(seconds_of[OURS]), (time.perf_counter() - start) / seconds):
            for name in order.sample(racing, len(racing)):
                seconds_of[name].append(_time_call(competitors[name], calls, rest))
    turns = {name: tuple(times) for name, times in seconds_of.items()}
    return Turns(turns[OURS], {name: turns[name] for name in peers}, {name: turns[name] for name in beside or {}})


def _is_done(turns: int, share: float) -> bool:
    """Whether to stop after this many turns, which took this share of the total time."""
    return turns >= MOST or share >= LONGEST or (turns >= FEWEST and share >= 1)


def _warm_up(function: Function, calls: int, seconds: float) -> list[float]:
    """The times of the first calls: three at most, or until ``seconds`` have passed."""
    times: list[float] = []
    while len(times) < WARM_UP and sum(times) < seconds:
        times.append(_time_call(function, calls, 0.0))
    return times


def _time_call(function: Function, calls: int, rest: float) -> float:
    if rest:
        time.sleep(rest)
    if calls > 1:
        return timeit(function, number=calls) / calls
    start = time.perf_counter()
    result = function()
    stop = time.perf_counter()
    del result
    return stop - start


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with the bounds of its confidence interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}]"


def ratio_of_medians(peer_times: Sequence[float], own_times: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """The ratio of a peer's median time to our median time, with a bootstrap percentile interval.

    Turns are resampled in pairs if both sides have the same number of turns, because a disturbance slows both sides of a turn. The draws
    are seeded, so the same times give the same interval.

    Args:
        peer_times: seconds of the peer's calls, in the order of the turns.
        own_times: seconds of our calls, in the order of the turns.
        confidence: the confidence level.
        seed: the seed of the draws.

    Raises:
        ValueError: there are no times.

    Source:
        Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.

    >>> print(ratio_of_medians([2.0, 2.0, 2.2], [1.0, 1.0, 1.1]))
    2.00x [2.00, 2.00]
    """
    if not len(peer_times) or not len(own_times):
        raise ValueError(f"a ratio needs times of both sides, but there are {len(peer_times)} and {len(own_times)}")
    generator = np.random.default_rng(seed)
    samples = generator.integers(len(own_times), size=(RESAMPLED, len(own_times)))
    peer_samples = samples if len(peer_times) == len(own_times) else generator.integers(len(peer_times), size=(RESAMPLED, len(peer_times)))
    ratios = np.median(np.asarray(peer_times)[peer_samples], axis=1) / np.median(np.asarray(own_times)[samples], axis=1)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(np.median(peer_times) / np.median(own_times)), float(low), float(high))
