"""What generated source calls: unchecked pointers and SIMD registers for Numba, by llvmlite.

Numba's arrays wrap negative indices around on every access, and its LLVM pipeline doesn't keep a
tile of accumulators in registers.  A dozen intrinsics say what the machine can do; ``twins`` holds
the same functions for plain Python.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.core.extending import intrinsic, register_model

CONTRACT = ("contract",)
I32, I64 = ir.IntType(32), ir.IntType(64)
SCALARS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


class Register(types.Type):  # type: ignore[misc]
    """A SIMD register of ``lanes`` values."""

    def __init__(self, dtype: Any, lanes: int):
        self.dtype, self.lanes = dtype, lanes
        super().__init__(name=f"Register({dtype}, {lanes})")


@register_model(Register)
class RegisterModel(PrimitiveModel):  # type: ignore[misc]
    """A register is an LLVM vector."""

    def __init__(self, dmm: Any, fe_type: Register):
        super().__init__(dmm, fe_type, ir.VectorType(SCALARS[fe_type.dtype], fe_type.lanes))


def _place(builder: Any, pointer_: Any, index: Any, vector: Any) -> Any:
    return builder.bitcast(builder.gep(pointer_, [index]), vector.as_pointer())


def _align(vector: Any) -> int:
    return 8 if vector.element == ir.DoubleType() else 4


def _spread(builder: Any, scalar: Any, vector: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(I32, vector.count), None))


def _first(context: Any, builder: Any, count: Any, count_type: Any, lanes: int) -> Any:
    """A mask of the first ``count`` lanes."""
    narrow = context.cast(builder, count, count_type, types.int32)
    numbers = ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, n) for n in range(lanes)])
    return builder.icmp_signed("<", numbers, _spread(builder, narrow, ir.VectorType(I32, lanes)))


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
def splat(typingctx: Any, value: Any, lanes: Any) -> Any:
    """A register with one value in every lane."""
    scalar = types.unliteral(value)
    register = Register(scalar, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _spread(builder, args[0], context.get_value_type(register))

    return register(scalar, lanes), codegen


@intrinsic(prefer_literal=True)
def load(typingctx: Any, array: Any, index: Any, lanes: Any) -> Any:
    """array[index : index + lanes]"""
    register = Register(array.dtype, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(register)
        return builder.load(_place(builder, args[0], args[1], vector), align=_align(vector))

    return register(array, types.unliteral(index), lanes), codegen


@intrinsic(prefer_literal=True)
def load_first(typingctx: Any, array: Any, index: Any, count: Any, lanes: Any) -> Any:
    """array[index : index + count], and 0 in the lanes past count."""
    register = Register(array.dtype, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(register)
        mask = _first(context, builder, args[2], sig.args[2], register.lanes)
        place = _place(builder, args[0], args[1], vector)
        signature = ir.FunctionType(vector, [place.type, I32, mask.type, vector])
        function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.load.{_suffix(vector)}.p0")
        return builder.call(function, [place, ir.Constant(I32, _align(vector)), mask, ir.Constant(vector, None)])

    return register(array, types.unliteral(index), types.unliteral(count), lanes), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index : index + lanes] = value"""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = args[2].type
        builder.store(args[2], _place(builder, args[0], args[1], vector), align=_align(vector))
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


@intrinsic
def store_first(typingctx: Any, array: Any, index: Any, value: Any, count: Any) -> Any:
    """array[index : index + count] = the first lanes of value"""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = args[2].type
        mask = _first(context, builder, args[3], sig.args[3], vector.count)
        place = _place(builder, args[0], args[1], vector)
        signature = ir.FunctionType(ir.VoidType(), [vector, place.type, I32, mask.type])
        function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.store.{_suffix(vector)}.p0")
        builder.call(function, [args[2], place, ir.Constant(I32, _align(vector)), mask])
        return context.get_dummy_value()

    return types.void(array, index, value, count), codegen


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c; the contract flag lets LLVM fuse it."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fadd(builder.fmul(args[0], args[1], flags=CONTRACT), args[2], flags=CONTRACT)

    return a(a, b, c), codegen


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
    return a(a, b), lambda context, builder, sig, args: builder.fmul(args[0], args[1], flags=CONTRACT)


@intrinsic
def add(typingctx: Any, a: Any, b: Any) -> Any:
    """a + b"""
    return a(a, b), lambda context, builder, sig, args: builder.fadd(args[0], args[1], flags=CONTRACT)


@intrinsic
def hsum(typingctx: Any, value: Any) -> Any:
    """The sum of a register's lanes, in pairs."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = args[0].type
        signature = ir.FunctionType(vector.element, [vector.element, vector])
        function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.vector.reduce.fadd.{_suffix(vector)}")
        return builder.call(function, [ir.Constant(vector.element, -0.0), args[0]], fastmath=("reassoc",))

    return value.dtype(value), codegen


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
def hsums(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sums of four registers, as the lanes of one: a few shuffles for all of them."""
    register = Register(a.dtype, 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, b, c, d = (_halved(builder, value, 4) for value in args)
        left, right = _paired(builder, a, b), _paired(builder, c, d)
        return builder.fadd(_shuffled(builder, left, right, (0, 1, 4, 5)), _shuffled(builder, left, right, (2, 3, 6, 7)))

    return register(a, b, c, d), codegen


def _coordinates(context: Any, builder: Any, place: Any, dtype: Any, lanes: int) -> list[Any]:
    """Consecutive coordinates as 64-bit integers; 32-bit ones are loaded in pairs, since loads are what a gather waits for."""
    if dtype.bitwidth != 32 or sys.byteorder != "little":
        at = (builder.gep(place, [ir.Constant(I32, lane)]) for lane in range(lanes))
        return [context.cast(builder, builder.load(one), dtype, types.int64) for one in at]
    pairs = builder.bitcast(place, I64.as_pointer())
    found = []
    for pair in range(lanes // 2):
        both = builder.load(builder.gep(pairs, [ir.Constant(I32, pair)]), align=4)
        found += [builder.sext(builder.trunc(both, I32), I64), builder.ashr(both, ir.Constant(I64, 32))]
    return found


@intrinsic(prefer_literal=True)
def gather(typingctx: Any, array: Any, base: Any, stride: Any, crd: Any, position: Any, lanes: Any) -> Any:
    """array[base + stride * crd[position : position + lanes]], lane by lane: faster here than the gather instruction."""
    register = Register(array.dtype, lanes.literal_value)
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
    register = Register(source.dtype, lanes.literal_value)
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


@intrinsic
def shifted(typingctx: Any, array: Any, offset: Any) -> Any:
    """The pointer to array[offset]"""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return array(array, offset), codegen


NAMES = (
    *("add", "at_most", "fma", "gather", "hsum", "hsums", "load", "load_first", "masked", "mul", "pointer", "shifted", "splat"),
    *("first_lanes", "store", "store_first", "transpose"),
)
