"""What generated source calls to append a tile's lanes to a result: those that are kept, side by side, without a branch for each.

``twins`` holds the same functions for plain Python.
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

COMPRESSING = "+avx512vl"  # the feature with which a machine packs the lanes of a register in one instruction


def _numbers(lanes: int) -> Any:
    """0, 1, 2, ..., a lane each."""
    return ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, lane) for lane in range(lanes)])


def _truths(builder: Any, value: Any) -> Any:
    """A mask of the lanes that aren't 0."""
    return builder.fcmp_unordered("!=", value, ir.Constant(value.type, None))


def _packed(builder: Any, value: Any, mask: Any, suffix: str) -> Any:
    """The lanes of a mask side by side, and anything behind them."""
    signature = ir.FunctionType(value.type, [value.type, mask.type, value.type])
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.experimental.vector.compress.{suffix}")
    return builder.call(function, [value, mask, ir.Constant(value.type, ir.Undefined)])


def _counted(builder: Any, mask: Any) -> tuple[Any, Any]:
    """The mask as the bits of a number, and how many are set."""
    bits = builder.zext(builder.bitcast(mask, ir.IntType(mask.type.count)), I64)
    signature = ir.FunctionType(I64, [I64])
    return bits, builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.ctpop.i64"), [bits])


@contextmanager
def _where_any(context: Any, builder: Any, bits: Any) -> Iterator[None]:
    """What takes long where the machine doesn't pack lanes is left out where no lane is kept."""
    if COMPRESSING in str(context.codegen().magic_tuple()):
        yield
    else:
        with builder.if_then(builder.icmp_unsigned("!=", bits, ir.Constant(I64, 0)), likely=False):
            yield


def _stored(builder: Any, pointer_: Any, at: Any, value: Any, first: Any) -> None:
    """Store a register at a place: all of it, or what the mask ``first`` has of it."""
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
    """Store the kept lanes and their coordinates from a position on; the position behind them."""
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
    """The same of one register."""
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
    """Append the lanes of ``value`` where ``kept`` isn't 0, and their coordinates, of which the first lane's is given.

    For each register, as many places as there are lanes may be written, the last of them with anything. The position behind what is
    kept.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _append(context, builder, sig, args, None)

    return types.int64(values, crd, position, coordinate, value, kept), codegen


@intrinsic
def appended_first(typingctx: Any, values: Any, crd: Any, position: Any, coordinate: Any, value: Any, kept: Any, left: Any) -> Any:
    """The same, but of the last register only the first ``left`` lanes."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _append(context, builder, sig, args, _first(context, builder, args[6], sig.args[6], value.lanes))

    return types.int64(values, crd, position, coordinate, value, kept, left), codegen


def _ranks(builder: Any, sizes: Any, m: int) -> Any:
    """How many lanes of its block of m are larger than each lane; of equal ones, those behind it are."""
    lanes = sizes.type.count
    whole, bit = ir.VectorType(I32, lanes), ir.VectorType(ir.IntType(1), lanes)
    ranks = ir.Constant(whole, None)
    for step in range(1, m):
        picks = [lane - lane % m + (lane + step) % m for lane in range(lanes)]
        other = _shuffled(builder, sizes, sizes, picks)
        behind = ir.Constant(bit, [ir.Constant(ir.IntType(1), int(pick > lane)) for lane, pick in enumerate(picks)])
        equal = builder.and_(builder.fcmp_ordered("==", other, sizes), behind)
        ranks = builder.add(ranks, builder.zext(builder.or_(builder.fcmp_ordered(">", other, sizes), equal), whole))
    return ranks


def _largest(builder: Any, value: Any, n: int, m: int, first: Any) -> Any:
    """1 in the n largest lanes of each block, 0 in the others. NaN is larger than none and less than none, and so kept."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(value.type, [value.type]), f"llvm.fabs.{_suffix(value.type)}")
    sizes, one = builder.call(function, [value]), ir.Constant(value.type.element, 1.0)
    below = ir.Constant(value.type, [ir.Constant(value.type.element, -1.0)] * value.type.count)
    sizes = sizes if first is None else builder.select(first, sizes, below)
    ranks = _ranks(builder, sizes, m)
    best = builder.icmp_unsigned("<", ranks, ir.Constant(ranks.type, [ir.Constant(I32, n)] * ranks.type.count))
    return builder.select(best, ir.Constant(value.type, [one] * value.type.count), ir.Constant(value.type, None))


def _largest_of(builder: Any, tile: Any, n: Any, m: Any, first: Any) -> Any:
    """The same of each register; ``first`` is a mask of the last one."""
    *whole, last = registers_of(builder, tile)
    ranked = [_largest(builder, register, n.literal_value, m.literal_value, None) for register in whole]
    return joined(builder, [*ranked, _largest(builder, last, n.literal_value, m.literal_value, first)])


@intrinsic(prefer_literal=True)
def largest(typingctx: Any, value: Any, n: Any, m: Any) -> Any:
    """1 where a lane is one of the n largest of its block of m, which divides the lanes: by absolute values, of equal ones the last."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _largest_of(builder, args[0], n, m, None)

    return value(value, n, m), codegen


@intrinsic(prefer_literal=True)
def largest_first(typingctx: Any, value: Any, n: Any, m: Any, left: Any) -> Any:
    """The same, where the last register's lanes from ``left`` on are less than any."""
    plain = types.unliteral(left)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _largest_of(builder, args[0], n, m, _first(context, builder, args[3], sig.args[3], value.lanes))

    return value(value, n, m, plain), codegen
