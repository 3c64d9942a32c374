"""The element-wise functions of statements: one row each, with the value and the derivative by each argument.

``FUNCTIONS`` is the one description of a function. Kernels compile ``evaluate``, un-jitted kernels call it, and ``simplified``
folds numbers with it; the derivatives are index notation; dense tensors take torch's function of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Function:
    """An element-wise function.

    Args:
        evaluate: the value, for numpy's numbers; plain Python that Numba compiles.
        slopes: the derivative by each argument, in index notation; the arguments are x, y and z.
        whole: the value of integers, where it is an integer; None where integers are converted to floats first.
        annihilates: whether the value is 0 where the first argument is, whatever the others are, as that of a quotient.
    """

    evaluate: Callable[..., Any]
    slopes: tuple[str, ...]
    whole: Callable[..., Any] | None = None
    annihilates: bool = False

    @property
    def arity(self) -> int:
        """The number of arguments."""
        return len(self.slopes)

    def value(self, *numbers: float) -> float:
        """The value of Python's floats; an infinity or NaN where the machine's answer is one.

        >>> FUNCTIONS["log"].value(0.0), FUNCTIONS["pow"].value(2.0, 3.0)
        (-inf, 8.0)
        """
        with np.errstate(all="ignore"):
            return float(self.evaluate(*map(np.float64, numbers)))


def _ufunc(name: str) -> Callable[..., Any]:
    """numpy's function of one number, as a function that Numba compiles."""
    of_numpy = getattr(np, name)
    return lambda x: of_numpy(x)


def _ufunc2(name: str) -> Callable[..., Any]:
    """numpy's function of two numbers."""
    of_numpy = getattr(np, name)
    return lambda x, y: of_numpy(x, y)


def _one(evaluate: Callable[[Any], Any], slope: str, whole: Callable[[Any], Any] | None = None) -> Function:
    return Function(evaluate, (slope,), whole)


def _kept(evaluate: Callable[..., Any], *slopes: str, annihilates: bool = False) -> Function:
    """A function that computes integers as it computes floats."""
    return Function(evaluate, slopes, evaluate, annihilates)


def _same(x: Any) -> Any:
    """The argument, as floor and round have it of an integer."""
    return x


def _nowhere(x: Any) -> Any:
    """0, as isnan has it of an integer."""
    return x - x


def _everywhere(x: Any) -> Any:
    """1, as isfinite has it of an integer."""
    return type(x)(1)


def power(x: Any, y: Any) -> Any:
    """x to the power y, as C has it; numpy takes the square root of -inf for 0.5."""
    return type(x)(np.inf) if x == -np.inf and y == 0.5 else np.power(x, y)


def whole_power(x: Any, y: Any) -> Any:
    """The power of integers, by repeated squares; a negative power is 0 unless x is 1 or -1, as torch's is."""
    power, square, left = type(x)(1), x, y
    if y < 0:
        return power if x == 1 or (x == -1 and y % 2 == 0) else x if x == -1 else x - x
    while left > 0:
        if left % 2 == 1:
            power = power * square
        square, left = square * square, left // 2
    return power


def maximum(a: Any, b: Any) -> Any:
    """The larger one; NaN if either is."""
    return a if a > b or a != a else b


def minimum(a: Any, b: Any) -> Any:
    """The smaller one; NaN if either is."""
    return a if a < b or a != a else b


def clamp(x: Any, low: Any, high: Any) -> Any:
    """The number, or the bound that it is beyond; NaN if any of the three is."""
    at_least = low if x < low or low != low else x
    return x if x != x else high if at_least > high or high != high else at_least


def lerp(x: Any, y: Any, weight: Any) -> Any:
    """x where the weight is 0, y where it is 1, and on the line through both elsewhere."""
    return x + weight * (y - x) if abs(weight) < 0.5 else y + (weight - 1) * (y - x)


UNARY = {
    "abs": _kept(abs, "(x > 0) - (x < 0)"),
    "acos": _one(_ufunc("arccos"), "-1 / sqrt(1 - x * x)"),
    "acosh": _one(_ufunc("arccosh"), "1 / sqrt(x * x - 1)"),
    "asin": _one(_ufunc("arcsin"), "1 / sqrt(1 - x * x)"),
    "asinh": _one(_ufunc("arcsinh"), "1 / sqrt(x * x + 1)"),
    "atan": _one(_ufunc("arctan"), "1 / (x * x + 1)"),
    "atanh": _one(_ufunc("arctanh"), "1 / (1 - x * x)"),
    "ceil": _one(_ufunc("ceil"), "0", _same),
    "cos": _one(_ufunc("cos"), "-sin(x)"),
    "cosh": _one(_ufunc("cosh"), "sinh(x)"),
    "deg2rad": _one(_ufunc("deg2rad"), repr(math.pi / 180)),
    "elu": _one(lambda x: x if x > 0 else np.expm1(x), "where(x <= 0, exp(x), 1)"),
    "erf": _one(lambda x: math.erf(x), f"{2 / math.sqrt(math.pi)!r} * exp(-1 * (x * x))"),
    "erfc": _one(lambda x: math.erfc(x), f"{-2 / math.sqrt(math.pi)!r} * exp(-1 * (x * x))"),
    "exp": _one(_ufunc("exp"), "exp(x)"),
    "exp2": _one(_ufunc("exp2"), f"exp2(x) * {math.log(2)!r}"),
    "expm1": _one(_ufunc("expm1"), "exp(x)"),
    "floor": _one(_ufunc("floor"), "0", _same),
    "frac": _one(lambda x: x - np.trunc(x), "1"),
    "gelu": _one(
        lambda x: 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476)),
        f"0.5 + 0.5 * erf(x * {math.sqrt(0.5)!r}) + x * ({1 / math.sqrt(2 * math.pi)!r} * exp(-0.5 * (x * x)))",
    ),
    "hardsigmoid": _one(lambda x: 0.0 if x <= -3 else 1.0 if x >= 3 else (x + 3) / 6, "(x > -3) * (x < 3) / 6"),
    "hardswish": _one(
        lambda x: x * (0.0 if x <= -3 else 6.0 if x >= 3 else x + 3) / 6,
        "where(x <= -3, 0, where(x < 3, x / 3 + 0.5, 1))",
    ),
    "hardtanh": _kept(lambda x: type(x)(-1) if x < -1 else type(x)(1) if x > 1 else x, "(x <= -1) + (x >= 1) == 0"),
    "isfinite": _one(lambda x: 1.0 if np.isfinite(x) else 0.0, "0", _everywhere),
    "isinf": _one(lambda x: 1.0 if np.isinf(x) else 0.0, "0", _nowhere),
    "isnan": _one(lambda x: 1.0 if np.isnan(x) else 0.0, "0", _nowhere),
    "log": _one(_ufunc("log"), "1 / x"),
    "log10": _one(_ufunc("log10"), f"1 / (x * {math.log(10)!r})"),
    "log1p": _one(_ufunc("log1p"), "1 / (x + 1)"),
    "log2": _one(_ufunc("log2"), f"1 / (x * {math.log(2)!r})"),
    "logit": _one(lambda x: np.log(np.divide(x, 1.0 - x)), "where((x >= 0) * (x <= 1), 1 / (x * (1 - x)), logit(x))"),
    "logsigmoid": _one(lambda x: (x if x < 0 else 0.0) - np.log1p(np.exp(-abs(x))), "sigmoid(-x)"),
    "mish": _one(
        lambda x: x * np.tanh((x if x > 0 else 0.0) + np.log1p(np.exp(-abs(x)))),
        "tanh(softplus(x)) + x * sigmoid(x) * (1 - tanh(softplus(x)) * tanh(softplus(x)))",
    ),
    "rad2deg": _one(_ufunc("rad2deg"), repr(180 / math.pi)),
    "reciprocal": _one(_ufunc("reciprocal"), "-1 / (x * x)"),
    "relu": _kept(lambda x: x if x > 0 or x != x else type(x)(0), "1 - (x <= 0)"),
    "relu6": _kept(lambda x: type(x)(0) if x < 0 else type(x)(6) if x > 6 else x, "(x <= 0) + (x >= 6) == 0"),
    "round": _one(_ufunc("rint"), "0", _same),
    "rsqrt": _one(lambda x: 1.0 / np.sqrt(x), "-0.5 * rsqrt(x) * rsqrt(x) * rsqrt(x)"),
    "selu": _one(
        lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * np.expm1(x)),
        f"where(x <= 0, {1.0507009873554805 * 1.6732632423543772!r} * exp(x), 1.0507009873554805)",
    ),
    "sigmoid": _one(lambda x: 1.0 / (1.0 + np.exp(-x)), "sigmoid(x) * (1 - sigmoid(x))"),
    "sign": _kept(lambda x: type(x)(1) if x > 0 else type(x)(-1) if x < 0 else type(x)(0), "0"),
    "silu": _one(lambda x: x / (1.0 + np.exp(-x)), "sigmoid(x) * (1 + x * (1 - sigmoid(x)))"),
    "sin": _one(_ufunc("sin"), "cos(x)"),
    "sinc": _one(
        lambda x: 1.0 if x == 0 else np.sin(math.pi * x) / (math.pi * x),
        f"where(x == 0, 0, (cos({math.pi!r} * x) - sinc(x)) / x)",
    ),
    "sinh": _one(_ufunc("sinh"), "cosh(x)"),
    "softplus": _one(lambda x: x if x > 20 else np.log1p(np.exp(x)), "where(x > 20, 1, sigmoid(x))"),
    "softsign": _one(lambda x: x / (1.0 + abs(x)), "1 / ((1 + abs(x)) * (1 + abs(x)))"),
    "sqrt": _one(_ufunc("sqrt"), "0.5 / sqrt(x)"),
    "square": _kept(lambda x: x * x, "2 * x"),
    "tan": _one(_ufunc("tan"), "1 + tan(x) * tan(x)"),
    "tanh": _one(_ufunc("tanh"), "1 - tanh(x) * tanh(x)"),
    "tanhshrink": _one(lambda x: x - np.tanh(x), "tanh(x) * tanh(x)"),
    "trunc": _one(_ufunc("trunc"), "0", _same),
}
BINARY = {
    "atan2": Function(
        _ufunc2("arctan2"),
        ("where(x * x + y * y == 0, 0, y / (x * x + y * y))", "where(x * x + y * y == 0, 0, -x / (x * x + y * y))"),
    ),
    "copysign": Function(_ufunc2("copysign"), ("where(x == 0, 0, copysign(x, y) / x)", "0"), annihilates=True),
    "floor_divide": _kept(lambda x, y: x // y, "0", "0", annihilates=True),
    "fmax": _kept(_ufunc2("fmax"), "(x >= y) + isnan(y) > 0", "(x >= y) + isnan(y) == 0"),
    "fmin": _kept(_ufunc2("fmin"), "(x <= y) + isnan(y) > 0", "(x <= y) + isnan(y) == 0"),
    "fmod": _kept(_ufunc2("fmod"), "1", "-trunc(x / y)", annihilates=True),
    "heaviside": _kept(lambda x, y: y if x == 0 else type(y)(x > 0), "0", "x == 0"),
    "hypot": Function(_ufunc2("hypot"), ("x / hypot(x, y)", "y / hypot(x, y)")),
    "logaddexp": Function(_ufunc2("logaddexp"), ("sigmoid(x - y)", "sigmoid(y - x)")),
    "logaddexp2": Function(_ufunc2("logaddexp2"), ("1 / (1 + exp2(y - x))", "1 / (1 + exp2(x - y))")),
    "maximum": _kept(maximum, "1 - (x < y) - 0.5 * (x == y)", "1 - (y < x) - 0.5 * (x == y)"),
    "minimum": _kept(minimum, "1 - (x > y) - 0.5 * (x == y)", "1 - (y > x) - 0.5 * (x == y)"),
    "pow": Function(
        power,
        ("where(y == 0, 0, y * pow(x, y - 1))", "where((x == 0) * (y >= 0), 0, pow(x, y) * log(x))"),
        whole_power,
    ),
    "remainder": _kept(_ufunc2("remainder"), "1", "-floor_divide(x, y)", annihilates=True),
    "xlogy": Function(
        lambda x, y: x * np.log(y) if x != 0 or y != y else 0.0,
        ("where((x == 0) * (y <= 0), 0, log(y))", "x / y"),
        annihilates=True,
    ),
}
TERNARY = {
    "clamp": _kept(clamp, "(x >= y) * (x <= z)", "(y < z) * (x < y)", "(x > z) + (z < y) > 0"),
    "lerp": Function(lerp, ("1 - z", "z", "y - x")),
    "where": _kept(lambda condition, a, b: a if condition != 0 else b, "0", "x != 0", "x == 0"),
}
FUNCTIONS: dict[str, Function] = {**UNARY, **BINARY, **TERNARY}
"""Every element-wise function, by the name that statements call it."""
WHOLE = {f"whole_{name}": entry.whole for name, entry in FUNCTIONS.items() if entry.whole is not None and entry.whole is not entry.evaluate}
"""The functions that compute integers otherwise than floats, by the name that generated source calls them."""


def routine_of(name: str, dtype: str) -> str:
    """The name by which generated source calls a function of values of a data type.

    >>> routine_of("floor", "float32"), routine_of("floor", "int8"), routine_of("relu", "int8")
    ('floor', 'whole_floor', 'relu')
    """
    return f"whole_{name}" if dtype.startswith("int") and f"whole_{name}" in WHOLE else name
