"""Whether head is slower than base: several runs of both commits, compared by ratios to a peer of the same run.

Quantity. A run reports for each case our speedup over a peer. A *loss* is the speedup of head over that of base: 0.85 means 15 % slower.
Both sides use the peer that was best in base. A disturbance of the machine slows numscorch and the peer alike, and cancels in the ratio.

Noise. The interval that a run reports with a ratio covers the variation between turns. It misses the variation between processes (memory
layout, load of neighbouring cores), which dominates: runs of one commit differ by two to ten times their intervals, and some runs are off
by half. The statistical unit is therefore the run. A comparison takes several alternating runs of each side (A B A B) and averages the
logarithms of the ratios over the runs of a side. The noise is estimated from the differences between runs of one side.

Few runs. The variance of a few runs is unreliable: three runs of each side that happen to agree would make any difference significant.
The variance of a case is therefore averaged with the variance of the typical case, weighted as ``PRIOR`` degrees of freedom. Intervals
use Student's t with the total degrees of freedom (Smyth 2004, the moderated t).

Many cases. Intervals are corrected for multiple testing (Bonferroni): the probability that any interval of a comparison lies below 1 by
chance is at most ``ALARMS``. The intervals of single cases are therefore wide, about 20 %. A compiler pass that became slower affects a
family: all cases of a kernel with one thread count. The mean over a family has little noise and there are few families, so a loss of 15 %
is detected. Families and cases get half of ``ALARMS`` each. The mean of a family weights cases by their noise and limits each case to a
factor of e^0.5 in either direction, so that a single outlier cannot cause a loss of the family.

Regressions. A loss is a regression if its interval lies entirely below the bar of 0.95. Smaller losses do not justify an alarm, and the
margin covers effects outside the noise model, such as cases that run at one of two speeds in each process.

History. Runs of the history were made at another time, when the machine may have been faster or slower, which shifts all ratios; ``level``
subtracts the median change and reports it. The noise of a single run of head cannot be estimated: a disturbance of some seconds affects
a whole family, whose cases run one after another. A single run therefore raises only suspicion (``is_sure``), and only for families with
``FEWEST`` or more cases. Single cases need three runs of each side (``ALONE``), because two runs too often have the same outlier.

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

from numscorch.measuring.turns import Interval

from .records import Record, Run, case_of

BAR = 0.95
ALARMS = 0.003  # probability of a false alarm per comparison, if the bar were 1
PRIOR = 4.0  # degrees of freedom of the typical case's variance
MOST = 0.5  # limit of the log ratio of a case in the mean of its family
FEWEST = 4  # smallest family that is judged by a single run
ALONE = 3  # runs of each side that single cases need
LEAST = 1e-3  # smallest standard deviation of a log ratio, limited by the clock

Name = tuple[str, int, str]  # kernel, threads, case
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Loss:
    """The ratio of head over the ratio of base, for a case or a family."""

    kernel: str
    threads: int
    case: str | None
    peer: str | None
    factor: Interval
    cases: int

    @property
    def title(self) -> str:
        """The kernel with the case and its peer, or with the size of the family."""
        if self.case:
            return f"{self.kernel}: {self.case}, against {self.peer}"
        return f"{self.kernel}, {self.threads} thread{'s' if self.threads > 1 else ''}, {self.cases} cases"

    def __str__(self) -> str:
        how = "slower" if self.factor.ratio < 1 else "faster"
        low, high = sorted(abs(1 - edge) for edge in (self.factor.low, self.factor.high))
        return f"{self.title}: {abs(1 - self.factor.ratio):.0%} {how} [{low:.0%}, {high:.0%}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Changes of cases and families, slowest first.

    Args:
        families: mean change of each kernel with each thread count.
        cases: change of each case, if both sides have at least ``ALONE`` runs.
        level: median change that was removed from all ratios, as a factor.
        lacking: cases that are missing in some runs.
        bar: upper bound of a regression's interval.
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
        """Improvements: changes with an interval entirely above 1 / bar."""
        return tuple(loss for loss in (*self.families, *self.cases) if loss.factor.low > 1 / self.bar)


def compare(base: Sequence[Run], head: Sequence[Run], *, level: bool = False, bar: float = BAR) -> Comparison:
    """Compare runs of two commits.

    Args:
        base: runs of the old commit.
        head: runs of the new commit.
        level: remove the median change, which is due to the machine if the runs of both sides did not alternate.
        bar: upper bound of a regression's interval.

    Raises:
        ValueError: the noise cannot be estimated, because a side has no run or there are fewer than three runs in total.
    """
    if not base or not head or len(base) + len(head) < 3:
        raise ValueError(f"noise shows between runs of one side: of base there are {len(base)}, of head {len(head)}")
    names, peers, logs, lacking = _table([ratios_of(run) for run in base], [ratios_of(run) for run in head])
    is_sure = min(len(base), len(head)) > 1
    if not names:
        return Comparison((), (), 1.0, lacking, bar, is_sure)
    sides, shift = Sides(len(base), len(head)), 0.0
    if level:
        shift = float(np.median(sides.change(logs)))
        logs = logs - sides.is_head * shift
    spread = sides.spread(logs)
    cases = _cases(names, peers, sides, logs, spread) if min(len(base), len(head)) >= ALONE else []
    families = _families(names, sides, logs, spread)
    return Comparison(_by_loss(families), _by_loss(cases), math.exp(shift), lacking, bar, is_sure)


def _by_loss(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    return tuple(sorted(losses, key=lambda loss: loss.factor.ratio))


@dataclass(frozen=True, slots=True)
class Sides:
    """Numbers of columns in a table of logarithms: runs of base, followed by runs of head."""

    base: int
    head: int

    @property
    def is_head(self) -> Array:
        """1 for runs of head."""
        return np.repeat([0.0, 1.0], [self.base, self.head])

    def change(self, logs: Array) -> Array:
        """Mean of head minus mean of base, for each row."""
        return np.asarray(logs[:, self.base :].mean(1) - logs[:, : self.base].mean(1))

    def spread(self, logs: Array) -> Array:
        """Moderated standard deviation between runs of one side, for each row."""
        variance = ((logs - self._means(logs)) ** 2).sum(1) / self.freedom
        typical = np.median(variance) * self.freedom / chi2.median(self.freedom)
        return np.asarray(np.sqrt(np.maximum((PRIOR * typical + self.freedom * variance) / (PRIOR + self.freedom), LEAST**2)))

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the variance of a row."""
        return self.base + self.head - 2

    def interval(self, change: float, spread: float, alarms: float) -> Interval:
        """Confidence interval of a change as a factor, with error probability ``alarms`` on each side."""
        margin = float(t.isf(alarms, PRIOR + self.freedom)) * spread * math.sqrt(1 / self.base + 1 / self.head)
        return Interval(math.exp(change), math.exp(change - margin), math.exp(change + margin))

    def _means(self, logs: Array) -> Array:
        base, head = logs[:, : self.base].mean(1), logs[:, self.base :].mean(1)
        return np.stack([base] * self.base + [head] * self.head, axis=1)


def ratios_of(run: Run) -> dict[Name, dict[str, float]]:
    """The logarithm of the ratio to each peer, for each case with peers."""
    cases = ((r["kernel"], r["threads"], case_of(r), _ratios(r)) for r in run.records if r.get("peers"))
    return {(kernel, threads, case): ratios for kernel, threads, case, ratios in cases if ratios}


def _ratios(record: Record) -> dict[str, float]:
    ratios = {name: peer["ratio"] for name, peer in record["peers"].items()}
    return {name: math.log(ratio) for name, ratio in ratios.items() if 0 < ratio < math.inf}


def _table(
    base: Sequence[dict[Name, dict[str, float]]], head: Sequence[dict[Name, dict[str, float]]]
) -> tuple[list[Name], list[str], Array, tuple[str, ...]]:
    """Cases of all runs with their peers and rows of logarithms, and the cases that are missing in some runs."""
    runs = [*base, *head]
    shared_names = set[Name].intersection(*map(set, runs))
    names, peers, rows = [], [], []
    for name in sorted(shared_names):
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
    """Mean of each family in each run, with the noise estimated from the differences between runs."""
    groups = [(key, list(members)) for key, members in groupby(range(len(names)), key=lambda at: names[at][:2])]
    least = 1 if min(sides.base, sides.head) > 1 else FEWEST
    groups = [(key, members) for key, members in groups if len(members) >= least]
    if not groups:
        return []
    deviations = logs - np.median(logs[:, : sides.base], axis=1, keepdims=True)
    means = np.stack([_mean(deviations[members], spread[members]) for _, members in groups])
    noise, share = sides.spread(means), ALARMS / 2 / len(groups)
    return [
        Loss(key[0], key[1], None, None, sides.interval(float(change), float(deviation), share), len(members))
        for (key, members), change, deviation in zip(groups, sides.change(means), noise, strict=True)
    ]


def _mean(deviations: Array, spread: Array) -> Array:
    """Weighted mean over cases in each run; no case has more than twice the weight of a case with median noise."""
    weights = 1 / (spread**2 + np.median(spread) ** 2)
    return np.asarray(weights @ np.clip(deviations, -MOST, MOST) / weights.sum())


def growth(base: Iterable[Run], head: Iterable[Run], quantity: str) -> dict[str, float]:
    """Median growth factor of a quantity (``compile_seconds``, ``peak_bytes``) over the cases of each kernel."""
    before, now = (_medians(runs, quantity) for runs in (base, head))
    kernels: dict[str, list[float]] = {}
    for name in before.keys() & now.keys():
        kernels.setdefault(name[0], []).append(now[name] / before[name])
    return {kernel: float(np.median(factors)) for kernel, factors in sorted(kernels.items())}


def _medians(runs: Iterable[Run], quantity: str) -> dict[Name, float]:
    samples: dict[Name, list[float]] = {}
    for record in (record for run in runs for record in run.records if record.get("peers") and (record.get(quantity) or 0) > 0):
        samples.setdefault((record["kernel"], record["threads"], case_of(record)), []).append(float(record[quantity]))
    return {name: float(np.median(values)) for name, values in samples.items()}
