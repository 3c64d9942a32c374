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

from .intrinsics import CONTRACT, I32, I64, _shuffled, _suffix


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


def _fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)


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
    rounded = _fused(builder, x, _all(x.type, math.log2(math.e)), _all(x.type, rounder))
    n = builder.fsub(rounded, _all(x.type, rounder))
    r = _fused(builder, n, _all(x.type, -how.low), _fused(builder, n, _all(x.type, -how.high), x))
    value = _all(x.type, 1 / math.factorial(how.degree))
    for power in reversed(range(how.degree)):
        value = _fused(builder, value, r, _all(x.type, 1 / math.factorial(power)))
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


@intrinsic
def sub(typingctx: Any, a: Any, b: Any) -> Any:
    """a - b"""
    return a(a, b), lambda context, builder, sig, args: builder.fsub(*args, flags=CONTRACT)


@intrinsic
def div(typingctx: Any, a: Any, b: Any) -> Any:
    """a / b"""
    return a(a, b), lambda context, builder, sig, args: builder.fdiv(*args, flags=CONTRACT)


@intrinsic
def larger(typingctx: Any, a: Any, b: Any) -> Any:
    """The larger one in each lane; NaN if either is."""
    return a(a, b), lambda context, builder, sig, args: _extreme(builder, ">", *args)


@intrinsic
def smaller(typingctx: Any, a: Any, b: Any) -> Any:
    """The smaller one in each lane; NaN if either is."""
    return a(a, b), lambda context, builder, sig, args: _extreme(builder, "<", *args)


@intrinsic
def relus(typingctx: Any, a: Any) -> Any:
    """a, or 0 where it is negative."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        zero = _all(args[0].type, 0.0)
        return builder.select(builder.fcmp_unordered(">", args[0], zero), args[0], zero)

    return a(a), codegen


@intrinsic
def magnitudes(typingctx: Any, a: Any) -> Any:
    """|a|"""
    return a(a), lambda context, builder, sig, args: _called(builder, "fabs", args[0])


@intrinsic
def roots(typingctx: Any, a: Any) -> Any:
    """The square roots: NaN below 0."""
    return a(a), lambda context, builder, sig, args: _called(builder, "sqrt", args[0])


@intrinsic
def exponentials(typingctx: Any, a: Any) -> Any:
    """e to the power of a, in at most 2 units of the last place."""
    return a(a), lambda context, builder, sig, args: _exponential(builder, args[0])


@intrinsic
def sigmoids(typingctx: Any, a: Any) -> Any:
    """1 / (1 + exp(-a))"""
    return a(a), lambda context, builder, sig, args: _sigmoid(builder, args[0])


@intrinsic
def selected(typingctx: Any, condition: Any, a: Any, b: Any) -> Any:
    """a where the condition isn't 0, else b."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_unordered("!=", args[0], _all(args[0].type, 0.0)), args[1], args[2])

    return a(condition, a, b), codegen


@intrinsic
def lt(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a < b, else 0"""
    return a(a, b), lambda context, builder, sig, args: _compared(builder, "<", *args)


@intrinsic
def le(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a <= b, else 0"""
    return a(a, b), lambda context, builder, sig, args: _compared(builder, "<=", *args)


@intrinsic
def gt(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a > b, else 0"""
    return a(a, b), lambda context, builder, sig, args: _compared(builder, ">", *args)


@intrinsic
def ge(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a >= b, else 0"""
    return a(a, b), lambda context, builder, sig, args: _compared(builder, ">=", *args)


@intrinsic
def eq(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a == b, else 0"""
    return a(a, b), lambda context, builder, sig, args: _compared(builder, "==", *args)


@intrinsic
def ne(typingctx: Any, a: Any, b: Any) -> Any:
    """1 where a != b, else 0"""
    return a(a, b), lambda context, builder, sig, args: _compared(builder, "!=", *args)


@intrinsic
def hmax(typingctx: Any, value: Any) -> Any:
    """The largest lane; NaN if any is."""
    return value.dtype(value), lambda context, builder, sig, args: _reduced(builder, ">", args[0])


@intrinsic
def hmin(typingctx: Any, value: Any) -> Any:
    """The smallest lane; NaN if any is."""
    return value.dtype(value), lambda context, builder, sig, args: _reduced(builder, "<", args[0])
