"""What generated source calls besides intrinsics: element-wise functions and a sort, in plain Python.

Numba compiles them into the kernel that calls them.  Un-jitted kernels sort with the same routine, and take the
functions from ``ir.functions``, which don't raise where the machine's answer is an infinity or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

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
def sort(array: Any, count: int) -> None:
    """Sort array[:count] in place: heap sort, and insertion where that is short."""
    if count <= 24:
        for at in range(1, count):
            value, place = array[at], at
            while place > 0 and array[place - 1] > value:
                array[place] = array[place - 1]
                place -= 1
            array[place] = value
        return
    start, end = count // 2, count
    while end > 1:
        if start > 0:
            start -= 1
        else:
            end -= 1
            array[end], array[0] = array[0], array[end]
        root = start
        while 2 * root + 1 < end:
            child = 2 * root + 1
            if child + 1 < end and array[child] < array[child + 1]:
                child += 1
            if array[root] >= array[child]:
                break
            array[root], array[child] = array[child], array[root]
            root = child
