"""Schedules: functions from the number of a training step to the fraction of zeros, or to the fraction to replace.

A schedule is a callable that takes the number of a step, which starts at 1, and returns a fraction. The schedules of this module are
immutable values that can be compared, printed and pickled. A gradual schedule changes at every ``every``-th step from ``begin`` to
``end``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import OperandError, SizeError
from ..sparsifiers.base import check_fraction
from .checks import Schedule

__all__ = ["Schedule", "cosine", "cubic", "linear", "one_shot"]


@dataclass(frozen=True)
class _Gradual:
    """A fraction that moves from ``start`` to ``final`` between two steps."""

    final: float
    begin: int
    end: int
    every: int = 1
    start: float = 0.0

    def __post_init__(self) -> None:
        check_fraction(self, self.start)
        check_fraction(self, self.final)
        check_steps(self, self.every)
        if not 0 <= self.begin < self.end:
            raise SizeError(f"{self}: begin={self.begin} is not between 0 and end={self.end}: give a smaller begin=, or a larger end=")

    def __call__(self, step: int) -> float:
        """Return the fraction at a step."""
        if step >= self.end:
            return self.final
        if step < self.begin:
            return self.start
        last = step - (step - self.begin) % self.every
        return self.start + (self.final - self.start) * self._moved((last - self.begin) / (self.end - self.begin))

    def _moved(self, time: float) -> float:
        """Return how far the fraction has moved from ``start`` (0) to ``final`` (1), given the elapsed share of the time."""
        raise NotImplementedError


class cubic(_Gradual):
    """Raise the fraction by a cubic function of the step: fast at first, then more slowly.

    Args:
        final: the fraction at the end.
        begin: the step at which the fraction starts to rise.
        end: the step from which on the fraction is ``final``.
        every: number of steps between changes.
        start: the fraction before ``begin``.

    Raises:
        SizeError: a fraction is not between 0 and 1, or the steps are out of order.

    Source: Zhu, Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model compression", 2017.

    >>> fraction = cubic(0.8, begin=0, end=100, every=50)
    >>> [round(fraction(step), 3) for step in (0, 49, 50, 99, 100, 500)]
    [0.0, 0.0, 0.7, 0.7, 0.8, 0.8]
    """

    def _moved(self, time: float) -> float:
        return 1 - (1 - time) ** 3


class linear(_Gradual):
    """Raise the fraction by the same amount at each change.

    Args:
        final: the fraction at the end.
        begin: the step at which the fraction starts to rise.
        end: the step from which on the fraction is ``final``.
        every: number of steps between changes.
        start: the fraction before ``begin``.

    Raises:
        SizeError: a fraction is not between 0 and 1, or the steps are out of order.

    >>> fraction = linear(0.8, begin=0, end=100, every=50)
    >>> [fraction(step) for step in (0, 50, 100)]
    [0.0, 0.4, 0.8]
    """

    def _moved(self, time: float) -> float:
        return time


@dataclass(frozen=True)
class one_shot:
    """Raise the fraction once.

    Args:
        final: the fraction from that step on.
        at: the step.
        start: the fraction before that step.

    Raises:
        SizeError: a fraction is not between 0 and 1, or the step is negative.

    >>> [one_shot(0.9, at=10)(step) for step in (9, 10, 11)]
    [0.0, 0.9, 0.9]
    """

    final: float
    at: int
    start: float = 0.0

    def __post_init__(self) -> None:
        check_fraction(self, self.start)
        check_fraction(self, self.final)
        if self.at < 0:
            raise SizeError(f"{self}: at= has to be the number of a step, at least 0")

    def __call__(self, step: int) -> float:
        """Return the fraction at a step."""
        return self.final if step >= self.at else self.start


@dataclass(frozen=True)
class cosine:
    """Decay to 0 along half a cosine wave: the fraction that dynamic sparse training replaces.

    Args:
        first: the fraction at step 0.
        until: the step from which on the fraction is 0.

    Raises:
        SizeError: the fraction is not between 0 and 1, or ``until`` is not positive.

    Source: Evci, Gale, Menick, Castro, Elsen, "Rigging the lottery: making all tickets winners", 2020, section 3.

    >>> [round(cosine(0.3, until=100)(step), 3) for step in (0, 50, 100, 200)]
    [0.3, 0.15, 0.0, 0.0]
    """

    first: float
    until: int

    def __post_init__(self) -> None:
        check_fraction(self, self.first)
        check_steps(self, self.until)

    def __call__(self, step: int) -> float:
        """Return the fraction at a step."""
        return 0.0 if step >= self.until else self.first / 2 * (1 + math.cos(math.pi * step / self.until))


def check_count(owner: object, count: object) -> None:
    """Check a count of steps.

    Raises:
        OperandError: it is not an integer of at least 0.

    >>> check_count("the state of SET", "many")
    Traceback (most recent call last):
    ...
    numscorch.OperandError: the state of SET has 'many' as its count of steps: it has to be an integer of at least 0
    """
    if not isinstance(count, int) or count < 0:
        raise OperandError(f"{owner} has {count!r} as its count of steps: it has to be an integer of at least 0")


def check_steps(owner: object, steps: object) -> None:
    """Check a number of steps.

    Raises:
        SizeError: it is not an integer of at least 1.

    >>> check_steps("RigL(every=0)", 0)
    Traceback (most recent call last):
    ...
    numscorch.SizeError: RigL(every=0): 0 is not a number of steps: give an integer of at least 1
    """
    if not isinstance(steps, int) or steps < 1:
        raise SizeError(f"{owner}: {steps} is not a number of steps: give an integer of at least 1")
