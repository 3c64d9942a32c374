"""What generated source calls: unchecked pointers and SIMD registers for Numba, by llvmlite.

Numba's arrays wrap negative indices around on every access, and its LLVM pipeline doesn't keep a
tile of accumulators in registers.  A dozen intrinsics say what the machine can do, one instruction for each register of
a tile; ``twins`` holds the same functions for plain Python.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from .registers import I32, RegisterTile, broadcast, joined, mapped, optional, registers_of, spread, tile_of

CONTRACT = ("contract",)
I64 = ir.IntType(64)


def _place(builder: Any, pointer_: Any, index: Any, vector: Any) -> Any:
    return builder.bitcast(builder.gep(pointer_, [index]), vector.as_pointer())


def _places(builder: Any, pointer_: Any, index: Any, vector: Any, count: int) -> list[Any]:
    """Where the registers of a tile lie in memory, one after the other."""
    first = _place(builder, pointer_, index, vector)
    return [first, *(builder.gep(first, [ir.Constant(I64, register)]) for register in range(1, count))]


def _align(vector: Any) -> int:
    return 8 if vector.element == ir.DoubleType() else 4


def _first(context: Any, builder: Any, count: Any, count_type: Any, lanes: int) -> Any:
    """A mask of the first ``count`` lanes."""
    narrow = context.cast(builder, count, count_type, types.int32)
    numbers = ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, n) for n in range(lanes)])
    return builder.icmp_signed("<", numbers, spread(builder, narrow, ir.VectorType(I32, lanes)))


def _suffix(vector: Any) -> str:
    return f"v{vector.count}f{64 if vector.element == ir.DoubleType() else 32}"


@intrinsic
def pointer(typingctx: Any, array: Any) -> Any:
    """The array's data as a raw pointer: p[i] is one load, without wrap-around and unchecked."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def rolled(typingctx: Any, value: Any) -> Any:
    """The integer itself; LLVM leaves the loop around it as it is written, as one whose trips depend on each other."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = context.cast(builder, args[0], value, types.int64)
        itself = ir.InlineAsm(ir.FunctionType(I64, [I64]), "", "=r,0", side_effect=False)
        return builder.call(itself, [wide], attrs=("convergent", "nounwind", "readnone"))

    return types.int64(value), codegen


@intrinsic(prefer_literal=True)
def splat(typingctx: Any, value: Any, lanes: Any, count: Any = None) -> Any:
    """A tile with one value in every lane."""
    scalar = types.unliteral(value)
    tile = tile_of(scalar, lanes, count)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return joined(builder, [spread(builder, args[0], tile.vector)] * tile.count)

    return tile(scalar, lanes, optional(count)), codegen


@intrinsic(prefer_literal=True)
def load(typingctx: Any, array: Any, index: Any, lanes: Any, count: Any = None) -> Any:
    """array[index : index + lanes * count]"""
    tile = tile_of(array.dtype, lanes, count)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = _places(builder, args[0], args[1], tile.vector, tile.count)
        return joined(builder, [builder.load(place, align=_align(tile.vector)) for place in places])

    return tile(array, types.unliteral(index), lanes, optional(count)), codegen


@intrinsic(prefer_literal=True)
def load_first(typingctx: Any, array: Any, index: Any, left: Any, lanes: Any, count: Any = None) -> Any:
    """The same, but of the last register only the first ``left`` lanes, and 0 in its others."""
    tile = tile_of(array.dtype, lanes, count)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        *whole, last = _places(builder, args[0], args[1], tile.vector, tile.count)
        mask = _first(context, builder, args[2], sig.args[2], tile.lanes)
        signature = ir.FunctionType(tile.vector, [last.type, I32, mask.type, tile.vector])
        function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.load.{_suffix(tile.vector)}.p0")
        align = _align(tile.vector)
        masked_ = builder.call(function, [last, ir.Constant(I32, align), mask, ir.Constant(tile.vector, None)])
        return joined(builder, [*(builder.load(place, align=align) for place in whole), masked_])

    return tile(array, types.unliteral(index), types.unliteral(left), lanes, optional(count)), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index : index + lanes * count] = value"""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = _places(builder, args[0], args[1], value.vector, value.count)
        for register, place in zip(registers_of(builder, args[2]), places, strict=True):
            builder.store(register, place, align=_align(value.vector))
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


@intrinsic
def store_first(typingctx: Any, array: Any, index: Any, value: Any, left: Any) -> Any:
    """The same, but of the last register only the first ``left`` lanes."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        *whole, last = zip(registers_of(builder, args[2]), _places(builder, args[0], args[1], value.vector, value.count), strict=True)
        for register, place in whole:
            builder.store(register, place, align=_align(value.vector))
        mask = _first(context, builder, args[3], sig.args[3], value.lanes)
        signature = ir.FunctionType(ir.VoidType(), [value.vector, last[1].type, I32, mask.type])
        function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.store.{_suffix(value.vector)}.p0")
        builder.call(function, [*last, ir.Constant(I32, _align(value.vector)), mask])
        return context.get_dummy_value()

    return types.void(array, index, value, left), codegen


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c of registers; the contract flag lets LLVM fuse it."""
    return builder.fadd(builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)


def _added(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=CONTRACT)


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c"""
    return mapped(fused, a, b, c)


@intrinsic
def dot(typingctx: Any, a: Any, b: Any, total: Any) -> Any:
    """A register, to which the products of the registers of a and b are added one after the other."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        register = args[2]
        for left, right in broadcast(builder, args[:2], total.vector):
            register = fused(builder, left, right, register)
        return register

    return total(a, b, total), codegen


@intrinsic
def dots(typingctx: Any, a: Any, b: Any, c: Any, d: Any, e: Any, total: Any) -> Any:
    """A tile of four registers, to which the products of a with b, c, d and e are added as ``dot`` does.

    The four sums take turns, so that none waits for the last product of another.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sums = registers_of(builder, args[5])
        for left, *others in broadcast(builder, args[:5], total.vector):
            sums = [fused(builder, left, right, register) for right, register in zip(others, sums, strict=True)]
        return joined(builder, sums)

    return total(a, b, c, d, e, total), codegen


@intrinsic
def accumulate(typingctx: Any, total: Any, value: Any) -> Any:
    """A register, to which the registers of a tile are added one after the other."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        register = args[0]
        for other in registers_of(builder, args[1]):
            register = _added(builder, register, other)
        return register

    return total(total, value), codegen


@intrinsic
def first_lanes(typingctx: Any, new: Any, old: Any, count: Any) -> Any:
    """The first ``count`` lanes of one register, and the others of another."""
    plain = types.unliteral(count)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        mask = _first(context, builder, args[2], plain, args[0].type.count)
        return builder.select(mask, args[0], args[1])

    return new(new, old, plain), codegen


@intrinsic
def at_most(typingctx: Any, a: Any, b: Any) -> Any:
    """-1, which has all bits set, where a <= b, and 0 elsewhere: of coordinates, so that the difference can't overflow.

    By its sign rather than a comparison, from which LLVM would make a branch.
    """
    result = a if a == b and a in (types.int32, types.int64) else types.int64

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        left, right = (context.cast(builder, value, of, result) for value, of in zip(args, sig.args, strict=True))
        beyond = builder.sub(builder.sub(left, right), ir.Constant(left.type, 1))
        return builder.ashr(beyond, ir.Constant(left.type, result.bitwidth - 1))

    return result(a, b), codegen


@intrinsic
def masked(typingctx: Any, value: Any, mask: Any) -> Any:
    """value where all bits of the mask are set, and 0 where none is"""
    plain = types.unliteral(value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = ir.IntType(plain.bitwidth)
        wide = context.cast(builder, args[1], sig.args[1], types.int64 if plain.bitwidth == 64 else types.int32)
        return builder.bitcast(builder.and_(builder.bitcast(args[0], bits), wide), args[0].type)

    return plain(plain, mask), codegen


@intrinsic
def mul(typingctx: Any, a: Any, b: Any) -> Any:
    """a * b"""
    return mapped(lambda builder, left, right: builder.fmul(left, right, flags=CONTRACT), a, b)


@intrinsic
def add(typingctx: Any, a: Any, b: Any) -> Any:
    """a + b"""
    return mapped(_added, a, b)


@intrinsic
def hsum(typingctx: Any, value: Any) -> Any:
    """The sum of a tile's values: registers are added in pairs, then the lanes of one."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        register, vector = _summed(builder, registers_of(builder, args[0])), value.vector
        signature = ir.FunctionType(vector.element, [vector.element, vector])
        function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.vector.reduce.fadd.{_suffix(vector)}")
        return builder.call(function, [ir.Constant(vector.element, -0.0), register], fastmath=("reassoc",))

    return value.dtype(value), codegen


def _summed(builder: Any, registers: list[Any]) -> Any:
    """Neighbours are added, then the sums of neighbours, and so on."""
    while len(registers) > 1:
        pairs = [_added(builder, *pair) for pair in zip(registers[::2], registers[1::2], strict=False)]
        registers = pairs + registers[2 * len(pairs) :]
    return registers[0]


def _halved(builder: Any, value: Any, lanes: int) -> Any:
    """Add the upper half of a register to the lower until so many lanes are left."""
    while value.type.count > lanes:
        half = value.type.count // 2
        low, high = (_shuffled(builder, value, value, range(at, at + half)) for at in (0, half))
        value = builder.fadd(low, high)
    return value


def _shuffled(builder: Any, left: Any, right: Any, lanes: Any) -> Any:
    picks = [ir.Constant(I32, lane) for lane in lanes]
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, len(picks)), picks))


def _paired(builder: Any, x: Any, y: Any) -> Any:
    """Of two registers of four lanes, two partial sums each: x, y, x, y."""
    return builder.fadd(_shuffled(builder, x, y, (0, 4, 1, 5)), _shuffled(builder, x, y, (2, 6, 3, 7)))


@intrinsic
def hsums(typingctx: Any, a: Any, b: Any = None, c: Any = None, d: Any = None) -> Any:
    """The sums of four registers, or of a tile's four, as the lanes of one register: a few shuffles for all of them."""
    tile, others = RegisterTile(a.dtype, 4), tuple(map(optional, (b, c, d)))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        registers = registers_of(builder, args[0]) if a.count > 1 else args
        one, two, three, four = (_halved(builder, value, 4) for value in registers)
        left, right = _paired(builder, one, two), _paired(builder, three, four)
        return builder.fadd(_shuffled(builder, left, right, (0, 1, 4, 5)), _shuffled(builder, left, right, (2, 3, 6, 7)))

    return tile(a, *others), codegen


def _coordinates(context: Any, builder: Any, place: Any, dtype: Any, lanes: int) -> list[Any]:
    """Consecutive coordinates as 64-bit integers; 32-bit ones are loaded in pairs, since loads are what a gather waits for."""
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
    """array[base + stride * crd[position : position + lanes]], lane by lane: faster here than the gather instruction."""
    register = RegisterTile(array.dtype, lanes.literal_value)
    plain = tuple(types.unliteral(t) for t in (base, stride, position))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = types.int64
        start, step, first = (context.cast(builder, args[n], sig.args[n], wide) for n in (1, 2, 4))
        value = ir.Constant(context.get_value_type(register), ir.Undefined)
        coordinates = _coordinates(context, builder, builder.gep(args[3], [first]), crd.dtype, register.lanes)
        for lane, coordinate in enumerate(coordinates):
            index = builder.add(start, builder.mul(step, coordinate))
            value = builder.insert_element(value, builder.load(builder.gep(args[0], [index])), ir.Constant(I32, lane))
        return value

    return register(array, plain[0], plain[1], crd, plain[2], lanes), codegen


@intrinsic(prefer_literal=True)
def transpose(typingctx: Any, source: Any, at: Any, apart: Any, target: Any, to: Any, between: Any, lanes: Any) -> Any:
    """target[to + between * c + r] = source[at + apart * r + c] for r and c below lanes, by shuffles of registers."""
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
    """Rows as columns: blocks off the diagonal are exchanged, of half the size, of a quarter, and so on."""
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
    """The place of the lowest bit that is set; some bit is."""
    return types.int64(bits), lambda context, builder, sig, args: builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))


@intrinsic(prefer_literal=True)
def on_stack(typingctx: Any, count: Any) -> Any:
    """An array of ``count`` integers that lasts as long as the function: kernels allocate no other memory."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return cgutils.alloca_once(builder, I64, size=ir.Constant(I64, count.literal_value))

    return types.CPointer(types.int64)(count), codegen


@intrinsic
def shifted(typingctx: Any, array: Any, offset: Any) -> Any:
    """The pointer to array[offset]"""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return array(array, offset), codegen
