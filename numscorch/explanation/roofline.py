"""A run against what the machine can do at most: timed, and drawn as a roofline, SVG on logarithmic axes.

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

SECONDS = 0.3  # for the calls,
ROOF_SECONDS = 0.15  # and for the roof of as many bytes
FEWEST, MOST = 3, 1000
SMALLEST, LARGEST = 1 << 14, 1 << 28  # bytes of its triad
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 360, 56, 16, 40
ROOM = 0.3  # of a decade around what is drawn
MOST_SHARE = 1.1  # of a roof; what is above is no measurement of the kernel
WHY_ABOVE = "the machine is busy, or the request reads only a part of an operand"


@dataclass(frozen=True, slots=True)
class TimedRun:
    """The fastest of some calls, the work that they do at least, and the machine's roofs: bytes and operations a second.

    ``near`` is the rate of a triad over as many bytes as the request moves, which may stay in a cache; ``far`` of one from memory.

    The roof is the lower of ``near``, times the operations for each byte, and ``peak``, the rate of multiply-adds in registers. ``bytes``
    count every array once and whole: a request that reads a few rows of a large operand, or the triad of a moment in which other programs
    run, gives a share above 1, which says nothing of the kernel.
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
        """Operations for each byte."""
        return self.flops / max(self.bytes, 1)

    @property
    def bound(self) -> float:
        """The operations a second that the roofs allow at this intensity, from where the operands are."""
        return min(self.peak, self.near * self.intensity)

    def __str__(self) -> str:
        rates = f"{self.bytes / self.seconds / 1e9:.3g} GB/s, {self.flops / self.seconds / 1e9:.3g} Gflop/s"
        return f"{_time(self.seconds)}, {rates}, {self.reached}, {self.on}"

    @property
    def roof(self) -> str:
        """Which roof bounds the run, with its rate."""
        if self.flops and self.peak < self.near * self.intensity:
            return f"{self.peak / 1e9:.3g} Gflop/s of multiply-adds in registers"
        return f"{self.near / 1e9:.3g} GB/s of a triad over as many bytes"

    @property
    def reached(self) -> str:
        """The share of the roof; where it can't be one, the reasons."""
        if self.share <= MOST_SHARE:
            return f"{percent(min(self.share, 1.0))} of its roof ({self.roof})"
        return f"faster than its roof ({self.roof}), so no share is given: {WHY_ABOVE}"

    @property
    def on(self) -> str:
        """How many threads it ran on."""
        return f"{self.threads} thread{'' if self.threads == 1 else 's'}"

    @property
    def share(self) -> float:
        """How much of what the roofs allow was reached: of the operations, or of the bytes where there are none."""
        return self.flops / self.seconds / self.bound if self.flops else self.bytes / self.seconds / self.near


def timed_run(call: Callable[[], Any], work: Callable[[Any], Any]) -> TimedRun:
    """Time a call, and the roofs right after it.

    Args:
        call: what is timed, the fastest of some calls after the first one, which may compile.
        work: from a call's result to its ``flops`` and ``bytes`` (``measuring.work.work_of``).

    """
    from .roofs import rates, triad  # late: they are compiled

    result = call()
    amount, dtype = work(result), _dtype(result)
    seconds, calls = _fastest(call, SECONDS)
    threads = torch.get_num_threads()
    far, size = rates(threads), min(max(amount.bytes, SMALLEST), LARGEST)
    roofs = [triad(size, workers) for workers in {1, threads}]  # starting threads may take longer than a small triad
    near = max(roof.amount / _fastest(roof.run, ROOF_SECONDS)[0] for roof in roofs)
    peak = far.flops_per_second / (2 if dtype == "float64" else 1)  # half as many fit in a register
    return TimedRun(seconds, calls, amount.flops, amount.bytes, near, far.bytes_per_second, peak, threads, dtype)


def _dtype(result: Any) -> str:
    """The data type of the multiply-adds that a result is compared with."""
    tensor = result[0] if isinstance(result, tuple) else result
    return "float64" if tensor.dtype in (torch.float64, torch.complex128) else "float32"


def _fastest(call: Callable[[], Any], seconds: float) -> tuple[float, int]:
    """The seconds of the fastest call, and how many there were; one comes before them."""
    call()
    best, calls, start = float("inf"), 0, time.perf_counter()
    while calls < FEWEST or (calls < MOST and time.perf_counter() - start < seconds):
        before = time.perf_counter()
        call()
        best, calls = min(best, time.perf_counter() - before), calls + 1
    return best, calls


def percent(share: float) -> str:
    """A share in per cent.

    >>> percent(0.0123), percent(0.9999)
    ('1.2 %', '100 %')
    """
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def report(run: TimedRun) -> str:
    """The figures of a run as a table, and its roofline."""
    rates = run.bytes / run.seconds / 1e9, run.flops / run.seconds / 1e9
    rows = [
        ("time", f"{_time(run.seconds)}, the fastest of {run.calls} calls, {run.on}"),
        ("bytes it has to move", f"{run.bytes:,}: {rates[0]:.3g} GB/s; a triad over as many reaches {run.near / 1e9:.3g} GB/s"),
        ("operations", f"{run.flops:,}: {rates[1]:.3g} Gflop/s; multiply-adds in registers reach {run.peak / 1e9:.3g} Gflop/s"),
        ("operations for each byte", f"{run.intensity:.3g}"),
        ("beside the roofs", run.reached),
    ]
    table = "".join(f"<tr><th scope='row'>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f"<table class='run'>{table}</table>" + (f'<div class="scroll" tabindex="0">{roofline(run)}</div>' if run.flops else "")


def roofline(run: TimedRun) -> str:
    """The roofs over operations for each byte, and the run as a point."""
    axes = _Axes.around(run)
    parts = axes.grid()
    for at, (rate, kind, name) in enumerate(
        ((run.near, "roof", "a triad over as many bytes"), (run.far, "roof far", "a triad from memory"))
    ):
        points = (axes.left, rate * axes.left), (run.peak / rate, run.peak), (axes.right, run.peak)
        parts.append(f'<polyline class="{kind}" points="{" ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)}"/>')
        y = float(HEIGHT - BOTTOM - 30 + 18 * at)
        parts.append(f'<line class="{kind}" x1="{WIDTH - 290}" x2="{WIDTH - 250}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(_text(WIDTH - 242, y, f"{name}: {rate / 1e9:.3g} GB/s", "start"))
    parts.append(_text(WIDTH - 8, axes.y(run.peak) - 6, f"{run.dtype} multiply-adds: {run.peak / 1e9:.3g} Gflop/s", "end"))
    x, y = axes.x(run.intensity), axes.y(run.flops / run.seconds)
    parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="7"/>')
    parts.append(_text(x, y + 24, f"{run.flops / run.seconds / 1e9:.3g} Gflop/s", "middle", "told"))
    caption = escape(f"Roofline: {run}")
    return (
        f'<svg class="roofline" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{caption}">'
        f"<title>{caption}</title>{''.join(parts)}</svg>"
    )


@dataclass(frozen=True, slots=True)
class _Axes:
    """Logarithmic axes: operations for each byte, and operations a second."""

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
        """A line for each power of ten, with its number."""
        parts = [
            _text((LEFT + WIDTH) / 2, HEIGHT - 4, "operations for each byte", "middle", "axis"),
            _text(2, 12, "Gflop/s", "start", "axis"),
        ]
        for power in _powers(self.left, self.right):
            x = self.x(10.0**power)
            parts += [f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>']
            parts += [_text(x, HEIGHT - BOTTOM + 16, f"{10.0**power:g}", "middle", "axis")]
        for power in _powers(self.low, self.high):
            y = self.y(10.0**power)
            parts += [f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>']
            parts += [_text(LEFT - 6, y + 4, f"{10.0 ** (power - 9):g}", "end", "axis")]
        return parts


def _powers(low: float, high: float) -> range:
    return range(ceil(log10(low)), floor(log10(high)) + 1)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "note") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
