"""Timed runs compared with the machine's roofs, and the roofline plot as SVG.

Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 2009.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

import torch

from .templates import rendered

SECONDS = 0.3  # time spent on the calls, in seconds
ROOF_SECONDS = 0.15  # time spent on each triad of the near roof, in seconds
FEWEST, MOST = 3, 1000  # number of calls
SMALLEST, LARGEST = 1 << 14, 1 << 28  # size of the near roof's triad, in bytes
WIDTH, HEIGHT = 640, 360  # of the picture, in pixels
LEFT, TOP, BOTTOM = 56, 16, 320  # sides of the plot, whose right side is that of the picture
ROOM = 0.3  # vertical margin of the plotted range, in decades
MOST_SHARE = 1.1  # largest plausible share of a roof
WHY_ABOVE = "the machine is busy, or the request reads only a part of an operand"


@dataclass(frozen=True, slots=True)
class TimedRun:
    """The fastest of several calls, its minimum work, and the machine's roofs in bytes and operations per second.

    ``near`` is the bandwidth of a triad over the request's number of bytes, which may fit in a cache. ``far`` is the bandwidth of a triad
    from memory. ``peak`` is the rate of multiply-adds in registers. The roof is the lower of ``peak`` and ``near`` times the arithmetic
    intensity.

    ``bytes`` counts every array once and completely. The share of the roof exceeds 1, and is meaningless, if the request reads only a
    few rows of a large operand, or if other programs slowed down the triad.
    """

    seconds: float
    calls: int
    flops: int
    bytes: int
    near: float
    far: float
    peak: float
    threads: int
    dtype: str

    @property
    def intensity(self) -> float:
        """The arithmetic intensity, in operations per byte."""
        return self.flops / max(self.bytes, 1)

    def __str__(self) -> str:
        rates = f"{self.bytes / self.seconds / 1e9:.3g} GB/s, {self.flops / self.seconds / 1e9:.3g} Gflop/s"
        return f"{seconds_in_words(self.seconds)}, {rates}, {self.reached}, {self.on}"

    @property
    def roof(self) -> str:
        """The roof that bounds the run, with its rate."""
        if self.flops and self.peak < self.near * self.intensity:
            return f"{self.peak / 1e9:.3g} Gflop/s of multiply-adds in registers"
        return f"{self.near / 1e9:.3g} GB/s of a triad over as many bytes"

    @property
    def reached(self) -> str:
        """The share of the roof in words; if the share isn't plausible, the possible reasons."""
        if self.share <= MOST_SHARE:
            return f"{percent(min(self.share, 1.0))} of its roof ({self.roof})"
        return f"faster than its roof ({self.roof}), so no share is given: {WHY_ABOVE}"

    @property
    def on(self) -> str:
        """The number of threads, in words."""
        return f"{self.threads} thread{'' if self.threads == 1 else 's'}"

    @property
    def share(self) -> float:
        """The achieved share of the roof: of the operations, or of the bytes if the request has no operations."""
        if not self.flops:
            return self.bytes / self.seconds / self.near
        return self.flops / self.seconds / min(self.peak, self.near * self.intensity)


def timed_run(call: Callable[[], Any], work: Callable[[Any], Any]) -> TimedRun:
    """Time a call, and measure the roofs right after it.

    Args:
        call: the function to time. The first calls warm up and may compile; the fastest of the following ones counts.
        work: maps a call's result to an object with ``flops`` and ``bytes`` (see :func:`~numscorch.explanation.work.work_of`).
    """
    from .roofs import rates, triad  # deferred: it imports Numba

    result = call()
    amount, dtype = work(result), _dtype(result)
    seconds, calls = _fastest(call, SECONDS)
    threads = torch.get_num_threads()
    far, size = rates(threads), min(max(amount.bytes, SMALLEST), LARGEST)
    roofs = [triad(size, workers) for workers in {1, threads}]  # for a small triad, starting threads may take longer than the triad
    near = max(roof.amount / _fastest(roof.run, ROOF_SECONDS)[0] for roof in roofs)
    peak = far.flops_per_second / (2 if dtype == "float64" else 1)  # a register holds half as many float64
    return TimedRun(seconds, calls, amount.flops, amount.bytes, near, far.bytes_per_second, peak, threads, dtype)


def _dtype(result: Any) -> str:
    """The data type of the multiply-adds whose peak rate is the roof."""
    tensor = result[0] if isinstance(result, tuple) else result
    return "float64" if tensor.dtype in (torch.float64, torch.complex128) else "float32"


def _fastest(call: Callable[[], Any], seconds: float) -> tuple[float, int]:
    """The seconds of the fastest call, and the number of timed calls; one untimed call precedes them."""
    call()
    best, calls, start = float("inf"), 0, time.perf_counter()
    while calls < FEWEST or (calls < MOST and time.perf_counter() - start < seconds):
        before = time.perf_counter()
        call()
        best, calls = min(best, time.perf_counter() - before), calls + 1
    return best, calls


def percent(share: float) -> str:
    """A share formatted as a percentage.

    >>> percent(0.0123), percent(0.9999)
    ('1.2 %', '100 %')
    """
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"


def seconds_in_words(seconds: float) -> str:
    """Format a time in the largest unit that does not exceed it.

    >>> seconds_in_words(12.0), seconds_in_words(0.001234)
    ('12 s', '1.23 ms')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def report(run: TimedRun) -> str:
    """The figures of a run as a table and, if it has operations, its roofline plot."""
    axes = Axes.around(run) if run.flops else None
    sides = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "top": TOP, "bottom": BOTTOM}
    return rendered("roofline.html", run=run, axes=axes, powers=powers, seconds_in_words=seconds_in_words, **sides)


@dataclass(frozen=True, slots=True)
class Axes:
    """The plot's logarithmic axes: operations per byte, and operations per second."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def around(cls, run: TimedRun) -> Axes:
        rate = run.flops / run.seconds
        knees = [run.peak / run.near, run.peak / run.far, run.intensity]
        left, right = min(knees) / 10, max(knees) * 4
        return cls(left, right, min(rate, min(run.near, run.far) * left) / 10**ROOM, run.peak * 10**ROOM)

    def x(self, intensity: float) -> float:
        return LEFT + (WIDTH - LEFT) * log10(intensity / self.left) / log10(self.right / self.left)

    def y(self, rate: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * log10(rate / self.low) / log10(self.high / self.low)


def powers(low: float, high: float) -> list[float]:
    """The powers of ten between two numbers."""
    return [10.0**power for power in range(ceil(log10(low)), floor(log10(high)) + 1)]
