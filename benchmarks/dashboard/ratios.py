"""Ratios of times with confidence intervals, and their means and changes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WITHIN = 1.96  # standard errors from the centre to either end of a 95 % interval
CLEAR = 4.0  # standard errors from which a change is reported; errors of single cases exclude the variation between runs
NOTABLE = 0.03  # smallest change of the logarithm that is reported


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of a peer's time to numscorch's, or a change of such a ratio; ``error`` is the standard error of the logarithm."""

    value: float
    error: float = 0.0

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.value * math.exp(-WITHIN * self.error)

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval."""
        return self.value * math.exp(WITHIN * self.error)

    @property
    def is_clear(self) -> bool:
        """Whether the ratio differs significantly from 1.

        >>> Ratio(0.8, error=0.01).is_clear, Ratio(0.8, error=0.1).is_clear
        (True, False)
        """
        away = abs(math.log(self.value))
        return away > CLEAR * self.error and away > NOTABLE

    def over(self, before: Ratio) -> Ratio:
        """Change relative to an earlier ratio.

        >>> Ratio(3.0).over(Ratio(2.0)).value
        1.5
        """
        return Ratio(self.value / before.value, math.hypot(self.error, before.error))


def ratio_of(record: Mapping[str, Any]) -> Ratio | None:
    """Ratio of a record, or of a peer in a record; None if it is missing or invalid."""
    value, low, high = (float(record.get(name) or 0) for name in ("ratio", "low", "high"))
    if not 0 < value < math.inf:
        return None
    error = math.log(high / low) / (2 * WITHIN) if 0 < low < high < math.inf else 0.0
    return Ratio(value, error)


def mean(ratios: Sequence[Ratio]) -> Ratio:
    """The geometric mean.

    >>> mean([Ratio(2.0), Ratio(0.5)]).value
    1.0
    """
    logarithm = statistics.fmean(math.log(ratio.value) for ratio in ratios)
    return Ratio(math.exp(logarithm), math.hypot(*(ratio.error for ratio in ratios)) / len(ratios))


def mean_change(changes: Sequence[Ratio]) -> Ratio:
    """Geometric mean of changes. The error includes the spread of the changes, since a whole run may be disturbed."""
    average = mean(changes)
    if len(changes) == 1:
        return average
    spread = statistics.stdev(math.log(change.value) for change in changes) / math.sqrt(len(changes))
    return Ratio(average.value, max(average.error, spread))
