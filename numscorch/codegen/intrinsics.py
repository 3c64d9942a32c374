"""Intrinsics that generated source calls: unchecked pointers and SIMD registers for Numba, built with llvmlite.

Numba's arrays wrap negative indices around on every access, and its LLVM pipeline doesn't keep a tile of accumulators in
registers. Most intrinsics are one machine instruction for each register of a tile. ``checked_intrinsics`` has the same
functions in plain Python.
"""

from __future__ import annotations

import sys
from functools import partial, reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from ..errors import DivisionError
from ..ir.function_table import BY_ZERO
from .registers import (
    I32,
    RegisterTile,
    broadcast,
    call_llvm,
    elementwise,
    joined,
    optional,
    reduction,
    registers_of,
    spread,
    suffix,
    tile_of,
)

CONTRACT = ("contract",)
I64 = ir.IntType(64)
I8 = ir.IntType(8)


def _place(builder: Any, pointer_: Any, index: Any, vector: Any) -> Any:
    return builder.bitcast(builder.gep(pointer_, [index]), vector.as_pointer())


def _places(builder: Any, pointer_: Any, index: Any, vector: Any, count: int) -> list[Any]:
    """Return pointers to the registers of a tile, which are contiguous in memory."""
    first = _place(builder, pointer_, index, vector)
    return [first, *(builder.gep(first, [ir.Constant(I64, register)]) for register in range(1, count))]


def _align(vector: Any) -> int:
    return 8 if vector.element == ir.DoubleType() else 4


def numbers(lanes: int) -> Any:
    """Return a register with the lanes 0, 1, 2, ..."""
    return ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, lane) for lane in range(lanes)])


def _first(context: Any, builder: Any, count: Any, count_type: Any, lanes: int) -> Any:
    """Return a mask of the first ``count`` lanes."""
    narrow = context.cast(builder, count, count_type, types.int32)
    return builder.icmp_signed("<", numbers(lanes), spread(builder, narrow, ir.VectorType(I32, lanes)))


def masks_of(context: Any, builder: Any, tile: RegisterTile, left: Any, left_type: Any) -> list[Any]:
    """Return a mask for each register of a tile; None stands for all lanes. ``left``, if given, limits the lanes of the last one."""
    last = None if isinstance(left_type, types.Omitted) else _first(context, builder, left, left_type, tile.lanes)
    return [*[None] * (tile.count - 1), last]


def _load_register(builder: Any, vector: Any, place: Any, mask: Any) -> Any:
    """Load a register. If there is a mask, its other lanes are 0."""
    align = _align(vector)
    if mask is None:
        return builder.load(place, align=align)
    args = [place, ir.Constant(I32, align), mask, ir.Constant(vector, None)]
    return call_llvm(builder, f"masked.load.{suffix(vector)}.p0", vector, args)


def store_register(builder: Any, value: Any, place: Any, mask: Any) -> None:
    """Store a register, or only the lanes of the mask if there is one."""
    align = _align(value.type)
    if mask is None:
        builder.store(value, place, align=align)
    else:
        call_llvm(builder, f"masked.store.{suffix(value.type)}.p0", ir.VoidType(), [value, place, ir.Constant(I32, align), mask])


@intrinsic
def pointer(typingctx: Any, array: Any) -> Any:
    """Return the array's data as a raw pointer: p[i] is one unchecked load, without wrap-around."""
    signature = types.CPointer(array.dtype)(array)
    return signature, lambda context, builder, sig, args: cgutils.create_struct_proxy(array)(context, builder, args[0]).data


@intrinsic
def rolled(typingctx: Any, value: Any) -> Any:
    """Return the integer unchanged, and keep LLVM from unrolling or vectorising the enclosing loop."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = context.cast(builder, args[0], value, types.int64)
        identity = ir.InlineAsm(ir.FunctionType(I64, [I64]), "", "=r,0", side_effect=False)
        return builder.call(identity, [wide], attrs=("convergent", "nounwind", "readnone"))

    return types.int64(value), codegen


@intrinsic(prefer_literal=True)
def splat(typingctx: Any, value: Any, lanes: Any, count: Any = None) -> Any:
    """Return a tile with one value in every lane."""
    scalar = types.unliteral(value)
    tile = tile_of(scalar, lanes, count)

    signature = tile(scalar, lanes, optional(count))
    return signature, lambda context, builder, sig, args: joined(builder, [spread(builder, args[0], tile.vector)] * tile.count)


@intrinsic(prefer_literal=True)
def load(typingctx: Any, array: Any, index: Any, lanes: Any, count: Any = None, left: Any = None) -> Any:
    """array[index : index + lanes * count]. ``left`` is the number of lanes to load of the last register; its other lanes are 0."""
    tile = tile_of(array.dtype, lanes, count)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = _places(builder, args[0], args[1], tile.vector, tile.count)
        masks = masks_of(context, builder, tile, args[4], sig.args[4])
        return joined(builder, [_load_register(builder, tile.vector, *each) for each in zip(places, masks, strict=True)])

    return tile(array, types.unliteral(index), lanes, optional(count), optional(types.unliteral(left))), codegen


@intrinsic(prefer_literal=True)
def every(typingctx: Any, array: Any, index: Any, at: Any, step: Any, lanes: Any) -> Any:
    """array[index + at : index + step * lanes : step], chosen from ``step`` whole registers."""
    tile, apart = RegisterTile(array.dtype, lanes.literal_value), step.literal_value
    chosen = range(at.literal_value, apart * tile.lanes, apart)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = ir.VectorType(context.get_value_type(array.dtype), apart * tile.lanes)
        ((place,), align) = _places(builder, args[0], args[1], wide, 1), _align(tile.vector)
        whole = builder.load(place, align=align)
        return _shuffled(builder, whole, whole, chosen)

    return tile(array, types.unliteral(index), at, step, lanes), codegen


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Load the cache line of array[index] into the nearest cache; the index may be outside the array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _place(builder, args[0], args[1], I8)
        call_llvm(builder, "prefetch.p0", ir.VoidType(), [place, *(ir.Constant(I32, number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, index), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any, left: Any = None) -> Any:
    """array[index : index + lanes * count] = value. ``left`` is the number of lanes to store of the last register."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = _places(builder, args[0], args[1], value.vector, value.count)
        masks = masks_of(context, builder, value, args[3], sig.args[3])
        for each in zip(registers_of(builder, args[2]), places, masks, strict=True):
            store_register(builder, *each)
        return context.get_dummy_value()

    return types.void(array, index, value, optional(left)), codegen


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c of registers; the contract flag lets LLVM fuse the operations."""
    return builder.fadd(builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)


def _add(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=CONTRACT)


@intrinsic
def dot(typingctx: Any, a: Any, b: Any, total: Any) -> Any:
    """Return the register ``total`` plus the products of the registers of a and b, added in order."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = broadcast(builder, args[:2], total.vector)
        return reduce(lambda register, pair: fused(builder, pair[0], pair[1], register), pairs, args[2])

    return total(a, b, total), codegen


@intrinsic
def dots(typingctx: Any, a: Any, b: Any, c: Any, d: Any, e: Any, total: Any) -> Any:
    """Return a tile of four registers: ``total`` plus the products of a with b, c, d and e, each added as by ``dot``.

    The four sums are interleaved, so that their dependency chains overlap.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sums = registers_of(builder, args[5])
        for left, *others in broadcast(builder, args[:5], total.vector):
            sums = [fused(builder, left, right, register) for right, register in zip(others, sums, strict=True)]
        return joined(builder, sums)

    return total(a, b, c, d, e, total), codegen


@intrinsic
def accumulate(typingctx: Any, total: Any, value: Any) -> Any:
    """Return the register ``total`` plus the registers of a tile, added in order."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return reduce(partial(_add, builder), registers_of(builder, args[1]), args[0])

    return total(total, value), codegen


@intrinsic
def first_lanes(typingctx: Any, new: Any, old: Any, count: Any) -> Any:
    """Return the first ``count`` lanes of ``new`` and the remaining lanes of ``old``."""
    plain = types.unliteral(count)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        mask = _first(context, builder, args[2], plain, args[0].type.count)
        return builder.select(mask, args[0], args[1])

    return new(new, old, plain), codegen


@intrinsic
def at_most(typingctx: Any, a: Any, b: Any) -> Any:
    """Return -1, a mask with all bits set, if a <= b, and 0 otherwise. The difference of coordinates can't overflow.

    The mask is the sign of the difference, because LLVM would turn a comparison into a branch.
    """
    result = a if a == b and a in (types.int32, types.int64) else types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        left, right = (context.cast(builder, value, of, result) for value, of in zip(args, sig.args, strict=True))
        beyond = builder.sub(builder.sub(left, right), ir.Constant(left.type, 1))
        return builder.ashr(beyond, ir.Constant(left.type, result.bitwidth - 1))

    return result(a, b), codegen


@intrinsic
def masked(typingctx: Any, value: Any, mask: Any) -> Any:
    """Return the value if all bits of the mask are set, and 0 if none is."""
    plain = types.unliteral(value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = ir.IntType(plain.bitwidth)
        wide = context.cast(builder, args[1], sig.args[1], types.int64 if plain.bitwidth == 64 else types.int32)
        return builder.bitcast(builder.and_(builder.bitcast(args[0], bits), wide), args[0].type)

    return plain(plain, mask), codegen


@intrinsic
def stored_product(typingctx: Any, row: Any, value: Any) -> Any:
    """Return row * value, and 0 where no bit of ``row`` is set: the row has no entry there, and the value may be infinite.

    ``row`` is a number or a register; a number repeats for every lane of a register. Numbers are masked by the sign of the bits or of
    their negation, because LLVM would turn a comparison into a branch.
    """
    scalar, is_register = types.unliteral(value), isinstance(row, RegisterTile)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        stored, factor = args
        if not is_register:
            number = ir.IntType(row.bitwidth)
            bits = builder.bitcast(stored, number)
            sign = builder.ashr(builder.or_(bits, builder.neg(bits)), ir.Constant(number, row.bitwidth - 1))
            product = builder.bitcast(builder.fmul(stored, context.cast(builder, factor, scalar, row)), number)
            return builder.bitcast(builder.and_(product, sign), stored.type)
        wide = factor if isinstance(value, RegisterTile) else spread(builder, factor, stored.type)
        lanes = ir.VectorType(ir.IntType(row.dtype.bitwidth), row.lanes)
        is_stored = builder.icmp_signed("!=", builder.bitcast(stored, lanes), ir.Constant(lanes, None))
        return builder.select(is_stored, builder.fmul(stored, wide), ir.Constant(stored.type, None))

    return row(row, scalar), codegen


def _sum(builder: Any, tile: Any) -> Any:
    """Return the sum of a tile's values: registers are added pairwise, then the lanes of one register."""
    registers = registers_of(builder, tile)
    while len(registers) > 1:
        pairs = [_add(builder, *pair) for pair in zip(registers[::2], registers[1::2], strict=False)]
        registers = pairs + registers[2 * len(pairs) :]
    vector = registers[0].type
    args = [ir.Constant(vector.element, -0.0), registers[0]]
    return call_llvm(builder, f"vector.reduce.fadd.{suffix(vector)}", vector.element, args, fastmath=("reassoc",))


add = elementwise(_add)
mul = elementwise(lambda builder, a, b: builder.fmul(a, b, flags=CONTRACT))
fma = elementwise(fused)
hsum = reduction(_sum)


def _halved(builder: Any, value: Any, lanes: int) -> Any:
    """Add the upper half of a register to the lower half until ``lanes`` lanes are left."""
    while value.type.count > lanes:
        half = value.type.count // 2
        low, high = (_shuffled(builder, value, value, range(at, at + half)) for at in (0, half))
        value = builder.fadd(low, high)
    return value


def _shuffled(builder: Any, left: Any, right: Any, lanes: Any) -> Any:
    picks = [ir.Constant(I32, lane) for lane in lanes]
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, len(picks)), picks))


def _paired(builder: Any, x: Any, y: Any) -> Any:
    """Return two partial sums of each of two registers with four lanes, as the lanes x, y, x, y."""
    return builder.fadd(_shuffled(builder, x, y, (0, 4, 1, 5)), _shuffled(builder, x, y, (2, 6, 3, 7)))


@intrinsic
def hsums(typingctx: Any, a: Any, b: Any = None, c: Any = None, d: Any = None) -> Any:
    """Return the sums of four registers, or of the four registers of a tile, as the lanes of one register. All share a few shuffles."""
    tile, optionals = RegisterTile(a.dtype, 4), tuple(map(optional, (b, c, d)))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        registers = registers_of(builder, args[0]) if a.count > 1 else args
        one, two, three, four = (_halved(builder, value, 4) for value in registers)
        left, right = _paired(builder, one, two), _paired(builder, three, four)
        return builder.fadd(_shuffled(builder, left, right, (0, 1, 4, 5)), _shuffled(builder, left, right, (2, 3, 6, 7)))

    return tile(a, *optionals), codegen


def _coordinates(context: Any, builder: Any, place: Any, dtype: Any, lanes: int) -> list[Any]:
    """Load consecutive coordinates as 64-bit integers. 32-bit coordinates are loaded in pairs, because loads limit a gather."""
    if dtype.bitwidth != 32 or sys.byteorder != "little":
        at = (builder.gep(place, [ir.Constant(I32, lane)]) for lane in range(lanes))
        return [context.cast(builder, builder.load(one), dtype, types.int64) for one in at]
    pairs = builder.bitcast(place, I64.as_pointer())
    halves = []
    for pair in range(lanes // 2):
        both = builder.load(builder.gep(pairs, [ir.Constant(I32, pair)]), align=4)
        halves += [builder.sext(builder.trunc(both, I32), I64), builder.ashr(both, ir.Constant(I64, 32))]
    return halves


@intrinsic(prefer_literal=True)
def gather(typingctx: Any, array: Any, base: Any, stride: Any, crd: Any, position: Any, lanes: Any) -> Any:
    """array[base + stride * crd[position : position + lanes]], loaded lane by lane, which is faster than the gather instruction."""
    register = RegisterTile(array.dtype, lanes.literal_value)
    plain = tuple(types.unliteral(t) for t in (base, stride, position))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start, step, first = (context.cast(builder, args[n], sig.args[n], types.int64) for n in (1, 2, 4))
        value = ir.Constant(context.get_value_type(register), ir.Undefined)
        coordinates = _coordinates(context, builder, builder.gep(args[3], [first]), crd.dtype, register.lanes)
        for lane, coordinate in enumerate(coordinates):
            index = builder.add(start, builder.mul(step, coordinate))
            value = builder.insert_element(value, builder.load(builder.gep(args[0], [index])), ir.Constant(I32, lane))
        return value

    return register(array, plain[0], plain[1], crd, plain[2], lanes), codegen


@intrinsic(prefer_literal=True)
def transpose(typingctx: Any, source: Any, at: Any, apart: Any, target: Any, to: Any, between: Any, lanes: Any) -> Any:
    """target[to + between * c + r] = source[at + apart * r + c] for r and c below lanes, by register shuffles."""
    register = RegisterTile(source.dtype, lanes.literal_value)
    plain = tuple(types.unliteral(t) for t in (at, apart, to, between))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector, count = context.get_value_type(register), register.lanes
        start, step, first, stride = (context.cast(builder, args[n], sig.args[n], types.int64) for n in (1, 2, 4, 5))

        def place(pointer_: Any, base: Any, times: Any, row: int) -> Any:
            return _place(builder, pointer_, builder.add(base, builder.mul(times, ir.Constant(I64, row))), vector)

        rows = [builder.load(place(args[0], start, step, row), align=_align(vector)) for row in range(count)]
        for row, value in enumerate(_transposed(builder, rows)):
            builder.store(value, place(args[3], first, stride, row), align=_align(vector))
        return context.get_dummy_value()

    return types.void(source, plain[0], plain[1], target, plain[2], plain[3], lanes), codegen


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Transpose rows: swap the off-diagonal blocks of half the size, then of a quarter, and so on."""
    count, apart = len(rows), len(rows) // 2
    while apart:
        for at in (row for row in range(count) if not row & apart):
            upper, lower = rows[at], rows[at + apart]
            left = [lane if not lane & apart else count + lane - apart for lane in range(count)]
            right = [lane + apart if not lane & apart else count + lane for lane in range(count)]
            rows[at], rows[at + apart] = _shuffled(builder, upper, lower, left), _shuffled(builder, upper, lower, right)
        apart //= 2
    return rows


@intrinsic
def lowest_bit(typingctx: Any, bits: Any) -> Any:
    """Return the index of the lowest set bit of a nonzero integer."""
    return types.int64(bits), lambda context, builder, sig, args: builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))


def _wrapping(operation: str) -> Any:
    """An operation on integers whose result wraps around, in the type of the first operand.

    Numba computes in 64 bits, and LLVM assumes that its signed operations do not overflow.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, operation)(args[0], context.cast(builder, args[1], sig.args[1], sig.args[0]))

    return intrinsic(lambda typingctx, a, b: (a(a, b), codegen))


wrapping_add, wrapping_sub, wrapping_mul = map(_wrapping, ("add", "sub", "mul"))


@intrinsic
def nonzero(typingctx: Any, divisor: Any) -> Any:
    """Return the divisor of an integer. If it is 0, the function ends and raises DivisionError."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        with cgutils.if_unlikely(builder, builder.icmp_signed("==", args[0], args[0].type(0))):
            context.call_conv.return_user_exc(builder, DivisionError, (BY_ZERO,))
        return args[0]

    return divisor(divisor), codegen


@intrinsic(prefer_literal=True)
def on_stack(typingctx: Any, count: Any) -> Any:
    """Allocate ``count`` 64-bit integers on the stack of the function."""
    size = ir.Constant(I64, count.literal_value)
    return types.CPointer(types.int64)(count), lambda context, builder, sig, args: cgutils.alloca_once(builder, I64, size=size)


@intrinsic
def shifted(typingctx: Any, array: Any, offset: Any) -> Any:
    """Return the pointer to array[offset]."""
    return array(array, offset), lambda context, builder, sig, args: builder.gep(args[0], [args[1]])
