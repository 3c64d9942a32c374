"""The table of element-wise functions in statements, with their values and derivatives.

``FUNCTIONS`` is the single definition of each function. Kernels compile ``evaluate``, interpreted kernels call it, and
``simplified`` folds constants with it. Derivatives are written in index notation. Dense tensors use torch's function of
the same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DivisionError
from .dtype import DTYPES

BY_ZERO = "an integer is divided by 0: divide by where(B == 0, 1, B), or convert the operands to floats with .to(torch.float64)"


@dataclass(frozen=True, slots=True)
class Function:
    """An element-wise function.

    Args:
        evaluate: computes the value of NumPy scalars; plain Python that Numba can compile.
        slopes: the partial derivative with respect to each argument, in index notation; the arguments are x, y and z.
        whole: computes the value of integers, as an integer; None if integers are converted to floats first.
        annihilates: whether the value is 0 if the first argument is 0, whatever the other arguments are, as for a quotient.
        divides: whether the last argument is a divisor: integers divided by 0 raise DivisionError.
        register: the function's name in generated source that computes it for SIMD registers; empty if there is none.
    """

    evaluate: Callable[..., Any]
    slopes: tuple[str, ...]
    whole: Callable[..., Any] | None = None
    annihilates: bool = False
    divides: bool = False
    register: str = ""

    @property
    def arity(self) -> int:
        """The number of arguments."""
        return len(self.slopes)

    def value(self, *numbers: float, dtype: str = "float64") -> float:
        """The value for Python numbers: of integers if ``dtype`` is one of integers, else of floats.

        A value may be infinite or NaN; no floating-point error is raised.

        Raises:
            DivisionError: an integer is divided by 0.

        >>> FUNCTIONS["log"].value(0.0), FUNCTIONS["pow"].value(2.0, 3.0), FUNCTIONS["pow"].value(2, -1, dtype="int8")
        (-inf, 8.0, 0)
        """
        with np.errstate(all="ignore"):
            if self.whole is not None and DTYPES[dtype].kind == "integer":
                numbers = (*numbers[:-1], nonzero(numbers[-1])) if self.divides else numbers
                return int(self.whole(*map(getattr(np, dtype), numbers)))
            return float(self.evaluate(*map(np.float64, numbers)))


def _ufunc(name: str) -> Callable[..., Any]:
    """A unary or binary NumPy function, wrapped so that Numba can compile it."""
    function = getattr(np, name)
    return (lambda x: function(x)) if function.nin == 1 else (lambda x, y: function(x, y))


def _unary(evaluate: Callable[[Any], Any], slope: str, whole: Callable[[Any], Any] | None = None, register: str = "") -> Function:
    return Function(evaluate, (slope,), whole, register=register)


def _integral(evaluate: Callable[..., Any], *slopes: str, register: str = "") -> Function:
    """A function that computes integers with the same code as floats."""
    return Function(evaluate, slopes, evaluate, register=register)


def power(x: Any, y: Any) -> Any:
    """x to the power y, as C's ``pow``. NumPy computes the square root of -inf, NaN, if y is 0.5."""
    return type(x)(np.inf) if x == -np.inf and y == 0.5 else np.power(x, y)


def whole_power(x: Any, y: Any) -> Any:
    """The power of integers, by repeated squaring. As in torch, a negative power is 0 unless x is 1 or -1.

    Products of unsigned integers wrap around. LLVM assumes that products of signed ones do not.
    """
    power, square, exponent = np.uint64(1), np.uint64(x), y
    if y < 0:
        return type(x)(1) if x == 1 or (x == -1 and y % 2 == 0) else x if x == -1 else x - x
    while exponent > 0:
        if exponent % 2 == 1:
            power = power * square
        square, exponent = square * square, exponent // 2
    return type(x)(power)


def nonzero(divisor: Any) -> Any:
    """The divisor of an integer.

    Raises:
        DivisionError: it is 0.
    """
    if divisor == 0:
        raise DivisionError(BY_ZERO)
    return divisor


def whole_quotient(x: Any, y: Any) -> Any:
    """The quotient of integers, rounded down. As in torch, the smallest integer divided by -1 is itself."""
    return type(x)(0 - x) if y == -1 else x // y


def whole_remainder(x: Any, y: Any) -> Any:
    """The remainder of integers, with the sign of y. Machine code can't divide the smallest integer by -1."""
    return x - x if y == -1 else x % y


def whole_fmod(x: Any, y: Any) -> Any:
    """The remainder of integers, with the sign of x."""
    remainder = x - x if y == -1 else x % y
    return remainder - y if remainder != 0 and (x < 0) != (y < 0) else remainder


def maximum(a: Any, b: Any) -> Any:
    """The larger of two numbers; NaN if either is NaN."""
    return a if a > b or a != a else b


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two numbers; NaN if either is NaN."""
    return a if a < b or a != a else b


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x limited to the range from low to high; NaN if any argument is NaN."""
    at_least = low if x < low or low != low else x
    return x if x != x else high if at_least > high or high != high else at_least


def lerp(x: Any, y: Any, weight: Any) -> Any:
    """Linear interpolation: x at weight 0, y at weight 1."""
    return x + weight * (y - x) if abs(weight) < 0.5 else y + (weight - 1) * (y - x)


UNARY = {
    "abs": _integral(abs, "(x > 0) - (x < 0)", register="magnitudes"),
    "acos": _unary(_ufunc("arccos"), "-1 / sqrt(1 - x * x)"),
    "acosh": _unary(_ufunc("arccosh"), "1 / sqrt(x * x - 1)"),
    "asin": _unary(_ufunc("arcsin"), "1 / sqrt(1 - x * x)"),
    "asinh": _unary(_ufunc("arcsinh"), "1 / sqrt(x * x + 1)"),
    "atan": _unary(_ufunc("arctan"), "1 / (x * x + 1)"),
    "atanh": _unary(_ufunc("arctanh"), "1 / (1 - x * x)"),
    "ceil": _unary(_ufunc("ceil"), "0", lambda x: x),
    "cos": _unary(_ufunc("cos"), "-sin(x)"),
    "cosh": _unary(_ufunc("cosh"), "sinh(x)"),
    "deg2rad": _unary(_ufunc("deg2rad"), repr(math.pi / 180)),
    "elu": _unary(lambda x: x if x > 0 else np.expm1(x), "where(x <= 0, exp(x), 1)"),
    "erf": _unary(lambda x: math.erf(x), f"{2 / math.sqrt(math.pi)!r} * exp(-1 * (x * x))"),
    "erfc": _unary(lambda x: math.erfc(x), f"{-2 / math.sqrt(math.pi)!r} * exp(-1 * (x * x))"),
    "exp": _unary(_ufunc("exp"), "exp(x)", register="exponentials"),
    "exp2": _unary(_ufunc("exp2"), f"exp2(x) * {math.log(2)!r}"),
    "expm1": _unary(_ufunc("expm1"), "exp(x)"),
    "floor": _unary(_ufunc("floor"), "0", lambda x: x),
    "frac": _unary(lambda x: x - np.trunc(x), "1"),
    "gelu": _unary(
        lambda x: 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476)),
        f"0.5 + 0.5 * erf(x * {math.sqrt(0.5)!r}) + x * ({1 / math.sqrt(2 * math.pi)!r} * exp(-0.5 * (x * x)))",
    ),
    "hardsigmoid": _unary(lambda x: 0.0 if x <= -3 else 1.0 if x >= 3 else (x + 3) / 6, "(x > -3) * (x < 3) / 6"),
    "hardswish": _unary(
        lambda x: x * (0.0 if x <= -3 else 6.0 if x >= 3 else x + 3) / 6,
        "where(x <= -3, 0, where(x < 3, x / 3 + 0.5, 1))",
    ),
    "hardtanh": _integral(lambda x: type(x)(-1) if x < -1 else type(x)(1) if x > 1 else x, "(x <= -1) + (x >= 1) == 0"),
    "isfinite": _unary(lambda x: 1.0 if np.isfinite(x) else 0.0, "0", lambda x: type(x)(1)),
    "isinf": _unary(lambda x: 1.0 if np.isinf(x) else 0.0, "0", lambda x: x - x),
    "isnan": _unary(lambda x: 1.0 if np.isnan(x) else 0.0, "0", lambda x: x - x),
    "log": _unary(_ufunc("log"), "1 / x"),
    "log10": _unary(_ufunc("log10"), f"1 / (x * {math.log(10)!r})"),
    "log1p": _unary(_ufunc("log1p"), "1 / (x + 1)"),
    "log2": _unary(_ufunc("log2"), f"1 / (x * {math.log(2)!r})"),
    "logit": _unary(lambda x: np.log(np.divide(x, 1.0 - x)), "where((x >= 0) * (x <= 1), 1 / (x * (1 - x)), logit(x))"),
    "logsigmoid": _unary(lambda x: (x if x < 0 else 0.0) - np.log1p(np.exp(-abs(x))), "sigmoid(-x)"),
    "mish": _unary(
        lambda x: x * np.tanh((x if x > 0 else 0.0) + np.log1p(np.exp(-abs(x)))),
        "tanh(softplus(x)) + x * sigmoid(x) * (1 - tanh(softplus(x)) * tanh(softplus(x)))",
    ),
    "rad2deg": _unary(_ufunc("rad2deg"), repr(180 / math.pi)),
    "reciprocal": _unary(_ufunc("reciprocal"), "-1 / (x * x)"),
    "relu": _integral(lambda x: x if x > 0 or x != x else type(x)(0), "1 - (x <= 0)", register="relus"),
    "relu6": _integral(lambda x: type(x)(0) if x < 0 else type(x)(6) if x > 6 else x, "(x <= 0) + (x >= 6) == 0"),
    "round": _unary(_ufunc("rint"), "0", lambda x: x),
    "rsqrt": _unary(lambda x: 1.0 / np.sqrt(x), "-0.5 * rsqrt(x) * rsqrt(x) * rsqrt(x)"),
    "selu": _unary(
        lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * np.expm1(x)),
        f"where(x <= 0, {1.0507009873554805 * 1.6732632423543772!r} * exp(x), 1.0507009873554805)",
    ),
    "sigmoid": _unary(lambda x: 1.0 / (1.0 + np.exp(-x)), "sigmoid(x) * (1 - sigmoid(x))", register="sigmoids"),
    "sign": _integral(lambda x: type(x)(1) if x > 0 else type(x)(-1) if x < 0 else type(x)(0), "0"),
    "silu": _unary(lambda x: x / (1.0 + np.exp(-x)), "sigmoid(x) * (1 + x * (1 - sigmoid(x)))"),
    "sin": _unary(_ufunc("sin"), "cos(x)"),
    "sinc": _unary(
        lambda x: 1.0 if x == 0 else np.sin(math.pi * x) / (math.pi * x),
        f"where(x == 0, 0, (cos({math.pi!r} * x) - sinc(x)) / x)",
    ),
    "sinh": _unary(_ufunc("sinh"), "cosh(x)"),
    "softplus": _unary(lambda x: x if x > 20 else np.log1p(np.exp(x)), "where(x > 20, 1, sigmoid(x))"),
    "softsign": _unary(lambda x: x / (1.0 + abs(x)), "1 / ((1 + abs(x)) * (1 + abs(x)))"),
    "sqrt": _unary(_ufunc("sqrt"), "0.5 / sqrt(x)", register="roots"),
    "square": _unary(lambda x: x * x, "2 * x", lambda x: type(x)(np.uint64(x) * np.uint64(x))),
    "tan": _unary(_ufunc("tan"), "1 + tan(x) * tan(x)"),
    "tanh": _unary(_ufunc("tanh"), "1 - tanh(x) * tanh(x)"),
    "tanhshrink": _unary(lambda x: x - np.tanh(x), "tanh(x) * tanh(x)"),
    "trunc": _unary(_ufunc("trunc"), "0", lambda x: x),
}
BINARY = {
    "atan2": Function(
        _ufunc("arctan2"),
        ("where(x * x + y * y == 0, 0, y / (x * x + y * y))", "where(x * x + y * y == 0, 0, -x / (x * x + y * y))"),
    ),
    "copysign": Function(_ufunc("copysign"), ("where(x == 0, 0, copysign(x, y) / x)", "0"), annihilates=True),
    "floor_divide": Function(lambda x, y: x // y, ("0", "0"), whole_quotient, annihilates=True, divides=True),
    "fmax": _integral(_ufunc("fmax"), "(x >= y) + isnan(y) > 0", "(x >= y) + isnan(y) == 0"),
    "fmin": _integral(_ufunc("fmin"), "(x <= y) + isnan(y) > 0", "(x <= y) + isnan(y) == 0"),
    "fmod": Function(_ufunc("fmod"), ("1", "-trunc(x / y)"), whole_fmod, annihilates=True, divides=True),
    "heaviside": _integral(lambda x, y: y if x == 0 else type(y)(x > 0), "0", "x == 0"),
    "hypot": Function(_ufunc("hypot"), ("x / hypot(x, y)", "y / hypot(x, y)")),
    "logaddexp": Function(_ufunc("logaddexp"), ("sigmoid(x - y)", "sigmoid(y - x)")),
    "logaddexp2": Function(_ufunc("logaddexp2"), ("1 / (1 + exp2(y - x))", "1 / (1 + exp2(x - y))")),
    "maximum": _integral(maximum, "1 - (x < y) - 0.5 * (x == y)", "1 - (y < x) - 0.5 * (x == y)", register="larger"),
    "minimum": _integral(minimum, "1 - (x > y) - 0.5 * (x == y)", "1 - (y > x) - 0.5 * (x == y)", register="smaller"),
    "pow": Function(
        power,
        ("where(y == 0, 0, y * pow(x, y - 1))", "where((x == 0) * (y >= 0), 0, pow(x, y) * log(x))"),
        whole_power,
    ),
    "remainder": Function(_ufunc("remainder"), ("1", "-floor_divide(x, y)"), whole_remainder, annihilates=True, divides=True),
    "xlogy": Function(
        lambda x, y: x * np.log(y) if x != 0 or y != y else 0.0,
        ("where((x == 0) * (y <= 0), 0, log(y))", "x / y"),
        annihilates=True,
    ),
}
# the functions of two tensors that broadcast, under torch's names
PAIRS = tuple(name for name, entry in BINARY.items() if not entry.divides and name not in ("heaviside", "pow"))
TERNARY = {
    "clamp": _integral(clamp, "(x >= y) * (x <= z)", "(y < z) * (x < y)", "(x > z) + (z < y) > 0"),
    "lerp": Function(lerp, ("1 - z", "z", "y - x")),
    "where": _integral(lambda condition, a, b: a if condition != 0 else b, "0", "x != 0", "x == 0", register="selected"),
}
# all element-wise functions, by their names in statements
FUNCTIONS: dict[str, Function] = {**UNARY, **BINARY, **TERNARY}
# the functions with separate code for integers, by their names in generated source
WHOLE = {f"whole_{name}": entry.whole for name, entry in FUNCTIONS.items() if entry.whole is not None and entry.whole is not entry.evaluate}


def routine_of(name: str, dtype: str) -> str:
    """The name of a function in generated source, for arguments of a data type.

    >>> routine_of("floor", "float32"), routine_of("floor", "int8"), routine_of("relu", "int8")
    ('floor', 'whole_floor', 'relu')
    """
    return f"whole_{name}" if DTYPES[dtype].kind == "integer" and f"whole_{name}" in WHOLE else name
