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
        keeps_whole: whether whole numbers have whole values, so that integers need no conversion.
        annihilates: whether the value is 0 where the first argument is, whatever the others are, as that of a quotient.
    """

    evaluate: Callable[..., Any]
    slopes: tuple[str, ...]
    keeps_whole: bool = False
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


def _one(evaluate: Callable[[Any], Any], slope: str, keeps_whole: bool = False) -> Function:
    return Function(evaluate, (slope,), keeps_whole)


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


UNARY = {
    "abs": _one(abs, "(x > 0) - (x < 0)", keeps_whole=True),
    "acos": _one(_ufunc("arccos"), "-1 / sqrt(1 - x * x)"),
    "acosh": _one(_ufunc("arccosh"), "1 / sqrt(x * x - 1)"),
    "asin": _one(_ufunc("arcsin"), "1 / sqrt(1 - x * x)"),
    "asinh": _one(_ufunc("arcsinh"), "1 / sqrt(x * x + 1)"),
    "atan": _one(_ufunc("arctan"), "1 / (x * x + 1)"),
    "atanh": _one(_ufunc("arctanh"), "1 / (1 - x * x)"),
    "ceil": _one(_ufunc("ceil"), "0"),
    "cos": _one(_ufunc("cos"), "-sin(x)"),
    "cosh": _one(_ufunc("cosh"), "sinh(x)"),
    "deg2rad": _one(_ufunc("deg2rad"), repr(math.pi / 180)),
    "elu": _one(lambda x: x if x > 0 else np.expm1(x), "where(x > 0, 1, exp(x))"),
    "erf": _one(lambda x: math.erf(x), f"{2 / math.sqrt(math.pi)!r} * exp(-1 * (x * x))"),
    "erfc": _one(lambda x: math.erfc(x), f"{-2 / math.sqrt(math.pi)!r} * exp(-1 * (x * x))"),
    "exp": _one(_ufunc("exp"), "exp(x)"),
    "exp2": _one(_ufunc("exp2"), f"exp2(x) * {math.log(2)!r}"),
    "expm1": _one(_ufunc("expm1"), "exp(x)"),
    "floor": _one(_ufunc("floor"), "0"),
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
    "hardtanh": _one(lambda x: -1.0 if x < -1 else 1.0 if x > 1 else x, "(x > -1) * (x < 1)"),
    "isfinite": _one(lambda x: 1.0 if np.isfinite(x) else 0.0, "0"),
    "isinf": _one(lambda x: 1.0 if np.isinf(x) else 0.0, "0"),
    "isnan": _one(lambda x: 1.0 if np.isnan(x) else 0.0, "0"),
    "log": _one(_ufunc("log"), "1 / x"),
    "log10": _one(_ufunc("log10"), f"1 / (x * {math.log(10)!r})"),
    "log1p": _one(_ufunc("log1p"), "1 / (x + 1)"),
    "log2": _one(_ufunc("log2"), f"1 / (x * {math.log(2)!r})"),
    "logit": _one(lambda x: np.log(np.divide(x, 1.0 - x)), "1 / (x * (1 - x))"),
    "logsigmoid": _one(lambda x: (x if x < 0 else 0.0) - np.log1p(np.exp(-abs(x))), "sigmoid(-x)"),
    "mish": _one(
        lambda x: x * np.tanh((x if x > 0 else 0.0) + np.log1p(np.exp(-abs(x)))),
        "tanh(softplus(x)) + x * sigmoid(x) * (1 - tanh(softplus(x)) * tanh(softplus(x)))",
    ),
    "rad2deg": _one(_ufunc("rad2deg"), repr(180 / math.pi)),
    "reciprocal": _one(_ufunc("reciprocal"), "-1 / (x * x)"),
    "relu": _one(lambda x: x if x > 0 or x != x else type(x)(0), "x > 0", keeps_whole=True),
    "relu6": _one(lambda x: type(x)(0) if x < 0 else type(x)(6) if x > 6 else x, "(x > 0) * (x < 6)"),
    "round": _one(_ufunc("rint"), "0"),
    "rsqrt": _one(lambda x: 1.0 / np.sqrt(x), "-0.5 / (x * sqrt(x))"),
    "selu": _one(
        lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * np.expm1(x)),
        f"where(x > 0, 1.0507009873554805, {1.0507009873554805 * 1.6732632423543772!r} * exp(x))",
    ),
    "sigmoid": _one(lambda x: 1.0 / (1.0 + np.exp(-x)), "sigmoid(x) * (1 - sigmoid(x))"),
    "sign": _one(lambda x: type(x)(1) if x > 0 else type(x)(-1) if x < 0 else type(x)(0), "0", keeps_whole=True),
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
    "square": _one(lambda x: x * x, "2 * x", keeps_whole=True),
    "tan": _one(_ufunc("tan"), "1 + tan(x) * tan(x)"),
    "tanh": _one(_ufunc("tanh"), "1 - tanh(x) * tanh(x)"),
    "tanhshrink": _one(lambda x: x - np.tanh(x), "tanh(x) * tanh(x)"),
    "trunc": _one(_ufunc("trunc"), "0"),
}
BINARY = {
    "atan2": Function(
        _ufunc2("arctan2"),
        ("where(x * x + y * y == 0, 0, y / (x * x + y * y))", "where(x * x + y * y == 0, 0, -x / (x * x + y * y))"),
    ),
    "copysign": Function(_ufunc2("copysign"), ("where(x == 0, 0, copysign(x, y) / x)", "0"), annihilates=True),
    "floor_divide": Function(lambda x, y: x // y, ("0", "0"), keeps_whole=True, annihilates=True),
    "fmax": Function(_ufunc2("fmax"), ("(x >= y) + isnan(y) > 0", "(x >= y) + isnan(y) == 0"), keeps_whole=True),
    "fmin": Function(_ufunc2("fmin"), ("(x <= y) + isnan(y) > 0", "(x <= y) + isnan(y) == 0"), keeps_whole=True),
    "fmod": Function(_ufunc2("fmod"), ("1", "-trunc(x / y)"), keeps_whole=True, annihilates=True),
    "heaviside": Function(lambda x, y: y if x == 0 else type(y)(x > 0), ("0", "x == 0"), keeps_whole=True),
    "hypot": Function(_ufunc2("hypot"), ("x / hypot(x, y)", "y / hypot(x, y)")),
    "logaddexp": Function(_ufunc2("logaddexp"), ("sigmoid(x - y)", "sigmoid(y - x)")),
    "logaddexp2": Function(_ufunc2("logaddexp2"), ("1 / (1 + exp2(y - x))", "1 / (1 + exp2(x - y))")),
    "maximum": Function(maximum, ("1 - (x < y) - 0.5 * (x == y)", "1 - (y < x) - 0.5 * (x == y)"), keeps_whole=True),
    "minimum": Function(minimum, ("1 - (x > y) - 0.5 * (x == y)", "1 - (y > x) - 0.5 * (x == y)"), keeps_whole=True),
    "pow": Function(
        _ufunc2("power"),
        ("where(y == 0, 0, y * pow(x, y - 1))", "where((x == 0) * (y >= 0), 0, pow(x, y) * log(x))"),
    ),
    "remainder": Function(_ufunc2("remainder"), ("1", "-floor_divide(x, y)"), keeps_whole=True, annihilates=True),
    "xlogy": Function(
        lambda x, y: x * np.log(y) if x != 0 or y != y else 0.0,
        ("where((x == 0) * (y <= 0), 0, log(y))", "x / y"),
        annihilates=True,
    ),
}
TERNARY = {
    "clamp": Function(
        clamp,
        ("(x >= y) * (x <= z)", "(y < z) * (x < y)", "(x > z) + (z < y) > 0"),
        keeps_whole=True,
    ),
    "lerp": Function(lambda x, y, weight: x + weight * (y - x) if weight < 0.5 else y - (y - x) * (1 - weight), ("1 - z", "z", "y - x")),
    "where": Function(lambda condition, a, b: a if condition != 0 else b, ("0", "x != 0", "x == 0"), keeps_whole=True),
}
FUNCTIONS: dict[str, Function] = {**UNARY, **BINARY, **TERNARY}
