"""Element-wise functions of SIMD registers: what ``ir.functions`` means, for all lanes at once and without branches.

LLVM has no vector form of ``exp`` but a call for each lane, so it is made here from what the machine has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.extending import intrinsic

from .intrinsics import CONTRACT, I64, _shuffled, _suffix, fused
from .registers import I32, mapped


@dataclass(frozen=True, slots=True)
class Exponential:
    """How e to the power of x is computed in a data type: 2**n * e**r, where r is less than ln(2) / 2 either way.

    Beyond ``least`` and ``most`` it is 0 and inf.  ``high`` is ln(2) in so few bits that its product with n is
    exact, and ``low`` is the rest (Cody and Waite 1980, chapter 6).
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


def _all(vector: Any, value: float) -> Any:
    """A register of one number."""
    return ir.Constant(vector, [ir.Constant(vector.element, value)] * vector.count)


def _called(builder: Any, name: str, value: Any) -> Any:
    """LLVM's intrinsic from a register to a register."""
    signature = ir.FunctionType(value.type, [value.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, f"llvm.{name}.{_suffix(value.type)}"), [value])


def _compared(builder: Any, op: str, a: Any, b: Any) -> Any:
    """1 where the comparison holds and 0 elsewhere; with NaN only != does."""
    compare = builder.fcmp_unordered if op == "!=" else builder.fcmp_ordered
    return builder.select(compare(op, a, b), _all(a.type, 1.0), _all(a.type, 0.0))


def _extreme(builder: Any, op: str, a: Any, b: Any) -> Any:
    """The machine's own maximum is the second value if one is NaN, so that NaN is left to look for in the first."""
    chosen = builder.select(builder.fcmp_ordered(op, a, b), a, b)
    return builder.select(builder.fcmp_unordered("uno", a, a), a, chosen)


def _reduced(builder: Any, op: str, value: Any) -> Any:
    """The extreme lane, by halves; of an odd number of lanes, the middle one is in both."""
    while (count := value.type.count) > 1:
        half = (count + 1) // 2
        low, high = (_shuffled(builder, value, value, range(at, at + half)) for at in (0, count - half))
        value = _extreme(builder, op, low, high)
    return builder.extract_element(value, ir.Constant(I32, 0))


def _exponential(builder: Any, x: Any) -> Any:
    how = DOUBLE if x.type.element == ir.DoubleType() else SINGLE
    for op, bound in ((">", _all(x.type, how.most)), ("<", _all(x.type, how.least))):
        x = builder.select(builder.fcmp_ordered(op, x, bound), bound, x)  # NaN passes
    # The sum's last bit is a whole number: it is rounded to one, which its lowest bits are
    rounder = 1.5 * 2.0**how.mantissa
    rounded = fused(builder, x, _all(x.type, math.log2(math.e)), _all(x.type, rounder))
    n = builder.fsub(rounded, _all(x.type, rounder))
    r = fused(builder, n, _all(x.type, -how.low), fused(builder, n, _all(x.type, -how.high), x))
    value = _all(x.type, 1 / math.factorial(how.degree))
    for power in reversed(range(how.degree)):
        value = fused(builder, value, r, _all(x.type, 1 / math.factorial(power)))
    for scale in _powers_of_two(builder, rounded, how):
        value = builder.fmul(value, scale)
    return value


def _powers_of_two(builder: Any, rounded: Any, how: Exponential) -> list[Any]:
    """Two numbers whose product is 2**n: that may be too small or too large for one, and is rounded once, at the last."""
    whole = ir.VectorType(I64 if how is DOUBLE else I32, rounded.type.count)
    rounder = (how.bias + how.mantissa << how.mantissa) + (1 << how.mantissa - 1)  # its bits
    exponents = builder.sub(builder.bitcast(rounded, whole), _all(whole, rounder - 2 * how.bias))
    first = builder.lshr(exponents, _all(whole, 1))
    both = (first, builder.sub(exponents, first))
    return [builder.bitcast(builder.shl(e, _all(whole, how.mantissa)), rounded.type) for e in both]


def _sigmoid(builder: Any, x: Any) -> Any:
    one = _all(x.type, 1.0)
    return builder.fdiv(one, builder.fadd(one, _exponential(builder, builder.fneg(x))))


def _relu(builder: Any, x: Any) -> Any:
    zero = _all(x.type, 0.0)
    return builder.select(builder.fcmp_unordered(">", x, zero), x, zero)


def _selected(builder: Any, condition: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_unordered("!=", condition, _all(condition.type, 0.0)), a, b)


@intrinsic
def sub(typingctx: Any, a: Any, b: Any) -> Any:
    """a - b"""
    return mapped(lambda builder, *each: builder.fsub(*each, flags=CONTRACT), a, b)


@intrinsic
def div(typingctx: Any, a: Any, b: Any) -> Any:
    """a / b"""
    return mapped(lambda builder, *each: builder.fdiv(*each, flags=CONTRACT), a, b)


@intrinsic
def larger(typingctx: Any, a: Any, b: Any) -> Any:
    """The larger one in each lane; NaN if either is."""
    return mapped(lambda builder, *each: _extreme(builder, ">", *each), a, b)


@intrinsic
def smaller(typingctx: Any, a: Any, b: Any) -> Any:
    """The smaller one in each lane; NaN if either is."""
    return mapped(lambda builder, *each: _extreme(builder, "<", *each), a, b)


@intrinsic
def relus(typingctx: Any, a: Any) -> Any:
    """a, or 0 where it is negative."""
    return mapped(_relu, a)


@intrinsic
def magnitudes(typingctx: Any, a: Any) -> Any:
    """|a|"""
    return mapped(lambda builder, x: _called(builder, "fabs", x), a)


@intrinsic
def roots(typingctx: Any, a: Any) -> Any:
    """The square roots: NaN below 0."""
    return mapped(lambda builder, x: _called(builder, "sqrt", x), a)


@intrinsic
def exponentials(typingctx: Any, a: Any) -> Any:
    """e to the power of a, in at most 2 units of the last place."""
    return mapped(_exponential, a)


@intrinsic
def sigmoids(typingctx: Any, a: Any) -> Any:
    """1 / (1 + exp(-a))"""
    return mapped(_sigmoid, a)


@intrinsic
def selected(typingctx: Any, condition: Any, a: Any, b: Any) -> Any:
    """a where the condition isn't 0, else b."""
    return mapped(_selected, condition, a, b)


@intrinsic
def lt(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a < b, else 0"""
    return mapped(lambda builder, *each: _compared(builder, "<", *each), a, b)


@intrinsic
def le(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a <= b, else 0"""
    return mapped(lambda builder, *each: _compared(builder, "<=", *each), a, b)


@intrinsic
def gt(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a > b, else 0"""
    return mapped(lambda builder, *each: _compared(builder, ">", *each), a, b)


@intrinsic
def ge(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a >= b, else 0"""
    return mapped(lambda builder, *each: _compared(builder, ">=", *each), a, b)


@intrinsic
def eq(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a == b, else 0"""
    return mapped(lambda builder, *each: _compared(builder, "==", *each), a, b)


@intrinsic
def ne(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a != b, else 0"""
    return mapped(lambda builder, *each: _compared(builder, "!=", *each), a, b)


@intrinsic
def hmax(typingctx: Any, value: Any) -> Any:
    """The largest lane of a register; NaN if any is."""
    return value.dtype(value), lambda context, builder, sig, args: _reduced(builder, ">", args[0])


@intrinsic
def hmin(typingctx: Any, value: Any) -> Any:
    """The smallest lane of a register; NaN if any is."""
    return value.dtype(value), lambda context, builder, sig, args: _reduced(builder, "<", args[0])
