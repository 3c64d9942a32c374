"""Timed runs compared with the machine's roofs, and the roofline plot as SVG.

Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 2009.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any

import torch

SECONDS = 0.3  # time spent on the calls, in seconds
ROOF_SECONDS = 0.15  # time spent on each triad of the near roof, in seconds
FEWEST, MOST = 3, 1000  # number of calls
SMALLEST, LARGEST = 1 << 14, 1 << 28  # size of the near roof's triad, in bytes
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 360, 56, 16, 40  # the plot and its margins, in pixels
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
    """The data type of the multiply-adds that form the result's roof."""
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
    """The figures of a run as a table, and its roofline."""
    rates = run.bytes / run.seconds / 1e9, run.flops / run.seconds / 1e9
    rows = [
        ("time", f"{seconds_in_words(run.seconds)}, the fastest of {run.calls} calls, {run.on}"),
        ("compulsory bytes", f"{run.bytes:,}: {rates[0]:.3g} GB/s; a triad over as many bytes reaches {run.near / 1e9:.3g} GB/s"),
        ("operations", f"{run.flops:,}: {rates[1]:.3g} Gflop/s; multiply-adds in registers reach {run.peak / 1e9:.3g} Gflop/s"),
        ("operations per byte", f"{run.intensity:.3g}"),
        ("share of the roof", run.reached),
    ]
    table = "".join(f"<tr><th scope='row'>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f"<table class='run'>{table}</table>" + (f'<div class="scroll" tabindex="0">{roofline(run)}</div>' if run.flops else "")


def roofline(run: TimedRun) -> str:
    """The roofline plot: the roofs over the operations per byte, and the run as a point."""
    axes = _Axes.around(run)
    parts = axes.grid()
    for at, (rate, kind, name) in enumerate(
        ((run.near, "roof", "a triad over as many bytes"), (run.far, "roof far", "a triad from memory"))
    ):
        points = (axes.left, rate * axes.left), (run.peak / rate, run.peak), (axes.right, run.peak)
        parts.append(f'<polyline class="{kind}" points="{" ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)}"/>')
        y = float(HEIGHT - BOTTOM - 30 + 18 * at)
        parts += [
            f'<line class="{kind}" x1="{WIDTH - 290}" x2="{WIDTH - 250}" y1="{y - 4}" y2="{y - 4}"/>',
            _text(WIDTH - 242, y, f"{name}: {rate / 1e9:.3g} GB/s", "start"),
        ]
    x, y = axes.x(run.intensity), axes.y(run.flops / run.seconds)
    parts += [
        _text(WIDTH - 8, axes.y(run.peak) - 6, f"{run.dtype} multiply-adds: {run.peak / 1e9:.3g} Gflop/s", "end"),
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="7"/>',
        _text(x, y + 24, f"{run.flops / run.seconds / 1e9:.3g} Gflop/s", "middle", "told"),
    ]
    caption = escape(f"Roofline: {run}")
    return (
        f'<svg class="roofline" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{caption}">'
        f"<title>{caption}</title>{''.join(parts)}</svg>"
    )


@dataclass(frozen=True, slots=True)
class _Axes:
    """The plot's logarithmic axes: operations per byte, and operations per second."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def around(cls, run: TimedRun) -> _Axes:
        rate = run.flops / run.seconds
        knees = [run.peak / run.near, run.peak / run.far, run.intensity]
        left, right = min(knees) / 10, max(knees) * 4
        return cls(left, right, min(rate, min(run.near, run.far) * left) / 10**ROOM, run.peak * 10**ROOM)

    def x(self, intensity: float) -> float:
        return LEFT + (WIDTH - LEFT) * log10(intensity / self.left) / log10(self.right / self.left)

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * log10(rate / self.low) / log10(self.high / self.low)

    def grid(self) -> list[str]:
        """A labelled grid line for each power of ten."""
        parts = [
            _text((LEFT + WIDTH) / 2, HEIGHT - 4, "operations per byte", "middle", "axis"),
            _text(2, 12, "Gflop/s", "start", "axis"),
        ]
        for power in _powers(self.left, self.right):
            x = self.x(10.0**power)
            parts += [
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
                _text(x, HEIGHT - BOTTOM + 16, f"{10.0**power:g}", "middle", "axis"),
            ]
        for power in _powers(self.low, self.high):
            y = self.y(10.0**power)
            parts += [
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>',
                _text(LEFT - 6, y + 4, f"{10.0 ** (power - 9):g}", "end", "axis"),
            ]
        return parts


def _powers(low: float, high: float) -> range:
    return range(ceil(log10(low)), floor(log10(high)) + 1)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "note") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
