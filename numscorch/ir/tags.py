"""Tags: the execution strategy of a loop of index notation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class BaseTag:
    """The base class of tags. The text of a tag is its spelling, and its arguments except defaults: numbers, words, and names of flags.

    >>> print(Jam(4), Jam(4, rest=True), Parallel())
    jam_forall<4> jam_forall<4, rest> parallel_forall
    """

    spelling: ClassVar[str] = ""  # by default, the name of the class followed by _forall

    @property
    def width(self) -> int:
        """The number of coordinates or positions per step of the loop; 0 if the loop is a single tile."""
        match self:
            case Vector(lanes, registers) | FlatSum(lanes, registers):
                return lanes * registers
            case Unroll(width) | Positions(width):
                return width
            case _:
                return 1

    def __str__(self) -> str:
        spelling = self.spelling or f"{type(self).__name__.lower()}_forall"
        given = [(field.name, value) for field in fields(self) if (value := getattr(self, field.name)) != field.default]
        arguments = [name if value is True else str(value) for name, value in given]
        return f"{spelling}<{', '.join(arguments)}>" if arguments else spelling


@dataclass(frozen=True, slots=True)
class Serial(BaseTag):
    """Run the coordinates one after another."""

    spelling: ClassVar[str] = "forall"


@dataclass(frozen=True, slots=True)
class Parallel(BaseTag):
    """Run blocks of coordinates in parallel."""


@dataclass(frozen=True, slots=True)
class Divide(BaseTag):
    """Run the loop on each worker. In the loop over ``var`` inside, a worker takes the coordinates of its part of the result only.

    Unless ``blocks`` is 0, each worker runs the loop in this number of blocks, as with :class:`Blocks`.
    """

    var: str
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Vector(BaseTag):
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
class Unroll(BaseTag):
    """Accumulate ``times`` coordinates at once, each in a separate register."""

    times: int


@dataclass(frozen=True, slots=True)
class Positions(BaseTag):
    """Load ``lanes`` consecutive positions of a sparse level into a register, and gather dense values at their coordinates.

    The remaining positions of a row run in a register whose lanes past the row's end are masked.
    """

    lanes: int
    spelling: ClassVar[str] = "position_forall"


@dataclass(frozen=True, slots=True)
class FlatSum(BaseTag):
    """Sum all entries of one operand in a single loop over positions, in tiles of ``registers`` registers of ``lanes`` values.

    Blocks of positions run in parallel.
    """

    lanes: int
    registers: int

    def __str__(self) -> str:
        return f"entry_forall<{self.lanes} x {self.registers}>"


@dataclass(frozen=True, slots=True)
class Each(BaseTag):
    """Visit each position of a level by itself, even where consecutive positions repeat a coordinate."""


@dataclass(frozen=True, slots=True)
class Ahead(BaseTag):
    """Visit the positions of a level, and prefetch the rows of other operands that the coordinate ``positions`` steps later chooses."""

    positions: int


@dataclass(frozen=True, slots=True)
class Gallop(BaseTag):
    """Iterate the leader's coordinates and search the other operands for each of them, from the end of the previous search."""

    leader: str


@dataclass(frozen=True, slots=True)
class Blend(BaseTag):
    """Merge operands without branches: masks select the present values and advance the positions.

    If ``ahead``, each coordinate is loaded one step before it is compared, and rows advance together while their
    coordinates are equal.
    """

    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Tile(BaseTag):
    """Run the body once per tile of ``size`` coordinates. The inner loop over the same variable is restricted to the tile."""

    size: int


@dataclass(frozen=True, slots=True)
class Blocks(BaseTag):
    """Scatter long sums in about ``count`` blocks. After each block, the sums are moved and added as a tree."""

    count: int
    spelling: ClassVar[str] = "block_forall"


@dataclass(frozen=True, slots=True)
class Jam(BaseTag):
    """Run the body for ``times`` coordinates at once, with separate registers. ``rest``: remaining coordinates run one by one."""

    times: int
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Transpose(BaseTag):
    """Transpose squares of ``lanes`` x ``lanes`` coordinates in registers.

    One of the variables of this loop and the loop directly inside it is contiguous in the operand, the other in the result.
    """

    lanes: int


@dataclass(frozen=True, slots=True)
class Specialize(BaseTag):
    """Generate a copy of the body for each case that the table of an n:m:g format distinguishes.

    Args:
        over: ``tiles``: the body once per kind; the inner loop over the same variable is restricted to the positions of the kind.
            ``kinds``: a loop over the positions of the current kind, chunk by chunk. ``coordinates``: one copy per coordinate of
            the current kind, with separate registers; all coordinates are known when the kernel is generated.
        lanes: of ``kinds``: the number of positions that fill the lanes of a register; 0 if they are summed one by one.
    """

    over: Literal["kinds", "tiles", "coordinates"]
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class PartialSums:
    """Add the loop's terms in separate registers. ``widths`` are steps per register, then steps per sum of such registers, and so on.

    Without widths, one separate register adds all terms of the loop, and is then added to the sum around the loop.
    """

    widths: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"sums<{', '.join(map(str, self.widths))}>" if self.widths else "sums"


Walk = Positions | FlatSum | Each | Ahead | Gallop | Blend
Tag = Serial | Parallel | Divide | Vector | Unroll | Walk | Tile | Blocks | Jam | Transpose | Specialize
SERIAL = Serial()
