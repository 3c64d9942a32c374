"""Intrinsics that append the kept lanes of a tile to a result side by side, without a branch for each lane.

``checked_intrinsics`` has the same functions in plain Python.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from .intrinsics import I64, _place, _shuffled, masks_of, numbers, store_register
from .registers import I32, broadcast, call_llvm, constant, joined, optional, registers_of, spread, suffix

COMPRESSING = "+avx512vl"  # processor feature that packs the lanes of a register in one instruction


def _packed(builder: Any, value: Any, mask: Any) -> Any:
    """Pack the lanes of a mask side by side; the lanes behind them are undefined."""
    args = [value, mask, ir.Constant(value.type, ir.Undefined)]
    return call_llvm(builder, f"experimental.vector.compress.{suffix(value.type)}", value.type, args)


def _append_register(context: Any, builder: Any, arrays: Any, at: Any, base: Any, value: Any, kept: Any, first: Any, element: Any) -> Any:
    """Append the kept lanes of one register and their coordinates; return the position behind them."""
    values, crd = arrays
    mask = builder.fcmp_unordered("!=", kept, ir.Constant(kept.type, None))
    mask = mask if first is None else builder.and_(mask, first)
    bits = builder.zext(builder.bitcast(mask, ir.IntType(mask.type.count)), I64)
    packs = COMPRESSING in str(context.codegen().magic_tuple())  # without the instruction, packing is slow: skipped if no lane is kept
    with nullcontext() if packs else builder.if_then(builder.icmp_unsigned("!=", bits, ir.Constant(I64, 0)), likely=False):
        store_register(builder, _packed(builder, value, mask), _place(builder, values, at, value.type), first)
        wide = ir.VectorType(element, value.type.count)
        lanes = _packed(builder, numbers(value.type.count), mask)
        lanes = lanes if element == I32 else builder.zext(lanes, wide)
        start = base if element == I64 else builder.trunc(base, element)
        store_register(builder, builder.add(lanes, spread(builder, start, wide)), _place(builder, crd, at, wide), first)
    return builder.add(at, call_llvm(builder, "ctpop.i64", I64, [bits]))


@intrinsic
def appended(typingctx: Any, values: Any, crd: Any, position: Any, coordinate: Any, value: Any, kept: Any, left: Any = None) -> Any:
    """Append the lanes of ``value`` where ``kept`` is nonzero, and their coordinates; return the position behind them.

    ``coordinate`` is that of the first lane. Each register may write as many places as it has lanes; places behind the kept
    lanes get undefined values. ``left`` is the number of lanes to append of the last register.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, base = (context.cast(builder, args[n], sig.args[n], types.int64) for n in (2, 3))
        masks = masks_of(context, builder, value, args[6], sig.args[6])
        registers = zip(broadcast(builder, args[4:6], value.vector), masks, strict=True)
        for number, ((register, flags), first) in enumerate(registers):
            start = builder.add(base, ir.Constant(I64, number * value.lanes)) if number else base
            at = _append_register(context, builder, args[:2], at, start, register, flags, first, context.get_value_type(crd.dtype))
        return at

    return types.int64(values, crd, position, coordinate, value, kept, optional(left)), codegen


def _ranks(builder: Any, sizes: Any, m: int) -> Any:
    """Count, for each lane, the larger lanes in its block of m; of equal lanes, the lanes behind it count as larger."""
    lanes = sizes.type.count
    integers, bit = ir.VectorType(I32, lanes), ir.VectorType(ir.IntType(1), lanes)
    ranks = ir.Constant(integers, None)
    for step in range(1, m):
        picks = [lane - lane % m + (lane + step) % m for lane in range(lanes)]
        other = _shuffled(builder, sizes, sizes, picks)
        behind = ir.Constant(bit, [ir.Constant(ir.IntType(1), int(pick > lane)) for lane, pick in enumerate(picks)])
        equal = builder.and_(builder.fcmp_ordered("==", other, sizes), behind)
        ranks = builder.add(ranks, builder.zext(builder.or_(builder.fcmp_ordered(">", other, sizes), equal), integers))
    return ranks


def _largest(builder: Any, value: Any, first: Any, n: int, m: int) -> Any:
    """Return 1 in the n largest lanes of each block, 0 in the others. NaN is never less than another lane, and so is kept."""
    sizes = call_llvm(builder, f"fabs.{suffix(value.type)}", value.type, [value])
    sizes = sizes if first is None else builder.select(first, sizes, constant(value.type, -1.0))
    ranks = _ranks(builder, sizes, m)
    best = builder.icmp_unsigned("<", ranks, constant(ranks.type, n))
    return builder.select(best, constant(value.type, 1.0), constant(value.type, 0.0))


@intrinsic(prefer_literal=True)
def largest(typingctx: Any, value: Any, n: Any, m: Any, left: Any = None) -> Any:
    """Return 1 in the n lanes with the largest magnitudes of each block of m, else 0; of equal lanes, the last. m divides the lanes.

    Lanes of the last register from ``left`` on are less than any other.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        masks = masks_of(context, builder, value, args[3], sig.args[3])
        registers = zip(registers_of(builder, args[0]), masks, strict=True)
        return joined(builder, [_largest(builder, *each, n.literal_value, m.literal_value) for each in registers])

    return value(value, n, m, optional(types.unliteral(left))), codegen
