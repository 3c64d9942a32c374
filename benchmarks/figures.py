"""Figures of a comparison: a peer's times against ours, and rounds of pytest-benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from numscorch.measuring.turns import Times, ratio_of_medians


def against(ours: Times, peer_times: Times) -> dict[str, float]:
    """A peer's median time and its ratios to ours: by medians with an interval, and by the fastest (least disturbed) calls."""
    interval = ratio_of_medians(peer_times, ours)
    return {
        "seconds": statistics.median(peer_times),
        "ratio": interval.ratio,
        "low": interval.low,
        "high": interval.high,
        "ratio_of_minima": min(peer_times) / min(ours),
        "turns": len(peer_times),
    }


def record_rounds(benchmark: Any, times: Iterable[float]) -> None:
    """Enter measured seconds as rounds of a pytest-benchmark fixture, so that they appear in its JSON."""
    benchmark.pedantic(lambda: None)  # pytest-benchmark can't time functions in turns
    if benchmark.stats is not None:  # --benchmark-disable
        benchmark.stats.stats.data.clear()
        for seconds in times:
            benchmark.stats.update(seconds)
