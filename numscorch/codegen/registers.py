"""Tiles: one or more SIMD registers as one value of Numba, and what the intrinsics do to each register.

A tile of several registers is an LLVM array of native vectors, so that no vector is wider than the machine's: LLVM splits a wider one,
which is slow unless the number of its lanes is a power of two. Arrays are split into their vectors before registers are allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.extending import register_model

I32 = ir.IntType(32)
SCALARS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
Each = Callable[..., Any]  # of the builder and one register of each tile


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
    """A single register is an LLVM vector; several are an array of them."""

    def __init__(self, dmm: Any, fe_type: RegisterTile):
        super().__init__(dmm, fe_type, fe_type.vector if fe_type.count == 1 else ir.ArrayType(fe_type.vector, fe_type.count))


def tile_of(dtype: Any, lanes: Any, count: Any) -> RegisterTile:
    """The tile of a call that gives its shape as literals; no count means one register."""
    return RegisterTile(dtype, lanes.literal_value, 1 if count is None else count.literal_value)


def optional(count: Any) -> Any:
    """The type of an argument that may be left out."""
    return types.Omitted(None) if count is None else count


def spread(builder: Any, scalar: Any, vector: Any) -> Any:
    """A register with one value in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(I32, vector.count), None))


def registers_of(builder: Any, tile: Any) -> list[Any]:
    """The registers of a tile."""
    if not isinstance(tile.type, ir.ArrayType):
        return [tile]
    return [builder.extract_value(tile, register) for register in range(tile.type.count)]


def joined(builder: Any, registers: Sequence[Any]) -> Any:
    """The tile of these registers."""
    if len(registers) == 1:
        return registers[0]
    tile = ir.Constant(ir.ArrayType(registers[0].type, len(registers)), ir.Undefined)
    for at, register in enumerate(registers):
        tile = builder.insert_value(tile, register, at)
    return tile


def broadcast(builder: Any, values: Sequence[Any], vector: Any) -> list[tuple[Any, ...]]:
    """The registers of several tiles side by side; a number, or a tile of one register, is used with every register of the others."""
    parts = [registers_of(builder, value if hasattr(value.type, "count") else spread(builder, value, vector)) for value in values]
    count = max(map(len, parts))
    return list(zip(*(part * count if len(part) == 1 else part for part in parts), strict=True))


def widest(args: Sequence[Any]) -> RegisterTile:
    """The type of what a function of tiles and numbers returns."""
    tiles = [arg for arg in args if isinstance(arg, RegisterTile)]
    return max(tiles, key=lambda tile: tile.count)


def mapped(function: Each, *args: Any) -> Any:
    """The signature and the code of an intrinsic that applies a function to each register."""
    tile = widest(args)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return joined(builder, [function(builder, *each) for each in broadcast(builder, values, tile.vector)])

    return tile(*args), codegen
