"""Intrinsics that append the kept lanes of a tile to a result side by side, without a branch for each lane.

``checked_intrinsics`` has the same functions in plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from .intrinsics import I64, _align, _first, _place, _shuffled, _suffix
from .registers import I32, broadcast, joined, registers_of, spread

COMPRESSING = "+avx512vl"  # processor feature that packs the lanes of a register in one instruction


def _numbers(lanes: int) -> Any:
    """Return a register with the lanes 0, 1, 2, ..."""
    return ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, lane) for lane in range(lanes)])


def _truths(builder: Any, value: Any) -> Any:
    """Return a mask of the nonzero lanes."""
    return builder.fcmp_unordered("!=", value, ir.Constant(value.type, None))


def _packed(builder: Any, value: Any, mask: Any, suffix: str) -> Any:
    """Pack the lanes of a mask side by side; the lanes behind them are undefined."""
    signature = ir.FunctionType(value.type, [value.type, mask.type, value.type])
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.experimental.vector.compress.{suffix}")
    return builder.call(function, [value, mask, ir.Constant(value.type, ir.Undefined)])


def _counted(builder: Any, mask: Any) -> tuple[Any, Any]:
    """Return the mask as an integer, and its number of set bits."""
    bits = builder.zext(builder.bitcast(mask, ir.IntType(mask.type.count)), I64)
    signature = ir.FunctionType(I64, [I64])
    return bits, builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.ctpop.i64"), [bits])


@contextmanager
def _where_any(context: Any, builder: Any, bits: Any) -> Iterator[None]:
    """Skip the code within if no lane is kept, on machines without an instruction that packs lanes: packing is slow there."""
    if COMPRESSING in str(context.codegen().magic_tuple()):
        yield
    else:
        with builder.if_then(builder.icmp_unsigned("!=", bits, ir.Constant(I64, 0)), likely=False):
            yield


def _stored(builder: Any, pointer_: Any, at: Any, value: Any, first: Any) -> None:
    """Store a register at a place: all lanes, or the lanes of the mask ``first`` if it is given."""
    place = _place(builder, pointer_, at, value.type)
    align = _align(value.type) if value.type.element != I32 else 4
    if first is None:
        builder.store(value, place, align=align)
        return
    suffix = f"v{value.type.count}i{value.type.element.width}" if isinstance(value.type.element, ir.IntType) else _suffix(value.type)
    signature = ir.FunctionType(ir.VoidType(), [value.type, place.type, I32, first.type])
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.store.{suffix}.p0")
    builder.call(function, [value, place, ir.Constant(I32, align), first])


def _append(context: Any, builder: Any, sig: Any, args: Any, left: Any) -> Any:
    """Store the kept lanes and their coordinates from a position on; return the position behind them."""
    values, crd = args[:2]
    at, base = (context.cast(builder, args[n], sig.args[n], types.int64) for n in (2, 3))
    tile, element = sig.args[4], context.get_value_type(sig.args[1].dtype)
    registers = broadcast(builder, args[4:6], tile.vector)
    for number, (value, kept) in enumerate(registers):
        first = left if number == len(registers) - 1 else None
        start = builder.add(base, ir.Constant(I64, number * tile.lanes)) if number else base
        at = _append_register(context, builder, (values, crd, at, start, value, kept, element), first)
    return at


def _append_register(context: Any, builder: Any, args: Any, first: Any) -> Any:
    """Append the kept lanes of one register."""
    values, crd, at, base, value, kept, element = args
    mask = _truths(builder, kept) if first is None else builder.and_(_truths(builder, kept), first)
    bits, count = _counted(builder, mask)
    lanes = value.type.count
    with _where_any(context, builder, bits):
        _stored(builder, values, at, _packed(builder, value, mask, _suffix(value.type)), first)
        numbers = _packed(builder, _numbers(lanes), mask, f"v{lanes}i32")
        wide = ir.VectorType(element, lanes)
        numbers = numbers if element == I32 else builder.zext(numbers, wide)
        start = base if element == I64 else builder.trunc(base, element)
        _stored(builder, crd, at, builder.add(numbers, spread(builder, start, wide)), first)
    return builder.add(at, count)


@intrinsic
def appended(typingctx: Any, values: Any, crd: Any, position: Any, coordinate: Any, value: Any, kept: Any) -> Any:
    """Append the lanes of ``value`` where ``kept`` is nonzero, and their coordinates; return the position behind them.

    ``coordinate`` is that of the first lane. Each register may write as many places as it has lanes; places behind the kept
    lanes get undefined values.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _append(context, builder, sig, args, None)

    return types.int64(values, crd, position, coordinate, value, kept), codegen


@intrinsic
def appended_first(typingctx: Any, values: Any, crd: Any, position: Any, coordinate: Any, value: Any, kept: Any, left: Any) -> Any:
    """Append like ``appended``, but only the first ``left`` lanes of the last register."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _append(context, builder, sig, args, _first(context, builder, args[6], sig.args[6], value.lanes))

    return types.int64(values, crd, position, coordinate, value, kept, left), codegen


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


def _largest(builder: Any, value: Any, n: int, m: int, first: Any) -> Any:
    """Return 1 in the n largest lanes of each block, 0 in the others. NaN is never less than another lane, and so is kept."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(value.type, [value.type]), f"llvm.fabs.{_suffix(value.type)}")
    sizes, one = builder.call(function, [value]), ir.Constant(value.type.element, 1.0)
    below = ir.Constant(value.type, [ir.Constant(value.type.element, -1.0)] * value.type.count)
    sizes = sizes if first is None else builder.select(first, sizes, below)
    ranks = _ranks(builder, sizes, m)
    best = builder.icmp_unsigned("<", ranks, ir.Constant(ranks.type, [ir.Constant(I32, n)] * ranks.type.count))
    return builder.select(best, ir.Constant(value.type, [one] * value.type.count), ir.Constant(value.type, None))


def _largest_of(builder: Any, tile: Any, n: Any, m: Any, first: Any) -> Any:
    """Apply ``_largest`` to each register; ``first`` is a mask of the last one."""
    *full, last = registers_of(builder, tile)
    masks = [_largest(builder, register, n.literal_value, m.literal_value, None) for register in full]
    return joined(builder, [*masks, _largest(builder, last, n.literal_value, m.literal_value, first)])


@intrinsic(prefer_literal=True)
def largest(typingctx: Any, value: Any, n: Any, m: Any) -> Any:
    """Return 1 in the n lanes with the largest magnitudes of each block of m, else 0; of equal lanes, the last. m divides the lanes."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _largest_of(builder, args[0], n, m, None)

    return value(value, n, m), codegen


@intrinsic(prefer_literal=True)
def largest_first(typingctx: Any, value: Any, n: Any, m: Any, left: Any) -> Any:
    """Rank like ``largest``; lanes of the last register from ``left`` on are less than any other."""
    plain = types.unliteral(left)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _largest_of(builder, args[0], n, m, _first(context, builder, args[3], sig.args[3], value.lanes))

    return value(value, n, m, plain), codegen
