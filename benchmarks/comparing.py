"""Whether head is slower than base: runs of both, compared by ratios to a peer of the same run.

What is compared. A run says for each case how many times as fast as a peer we are. A *loss* is head's ratio over
base's: 0.85 is 15 % slower. The peer is the one that was best in base, on both sides. Whatever slows a run slows both.

Where noise comes from. The interval that a run gives with a ratio holds what differs from turn to turn. What differs
from process to process (where arrays lie, what the neighbours of a core do) it can't hold, and that is most of it: runs
of one commit lie two to ten times as far apart as their intervals say, and now and then one is off by half. So the unit
is the run, and a comparison takes several of each side, which took turns (A B A B): logarithms of ratios are averaged
over the runs of a side, and what runs of one side differ by is the noise.

Few runs know little of their noise. Three of each side that happen to agree would make any difference a sure one. A
case's variance is therefore a mean of its own and of that of the typical case, which weighs as much as ``PRIOR``
degrees of freedom, and intervals are Student's with the degrees of both (Smyth 2004, the moderated t).

Many cases. An interval is wide enough that of all the cases of a comparison together none lies below 1 by chance but
with probability ``ALARMS`` (Bonferroni). That makes intervals of single cases wide: 20 % or so. A pass that
got slower hits a family of cases, all that a kernel has with a thread count: the mean over them has little noise, there
are few families, and 15 % stand out. Half of ``ALARMS`` goes to the families, half to the cases. In the mean of a family
a case weighs the more the less noise it has, and counts for at most a factor of e^0.5 either way, so that one run of one
case that went wrong is no family's loss.

A loss is called a regression where its interval lies wholly below the bar, 0.95: what is smaller isn't worth an alarm,
and the margin covers what no model of noise has, such as cases that are at one of two speeds in each process.

Against the history. Those runs were made at another time, perhaps in another mood of the machine, which moves all
ratios; ``level`` takes the median change off, and tells it. One run of head has no noise of its own: what disturbs some
seconds of it hits a family whole, whose cases follow one another. It can only raise suspicion (``is_sure``), of families
of enough cases (``FEWEST``). Single cases take three runs of each side (``ALONE``): two go wrong alike too often.

Source:
    Smyth, Linear models and empirical Bayes methods for assessing differential expression, 2004, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, t

from numscorch.measuring.intervals import Interval

from .records import Record, Run, case_of

BAR = 0.95
ALARMS = 0.003  # probability of an alarm in a comparison of equals, if the bar were 1
PRIOR = 4.0  # degrees of freedom that the typical case's variance counts for
MOST = 0.5  # logarithm that a case counts for in its family
FEWEST = 4  # cases of a family that one run can judge
ALONE = 3  # runs of each side that can judge a case
LEAST = 1e-3  # standard deviation of the logarithm of a ratio, which no clock beats

Name = tuple[str, int, str]  # kernel, threads, case
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Loss:
    """Head's ratio over base's, of a case or of a family."""

    kernel: str
    threads: int
    case: str | None
    peer: str | None
    factor: Interval
    cases: int

    @property
    def title(self) -> str:
        """The kernel, and the case."""
        if self.case:
            return f"{self.kernel}: {self.case}, against {self.peer}"
        return f"{self.kernel}, {self.threads} thread{'s' if self.threads > 1 else ''}, {self.cases} cases"

    def __str__(self) -> str:
        how = "slower" if self.factor.ratio < 1 else "faster"
        low, high = sorted(abs(1 - edge) for edge in (self.factor.low, self.factor.high))
        return f"{self.title}: {abs(1 - self.factor.ratio):.0%} {how} [{low:.0%}, {high:.0%}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of cases and families, the slowest first.

    Args:
        families: the mean change of each kernel with each thread count.
        cases: that of each case, where both sides have several runs.
        level: the change that was taken off all.
        lacking: cases that only some of the runs have.
        bar: what a regression lies below.
        is_sure: whether each side has several runs.
    """

    families: tuple[Loss, ...]
    cases: tuple[Loss, ...]
    level: float
    lacking: tuple[str, ...]
    bar: float
    is_sure: bool = True

    @property
    def slower(self) -> tuple[Loss, ...]:
        """Regressions, families first."""
        return tuple(loss for loss in (*self.families, *self.cases) if loss.factor.high < self.bar)

    @property
    def faster(self) -> tuple[Loss, ...]:
        """The opposite: intervals that lie wholly above one over the bar."""
        return tuple(loss for loss in (*self.families, *self.cases) if loss.factor.low > 1 / self.bar)


def compare(base: Sequence[Run], head: Sequence[Run], *, level: bool = False, bar: float = BAR) -> Comparison:
    """Compare runs of two commits.

    Args:
        base: runs of what was.
        head: runs of what is.
        level: whether the median change is the machine's, as where runs weren't made side by side.
        bar: what a regression's interval lies below.

    Raises:
        ValueError: fewer than three runs, or no run of one side: nothing says how large the noise is.
    """
    if not base or not head or len(base) + len(head) < 3:
        raise ValueError(f"noise shows between runs of one side: of base there are {len(base)}, of head {len(head)}")
    names, peers, logs, lacking = _table([ratios_of(run) for run in base], [ratios_of(run) for run in head])
    is_sure = min(len(base), len(head)) > 1
    if not names:
        return Comparison((), (), 1.0, lacking, bar, is_sure)
    sides, taken = Sides(len(base), len(head)), 0.0
    if level:
        taken = float(np.median(sides.change(logs)))
        logs = logs - sides.is_head * taken
    spread = sides.spread(logs)
    cases = _cases(names, peers, sides, logs, spread) if min(len(base), len(head)) >= ALONE else []
    families = _families(names, sides, logs, spread)
    return Comparison(_by_loss(families), _by_loss(cases), math.exp(taken), lacking, bar, is_sure)


def _by_loss(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    return tuple(sorted(losses, key=lambda loss: loss.factor.ratio))


@dataclass(frozen=True, slots=True)
class Sides:
    """Columns of a table of logarithms: so many runs of base, then so many of head."""

    base: int
    head: int

    @property
    def is_head(self) -> Array:
        """1 for runs of head."""
        return np.repeat([0.0, 1.0], [self.base, self.head])

    def change(self, logs: Array) -> Array:
        """Mean of head less that of base, for each row."""
        return np.asarray(logs[:, self.base :].mean(1) - logs[:, : self.base].mean(1))

    def spread(self, logs: Array) -> Array:
        """Moderated standard deviation between runs of one side, for each row."""
        own = ((logs - self._means(logs)) ** 2).sum(1) / self.freedom
        typical = np.median(own) * self.freedom / chi2.median(self.freedom)
        return np.asarray(np.sqrt(np.maximum((PRIOR * typical + self.freedom * own) / (PRIOR + self.freedom), LEAST**2)))

    @property
    def freedom(self) -> int:
        """Degrees of freedom that a row's own variance has."""
        return self.base + self.head - 2

    def interval(self, change: float, spread: float, alarms: float) -> Interval:
        """The change as a factor; it lies below the interval with probability ``alarms``, and above as well."""
        within = float(t.isf(alarms, PRIOR + self.freedom)) * spread * math.sqrt(1 / self.base + 1 / self.head)
        return Interval(math.exp(change), math.exp(change - within), math.exp(change + within))

    def _means(self, logs: Array) -> Array:
        base, head = logs[:, : self.base].mean(1), logs[:, self.base :].mean(1)
        return np.stack([base] * self.base + [head] * self.head, axis=1)


def ratios_of(run: Run) -> dict[Name, dict[str, float]]:
    """For each case that has peers, the logarithm of the ratio to each."""
    cases = ((r["kernel"], r["threads"], case_of(r), _ratios(r)) for r in run.records if r.get("peers"))
    return {(kernel, threads, case): ratios for kernel, threads, case, ratios in cases if ratios}


def _ratios(record: Record) -> dict[str, float]:
    found = {name: peer["ratio"] for name, peer in record["peers"].items()}
    return {name: math.log(ratio) for name, ratio in found.items() if 0 < ratio < math.inf}


def _table(
    base: Sequence[dict[Name, dict[str, float]]], head: Sequence[dict[Name, dict[str, float]]]
) -> tuple[list[Name], list[str], Array, tuple[str, ...]]:
    """Cases and peers that all runs have, a row of logarithms for each, and the cases that only some have."""
    runs = [*base, *head]
    everywhere = set[Name].intersection(*map(set, runs))
    names, peers, rows = [], [], []
    for name in sorted(everywhere):
        common = set[str].intersection(*(set(run[name]) for run in runs))
        if common:
            peer = min(sorted(common), key=lambda one: float(np.median([run[name][one] for run in base])))
            names.append(name)
            peers.append(peer)
            rows.append([run[name][peer] for run in runs])
    lacking = sorted(f"{kernel}: {case}" for kernel, _, case in set[Name].union(*map(set, runs)) - set(names))
    return names, peers, np.array(rows, dtype=np.float64), tuple(lacking)


def _cases(names: Sequence[Name], peers: Sequence[str], sides: Sides, logs: Array, spread: Array) -> list[Loss]:
    changes, share = sides.change(logs), ALARMS / 2 / len(names)
    return [
        Loss(kernel, threads, case, peer, sides.interval(float(change), float(noise), share), 1)
        for (kernel, threads, case), peer, change, noise in zip(names, peers, changes, spread, strict=True)
    ]


def _families(names: Sequence[Name], sides: Sides, logs: Array, spread: Array) -> list[Loss]:
    """Means over the cases of a family in each run, of which the noise shows between runs as a case's does."""
    groups = [(key, list(members)) for key, members in groupby(range(len(names)), key=lambda at: names[at][:2])]
    least = 1 if min(sides.base, sides.head) > 1 else FEWEST
    groups = [(key, members) for key, members in groups if len(members) >= least]
    if not groups:
        return []
    off = logs - np.median(logs[:, : sides.base], axis=1, keepdims=True)
    means = np.stack([_mean(off[members], spread[members]) for _, members in groups])
    noise, share = sides.spread(means), ALARMS / 2 / len(groups)
    return [
        Loss(key[0], key[1], None, None, sides.interval(float(change), float(own), share), len(members))
        for (key, members), change, own in zip(groups, sides.change(means), noise, strict=True)
    ]


def _mean(off: Array, spread: Array) -> Array:
    """Over cases, in each run; none weighs more than twice as much as the one of typical noise."""
    weights = 1 / (spread**2 + np.median(spread) ** 2)
    return np.asarray(weights @ np.clip(off, -MOST, MOST) / weights.sum())


def growth(base: Iterable[Run], head: Iterable[Run], measured: str) -> dict[str, float]:
    """For each kernel, how many times as much of a quantity (``compile_seconds``, ``peak_bytes``) its median case takes."""
    before, now = (_medians(runs, measured) for runs in (base, head))
    kernels: dict[str, list[float]] = {}
    for name in before.keys() & now.keys():
        kernels.setdefault(name[0], []).append(now[name] / before[name])
    return {kernel: float(np.median(factors)) for kernel, factors in sorted(kernels.items())}


def _medians(runs: Iterable[Run], measured: str) -> dict[Name, float]:
    found: dict[Name, list[float]] = {}
    for record in (record for run in runs for record in run.records if record.get("peers") and (record.get(measured) or 0) > 0):
        found.setdefault((record["kernel"], record["threads"], case_of(record)), []).append(float(record[measured]))
    return {name: float(np.median(values)) for name, values in found.items()}
