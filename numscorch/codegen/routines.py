"""What generated source calls besides intrinsics: element-wise functions and a sort, in plain Python.

Numba compiles them into the kernel that calls them.  Un-jitted kernels sort with the same routine, and take the
functions from ``ir.functions``, which don't raise where the machine's answer is an infinity or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

SCAN = 32  # coordinates that are looked at in the time that sorting one takes
F = TypeVar("F", bound=Callable[..., Any])


def jitted(function: F) -> F:
    """The function, compiled where a kernel calls it."""
    return cast(F, njit(error_model="numpy", nogil=True)(function))


@jitted
def exp(x: Any) -> Any:
    """e to the power of x"""
    return math.exp(x)


@jitted
def log(x: Any) -> Any:
    """The natural logarithm."""
    return math.log(x)


@jitted
def sqrt(x: Any) -> Any:
    """The square root."""
    return math.sqrt(x)


@jitted
def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return math.tanh(x)


@jitted
def erf(x: Any) -> Any:
    """The error function."""
    return math.erf(x)


@jitted
def maximum(a: Any, b: Any) -> Any:
    """The larger one; NaN if either is."""
    return a if a > b or a != a else b


@jitted
def minimum(a: Any, b: Any) -> Any:
    """The smaller one; NaN if either is."""
    return a if a < b or a != a else b


@jitted
def relu(x: Any) -> Any:
    """x, or 0 where it is negative."""
    return x if x > 0 or x != x else x - x


@jitted
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))"""
    return 1.0 / (1.0 + math.exp(-x))


@jitted
def gelu(x: Any) -> Any:
    """x times the normal distribution's share below x."""
    return 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476))


@jitted
def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition isn't 0, else b."""
    return a if condition != 0 else b


@jitted
def truth(condition: Any, one: Any) -> Any:
    """1 where the condition holds, else 0, of the type of ``one``."""
    return one if condition else one - one


@jitted
def ordered(listed: Any, mark: Any, stamp: int, count: int, size: int) -> None:
    """Put the listed coordinates in order: a look at every mark where many are set, a sort where few are."""
    if count * SCAN > size:
        at = 0
        for coordinate in range(size):
            listed[at] = coordinate  # overwritten unless it is marked; the last one may be one past the end
            at += mark[coordinate] == stamp
            if at == count:
                break
    else:
        sort(listed, 0, count)


@jitted
def sort(array: Any, start: int, end: int) -> None:
    """Sort array[start:end] in place: quicksort by the middle of three, the longer part last; insertion where it is short."""
    while end - start > 24:
        left, middle, right = array[start], array[(start + end) // 2], array[end - 1]
        pivot = max(min(left, middle), min(max(left, middle), right))
        low, high = start, end - 1
        while low <= high:
            while array[low] < pivot:
                low += 1
            while array[high] > pivot:
                high -= 1
            if low <= high:
                array[low], array[high] = array[high], array[low]
                low += 1
                high -= 1
        if high + 1 - start < end - low:
            sort(array, start, high + 1)
            start = low
        else:
            sort(array, low, end)
            end = high + 1
    for at in range(start + 1, end):
        value, place = array[at], at
        while place > start and array[place - 1] > value:
            array[place] = array[place - 1]
            place -= 1
        array[place] = value
