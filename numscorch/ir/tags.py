"""Tags: the execution strategy of a loop of index notation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Serial:
    """Run the coordinates one after another."""

    def __str__(self) -> str:
        return "forall"


@dataclass(frozen=True, slots=True)
class Parallel:
    """Run blocks of coordinates in parallel."""

    def __str__(self) -> str:
        return "parallel_forall"


@dataclass(frozen=True, slots=True)
class Vector:
    """Run tiles of SIMD registers.

    Args:
        lanes: coordinates per register.
        registers: registers per tile; 0 if the extent is a single tile, the tail, which needs no loop.
        tail: registers of a last, smaller tile for the remaining coordinates.
        masked: whether the last register of the tail is masked.
        overlapped: whether the last tile ends at the extent and recomputes some coordinates, instead of a tail.
    """

    lanes: int
    registers: int
    tail: int = 0
    masked: bool = False
    overlapped: bool = False

    def __str__(self) -> str:
        shape = f"{self.lanes} x {self.registers or self.tail}"
        rest = (f", rest {self.tail}" if self.tail else "") if self.registers else ", once"
        return f"vector_forall<{shape}{rest}{', masked' if self.masked else ''}{', overlapped' if self.overlapped else ''}>"


@dataclass(frozen=True, slots=True)
class Unroll:
    """Accumulate ``times`` coordinates at once, each in a separate register."""

    times: int

    def __str__(self) -> str:
        return f"unroll_forall<{self.times}>"


@dataclass(frozen=True, slots=True)
class Positions:
    """Load ``lanes`` consecutive positions of a sparse level into a register, and gather dense values at their coordinates.

    The remaining positions of a row run one by one or, if ``masked``, in a register whose lanes past the row's end are masked.
    """

    lanes: int
    masked: bool = False

    def __str__(self) -> str:
        return f"position_forall<{self.lanes}{', masked' if self.masked else ''}>"


@dataclass(frozen=True, slots=True)
class FlatSum:
    """Sum all entries of the operand below in a single loop over positions, in tiles of ``registers`` registers of ``lanes`` values.

    If ``parallel``, blocks of positions run in parallel.
    """

    lanes: int
    registers: int
    parallel: bool = False

    def __str__(self) -> str:
        return f"{'parallel_' if self.parallel else ''}entry_forall<{self.lanes} x {self.registers}>"


@dataclass(frozen=True, slots=True)
class Gallop:
    """Iterate the leader's coordinates and search the other operands for each of them, from the end of the previous search."""

    leader: str

    def __str__(self) -> str:
        return f"gallop_forall<{self.leader}>"


@dataclass(frozen=True, slots=True)
class Blend:
    """Merge operands without branches: masks select the present values and advance the positions.

    If ``ahead``, each coordinate is loaded one step before it is compared, and rows advance together while their
    coordinates are equal.
    """

    ahead: bool = False

    def __str__(self) -> str:
        return f"blend_forall{'<ahead>' if self.ahead else ''}"


@dataclass(frozen=True, slots=True)
class Tile:
    """Run the body once per tile of ``size`` coordinates. The inner loop over the same variable is restricted to the tile."""

    size: int

    def __str__(self) -> str:
        return f"tile_forall<{self.size}>"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Scatter long sums in about ``count`` blocks. After each block, the sums are moved and added as a tree."""

    count: int

    def __str__(self) -> str:
        return f"block_forall<{self.count}>"


@dataclass(frozen=True, slots=True)
class Jam:
    """Run the body for ``times`` coordinates at once, with separate registers. ``rest``: remaining coordinates run one by one."""

    times: int
    rest: bool = False

    def __str__(self) -> str:
        return f"jam_forall<{self.times}{', rest' if self.rest else ''}>"


@dataclass(frozen=True, slots=True)
class Transpose:
    """Transpose squares of ``lanes`` x ``lanes`` coordinates in registers.

    One of the variables of this loop and the loop directly inside it is contiguous in the operand, the other in the result.
    """

    lanes: int

    def __str__(self) -> str:
        return f"transpose_forall<{self.lanes}>"


@dataclass(frozen=True, slots=True)
class Specialize:
    """Generate a copy of the body for each case that the table of an n:m:g format distinguishes.

    Args:
        over: ``kinds``: a loop over the positions of each kind, chunk by chunk. ``tiles``: the body once per kind; the
            inner loop over the same variable is restricted to the positions of the kind. ``coordinates``: one copy per
            coordinate, with separate registers; all coordinates are known when the kernel is generated.
    """

    over: Literal["kinds", "tiles", "coordinates"]

    def __str__(self) -> str:
        return f"specialize_forall<{self.over}>"


Tag = Serial | Parallel | Vector | Unroll | Positions | FlatSum | Gallop | Blend | Tile | Blocks | Jam | Transpose | Specialize
SERIAL = Serial()
