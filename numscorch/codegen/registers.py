"""Tiles: one or more SIMD registers as one Numba value, and helpers that apply intrinsics to each register.

A tile of several registers is an LLVM array of native vectors. LLVM would split a vector wider than the machine's, which is
slow unless its number of lanes is a power of two. LLVM splits arrays into their vectors before it allocates registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.core.extending import intrinsic, register_model

I32 = ir.IntType(32)
SCALARS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
Each = Callable[..., Any]  # function of the builder and one register of each tile


class RegisterTile(types.Type):  # type: ignore[misc]
    """``count`` SIMD registers of ``lanes`` values each."""

    def __init__(self, dtype: Any, lanes: int, count: int = 1):
        self.dtype, self.lanes, self.count = dtype, lanes, count
        super().__init__(name=f"Tile({dtype}, {lanes} x {count})")

    @property
    def vector(self) -> Any:
        """The LLVM type of a register."""
        return ir.VectorType(SCALARS[self.dtype], self.lanes)


@register_model(RegisterTile)
class TileModel(PrimitiveModel):  # type: ignore[misc]
    """The LLVM type of a tile: a vector for one register, an array of vectors for several."""

    def __init__(self, dmm: Any, fe_type: RegisterTile):
        super().__init__(dmm, fe_type, fe_type.vector if fe_type.count == 1 else ir.ArrayType(fe_type.vector, fe_type.count))


def tile_of(dtype: Any, lanes: Any, count: Any) -> RegisterTile:
    """Return the tile of a call with a literal shape; no count means one register."""
    return RegisterTile(dtype, lanes.literal_value, 1 if count is None else count.literal_value)


def optional(argument: Any) -> Any:
    """Return the type of an argument that may be omitted."""
    return types.Omitted(None) if argument is None else argument


def constant(vector: Any, value: float) -> Any:
    """Return a register with a constant in every lane."""
    return ir.Constant(vector, [ir.Constant(vector.element, value)] * vector.count)


def spread(builder: Any, scalar: Any, vector: Any) -> Any:
    """Return a register with one value in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(I32, vector.count), None))


def registers_of(builder: Any, tile: Any) -> list[Any]:
    """Return the registers of a tile."""
    if not isinstance(tile.type, ir.ArrayType):
        return [tile]
    return [builder.extract_value(tile, register) for register in range(tile.type.count)]


def joined(builder: Any, registers: Sequence[Any]) -> Any:
    """Return the tile of these registers."""
    if len(registers) == 1:
        return registers[0]
    tile = ir.Constant(ir.ArrayType(registers[0].type, len(registers)), ir.Undefined)
    for at, register in enumerate(registers):
        tile = builder.insert_value(tile, register, at)
    return tile


def broadcast(builder: Any, values: Sequence[Any], vector: Any) -> list[tuple[Any, ...]]:
    """Zip the registers of several tiles; a number or a tile of one register repeats for every register."""
    parts = [registers_of(builder, value if hasattr(value.type, "count") else spread(builder, value, vector)) for value in values]
    count = max(map(len, parts))
    return list(zip(*(part * count if len(part) == 1 else part for part in parts), strict=True))


def elementwise(function: Each) -> Any:
    """Return an intrinsic that applies a function to each register of the widest of its tiles; the others are broadcast."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return joined(builder, [function(builder, *each) for each in broadcast(builder, values, sig.return_type.vector)])

    @wraps(function)  # Numba reads the number of arguments from the signature
    def typed(typingctx: Any, *args: Any) -> Any:
        tile = max((arg for arg in args if isinstance(arg, RegisterTile)), key=lambda arg: arg.count)
        return tile(*args), codegen

    return intrinsic(typed)


def reduction(function: Each) -> Any:
    """Return an intrinsic that reduces a tile to one value."""
    return intrinsic(lambda typingctx, tile: (tile.dtype(tile), lambda context, builder, sig, args: function(builder, args[0])))


def suffix(vector: Any) -> str:
    """Return the suffix by which LLVM names intrinsics for a register, such as v8f32."""
    is_integer = isinstance(vector.element, ir.IntType)
    return f"v{vector.count}i{vector.element.width}" if is_integer else f"v{vector.count}f{64 if vector.element == ir.DoubleType() else 32}"


def call_llvm(builder: Any, name: str, result: Any, args: Sequence[Any], fastmath: Sequence[str] = ()) -> Any:
    """Call an intrinsic of LLVM that returns a value of the type ``result``."""
    signature = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, f"llvm.{name}"), args, fastmath=fastmath)
