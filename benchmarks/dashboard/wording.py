"""Formatting of ratios, changes, times, sizes and numbers: the filters of the templates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .ratios import Ratio

MANY = 100  # ratio from which no decimals are shown


def times(value: float) -> str:
    """Format a ratio with three digits.

    >>> times(2.514), times(17.32), times(431.7)
    ('2.51×', '17.3×', '432×')
    """
    return f"{value:.0f}×" if value >= MANY else f"{value:.1f}×" if value >= 10 else f"{value:.2f}×"


def interval(ratio: Ratio) -> str:
    """Format the ends of a ratio's interval."""
    return f"{times(ratio.low)[:-1]}–{times(ratio.high)[:-1]}"


def percent(change: Ratio) -> str:
    """Format a change as a signed percentage.

    >>> percent(Ratio(1.034)), percent(Ratio(0.85)), percent(Ratio(1.001))
    ('+3.4 %', '−15 %', '±0 %')
    """
    value = 100 * (change.value - 1)
    digits = 0 if abs(value) >= 10 else 1
    if not round(abs(value), digits) or abs(value) < 0.15:
        return "±0 %"
    return f"{'+' if value > 0 else '−'}{abs(value):.{digits}f} %"


def seconds(value: float) -> str:
    """Format a time in a suitable unit.

    >>> seconds(9.01e-6), seconds(0.25), seconds(1.25)
    ('9.01 µs', '250 ms', '1.25 s')
    """
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1:
            return f"{_digits(value * factor)} {unit}"
    return f"{_digits(value * 1e9)} ns"


def size(count: float) -> str:
    """Format a number of bytes.

    >>> size(512), size(1_500_000)
    ('512 B', '1.50 MB')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{_digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def number(count: float) -> str:
    """Format an integer with thousands separators."""
    return f"{count:,.0f}".replace(",", "\u202f")


def counted(count: int, noun: str) -> str:
    """Format a number of things.

    >>> counted(1, "case"), counted(2, "case")
    ('1 case', '2 cases')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def machine_name(machine: Mapping[str, Any]) -> str:
    """Short description of a machine.

    >>> machine_name({"processor": "AMD EPYC", "cores": 2, "fingerprint": "0123456789"})
    'AMD EPYC, 2 cores'
    """
    name, cores = str(machine.get("processor") or machine["fingerprint"]), int(machine.get("cores") or 0)
    return f"{name}, {counted(cores, 'core')}" if cores else name


def _digits(value: float) -> str:
    """Format a number with three digits, or without decimals if it is an integer."""
    if math.isclose(value, round(value)):  # 7e-6 s are 7.000000000000001 µs
        return f"{value:.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
