"""Tags: how a loop of index notation runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Serial:
    """Run one coordinate after another."""

    def __str__(self) -> str:
        return "forall"


@dataclass(frozen=True, slots=True)
class Parallel:
    """Cut into blocks that run in parallel."""

    def __str__(self) -> str:
        return "parallel_forall"


@dataclass(frozen=True, slots=True)
class Vector:
    """Run in tiles of ``registers`` SIMD registers of ``lanes`` coordinates each.

    What is left of the extent takes one tile of ``tail`` registers, whose last one is masked
    where ``masked``. An extent of one tile has no loop: 0 registers, and a tail. If ``overlapped``, there is no tail: the last tile
    ends where the extent does, and writes some coordinates again.
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
    """Accumulate ``times`` coordinates at once, each in a register of its own."""

    times: int

    def __str__(self) -> str:
        return f"unroll_forall<{self.times}>"


@dataclass(frozen=True, slots=True)
class Positions:
    """Take ``lanes`` consecutive positions of a sparse level at once, gathering what their coordinates choose.

    The rest of a row is taken one by one; or, ``masked``, at once too, in a register whose lanes past the row's end are left out.
    """

    lanes: int
    masked: bool = False

    def __str__(self) -> str:
        return f"position_forall<{self.lanes}{', masked' if self.masked else ''}>"


@dataclass(frozen=True, slots=True)
class FlatSum:
    """Walk all entries of the operand below in one loop over positions, ``registers`` of ``lanes`` at once; ``parallel``, in blocks."""

    lanes: int
    registers: int
    parallel: bool = False

    def __str__(self) -> str:
        return f"{'parallel_' if self.parallel else ''}entry_forall<{self.lanes} x {self.registers}>"


@dataclass(frozen=True, slots=True)
class Gallop:
    """Walk the leader's coordinates, and search the other operands for each, onwards from where the last search ended."""

    leader: str

    def __str__(self) -> str:
        return f"gallop_forall<{self.leader}>"


@dataclass(frozen=True, slots=True)
class Blend:
    """Merge operands without branches: which of them has a coordinate is a mask, of their values and of how far each advances.

    Looking ``ahead``, the next coordinate of each is loaded a step before it is compared, and rows that are alike are walked at once.
    """

    ahead: bool = False

    def __str__(self) -> str:
        return f"blend_forall{'<ahead>' if self.ahead else ''}"


@dataclass(frozen=True, slots=True)
class Tile:
    """Run the body for one tile of ``size`` coordinates after the other: the loop over the same variable in it stays within the tile."""

    size: int

    def __str__(self) -> str:
        return f"tile_forall<{self.size}>"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Add up in memory, in about ``count`` blocks; after each block, the sums move to where those of several blocks are added."""

    count: int

    def __str__(self) -> str:
        return f"block_forall<{self.count}>"


@dataclass(frozen=True, slots=True)
class Jam:
    """Run the body for ``times`` coordinates at once, with registers for each; for what is left over one by one, if there is a ``rest``."""

    times: int
    rest: bool = False

    def __str__(self) -> str:
        return f"jam_forall<{self.times}{', rest' if self.rest else ''}>"


@dataclass(frozen=True, slots=True)
class Transpose:
    """Exchange this loop's variable and that of the loop right in it, in squares of ``lanes`` coordinates: one is contiguous where
    values are read, the other where they are written."""

    lanes: int

    def __str__(self) -> str:
        return f"transpose_forall<{self.lanes}>"


@dataclass(frozen=True, slots=True)
class Specialize:
    """Write the body several times, once for each part of the loop that a table of the format distinguishes (n:m:g).

    ``over`` says which: ``kinds``, a loop for the positions of each kind, chunk by chunk; ``tiles``, the body for the positions of each
    kind, within which the loop over the same variable in it stays; ``coordinates``, all of which are known when a kernel is generated,
    and have registers of their own.
    """

    over: Literal["kinds", "tiles", "coordinates"]

    def __str__(self) -> str:
        return f"specialize_forall<{self.over}>"


Tag = Serial | Parallel | Vector | Unroll | Positions | FlatSum | Gallop | Blend | Tile | Blocks | Jam | Transpose | Specialize
SERIAL = Serial()
