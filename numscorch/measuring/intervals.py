"""Bootstrap confidence intervals of ratios of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLED = 400  # bootstrap samples; ten of them lie beyond each end of a 95 % interval
CONFIDENCE = 0.95


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
