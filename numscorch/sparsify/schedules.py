"""Schedules: from the number of a training step to the fraction that is zero by then, or that is replaced then.

A schedule is any callable that takes the number of a step, 1 for the first, and returns a fraction. Those here are values, which are
compared, printed and pickled; they move at every ``every``-th step between ``begin`` and ``end``, and hold in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import OperandError, SizeError
from ..sparsifiers.magnitude import check_fraction
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
            raise SizeError(f"{self}: it begins at step {self.begin}, and ends at step {self.end}: give begin= before end=")

    def __call__(self, step: int) -> float:
        """The fraction after so many steps."""
        if step >= self.end:
            return self.final
        if step < self.begin:
            return self.start
        last = step - (step - self.begin) % self.every
        return self.start + (self.final - self.start) * self.moved((last - self.begin) / (self.end - self.begin))

    def moved(self, time: float) -> float:
        """The share of the way from start to final, after this share of the time."""
        raise NotImplementedError


class cubic(_Gradual):
    """Much is pruned at first, where there is much to choose from, and less and less later.

    Args:
        final: the fraction at the end.
        begin: the step at which it begins to move from ``start``.
        end: the step from which on it is ``final``.
        every: how many steps it holds before it moves again.
        start: the fraction before.

    Raises:
        SizeError: fractions that aren't between 0 and 1, or steps out of order.

    Source: Zhu, Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model compression", 2017.

    >>> fraction = cubic(0.8, begin=0, end=100, every=50)
    >>> [round(fraction(step), 3) for step in (0, 49, 50, 99, 100, 500)]
    [0.0, 0.0, 0.7, 0.7, 0.8, 0.8]
    """

    def moved(self, time: float) -> float:
        return 1 - (1 - time) ** 3


class linear(_Gradual):
    """As much is pruned each time; arguments are those of :class:`cubic`.

    >>> fraction = linear(0.8, begin=0, end=100, every=50)
    >>> [fraction(step) for step in (0, 50, 100)]
    [0.0, 0.4, 0.8]
    """

    def moved(self, time: float) -> float:
        return time


@dataclass(frozen=True)
class one_shot:
    """All at one step.

    Args:
        final: the fraction from that step on.
        at: the step.
        start: the fraction before.

    Raises:
        SizeError: fractions that aren't between 0 and 1, or a step before the first.

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
            raise SizeError(f"{self}: at= is the number of a step, at least 0")

    def __call__(self, step: int) -> float:
        """The fraction after so many steps."""
        return self.final if step >= self.at else self.start


@dataclass(frozen=True)
class cosine:
    """A fraction that falls to 0 along half a wave of the cosine; it is how much dynamic sparse training replaces.

    Args:
        first: the fraction at step 0.
        until: the step at which it is 0, and stays so.

    Raises:
        SizeError: a fraction that isn't between 0 and 1, or no steps.

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
        """The fraction at this step."""
        return 0.0 if step >= self.until else self.first / 2 * (1 + math.cos(math.pi * step / self.until))


def check_count(owner: object, count: object) -> None:
    """That something counts steps.

    Raises:
        OperandError: it is no whole number of at least 0.

    >>> check_count("the state of SET", "many")
    Traceback (most recent call last):
    ...
    numscorch.OperandError: the state of SET has 'many' as its count of steps: it is a whole number of at least 0
    """
    if not isinstance(count, int) or count < 0:
        raise OperandError(f"{owner} has {count!r} as its count of steps: it is a whole number of at least 0")


def check_steps(owner: object, steps: object) -> None:
    """That a number of steps is one.

    Raises:
        SizeError: it isn't a whole number of at least 1.

    >>> check_steps("RigL(every=0)", 0)
    Traceback (most recent call last):
    ...
    numscorch.SizeError: RigL(every=0): 0 is no number of steps: give a whole number of at least 1
    """
    if not isinstance(steps, int) or steps < 1:
        raise SizeError(f"{owner}: {steps} is no number of steps: give a whole number of at least 1")
