"""Element-wise functions of SIMD registers, for all lanes at once and without branches.

They have the semantics of ``ir.functions``. LLVM lowers a vector ``exp`` to a call for each lane, so this file computes it from
arithmetic instructions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir

from .intrinsics import CONTRACT, I64, _shuffled, fused
from .registers import I32, call_llvm, constant, elementwise, reduction, suffix


@dataclass(frozen=True, slots=True)
class Exponential:
    """Constants for e**x = 2**n * e**r in a data type, with abs(r) < ln(2) / 2.

    The result is 0 below ``least`` and inf above ``most``. ``high`` is ln(2) with so few bits that its product with n is
    exact, and ``low`` is the remainder (Cody and Waite 1980, chapter 6). ``degree`` is that of the polynomial for e**r,
    ``mantissa`` the number of mantissa bits, and ``bias`` that of the exponent.
    """

    least: float
    most: float
    high: float
    low: float
    degree: int
    mantissa: int
    bias: int


SINGLE = Exponential(-104.0, 89.0, 355 / 512, -2.121944400546905827e-4, 7, 23, 127)
DOUBLE = Exponential(-746.0, 710.0, 45426 / 65536, 1.42860682030941723212e-6, 13, 52, 1023)


def _call(builder: Any, name: str, value: Any) -> Any:
    """Call an LLVM intrinsic that maps a register to a register."""
    return call_llvm(builder, f"{name}.{suffix(value.type)}", value.type, [value])


def _compare(op: str, builder: Any, a: Any, b: Any) -> Any:
    """Return 1 where the comparison holds and 0 elsewhere; with NaN only != holds."""
    compare = builder.fcmp_unordered if op == "!=" else builder.fcmp_ordered
    return builder.select(compare(op, a, b), constant(a.type, 1.0), constant(a.type, 0.0))


def _extreme(op: str, builder: Any, a: Any, b: Any) -> Any:
    """Return the larger (``>``) or smaller (``<``) value of each lane; NaN if either is NaN.

    The machine instruction returns its second operand if one is NaN, so only the first operand is tested for NaN.
    """
    chosen = builder.select(builder.fcmp_ordered(op, a, b), a, b)
    return builder.select(builder.fcmp_unordered("uno", a, a), a, chosen)


def _extreme_lane(op: str, builder: Any, value: Any) -> Any:
    """Return the largest or smallest lane, NaN if any is NaN, by halving; the middle one of an odd number is in both halves."""
    while (count := value.type.count) > 1:
        half = (count + 1) // 2
        low, high = (_shuffled(builder, value, value, range(at, at + half)) for at in (0, count - half))
        value = _extreme(op, builder, low, high)
    return builder.extract_element(value, ir.Constant(I32, 0))


def _exponential(builder: Any, x: Any) -> Any:
    """Return e**x, with an error of at most 2 units in the last place."""
    how = DOUBLE if x.type.element == ir.DoubleType() else SINGLE
    for op, bound in ((">", constant(x.type, how.most)), ("<", constant(x.type, how.least))):
        x = builder.select(builder.fcmp_ordered(op, x, bound), bound, x)  # NaN stays NaN
    # adding the rounder rounds the product to an integer, which is then in the lowest bits of the sum
    rounder = 1.5 * 2.0**how.mantissa
    rounded = fused(builder, x, constant(x.type, math.log2(math.e)), constant(x.type, rounder))
    n = builder.fsub(rounded, constant(x.type, rounder))
    r = fused(builder, n, constant(x.type, -how.low), fused(builder, n, constant(x.type, -how.high), x))
    value = constant(x.type, 1 / math.factorial(how.degree))
    for power in reversed(range(how.degree)):
        value = fused(builder, value, r, constant(x.type, 1 / math.factorial(power)))
    for scale in _powers_of_two(builder, rounded, how):
        value = builder.fmul(value, scale)
    return value


def _powers_of_two(builder: Any, rounded: Any, how: Exponential) -> list[Any]:
    """Return two numbers whose product is 2**n. One number could overflow or underflow; only the last product rounds."""
    integers = ir.VectorType(I64 if how is DOUBLE else I32, rounded.type.count)
    rounder = (how.bias + how.mantissa << how.mantissa) + (1 << how.mantissa - 1)  # bit pattern of 1.5 * 2**mantissa
    exponents = builder.sub(builder.bitcast(rounded, integers), constant(integers, rounder - 2 * how.bias))
    first = builder.lshr(exponents, constant(integers, 1))
    halves = (first, builder.sub(exponents, first))
    return [builder.bitcast(builder.shl(e, constant(integers, how.mantissa)), rounded.type) for e in halves]


def _sigmoid(builder: Any, x: Any) -> Any:
    one = constant(x.type, 1.0)
    return builder.fdiv(one, builder.fadd(one, _exponential(builder, builder.fneg(x))))


def _relu(builder: Any, x: Any) -> Any:
    zero = constant(x.type, 0.0)
    return builder.select(builder.fcmp_unordered(">", x, zero), x, zero)


def _selected(builder: Any, condition: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_unordered("!=", condition, constant(condition.type, 0.0)), a, b)


sub = elementwise(lambda builder, a, b: builder.fsub(a, b, flags=CONTRACT))
div = elementwise(lambda builder, a, b: builder.fdiv(a, b, flags=CONTRACT))
larger, smaller = (elementwise(partial(_extreme, op)) for op in (">", "<"))
lt, le, gt, ge, eq, ne = (elementwise(partial(_compare, op)) for op in ("<", "<=", ">", ">=", "==", "!="))
relus = elementwise(_relu)
magnitudes = elementwise(lambda builder, x: _call(builder, "fabs", x))
roots = elementwise(lambda builder, x: _call(builder, "sqrt", x))  # NaN for negative values
exponentials = elementwise(_exponential)
sigmoids = elementwise(_sigmoid)
selected = elementwise(_selected)
hmax, hmin = (reduction(partial(_extreme_lane, op)) for op in (">", "<"))
