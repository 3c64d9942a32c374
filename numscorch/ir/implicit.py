"""Implicit levels: levels without arrays, whose coordinates are computed from the coordinates of the levels above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import FormatError
from .level import Arrays, Children, Entries, Level, Mode, Parents, ranges
from .levels import Branchless, Size, Strided
from .loop import BinOp, Const, Expr, call
from .padded import warn_of_padding


@dataclass(frozen=True, slots=True)
class Implicit(Level):
    """A level without arrays, whose positions are computed from the coordinates."""

    located: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class PartialLevel(Implicit):
    """An implicit level that has no position for some coordinates."""

    def outside(self, outer: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """A mask of the coordinates that have no position; ``outer`` are the coordinates of the level above."""
        raise NotImplementedError

    def check_entries(self, entries: Entries) -> None:
        Level.check_entries(self, entries)
        outside = self.outside(entries.outer[-1], entries.coordinates)
        if outside.any():
            at = int(np.argmax(outside))
            place = (*(int(column[at]) for column in entries.outer), int(entries.coordinates[at]))
            raise FormatError(f"cannot store the coordinates {place}: use a compressed level")


@dataclass(frozen=True, slots=True)
class Identity(Branchless, PartialLevel):
    """The main diagonal: each parent has one coordinate, which equals the coordinate in the level above."""

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return mode.outer[-1]

    def outside(self, outer: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        return coordinates != outer

    def fits(self, at: int, sizes: tuple[int, ...]) -> str | None:
        short = sizes[at - 1] > sizes[at]
        return f"of size {sizes[at]} has fewer coordinates than the level above, {sizes[at - 1]}: transpose it" if short else None

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        return Children(1, stored.outer[-1], stored.parents)


@dataclass(frozen=True, slots=True)
class Band(PartialLevel, Strided):
    """A band of ``lower`` diagonals below and ``upper`` above the main diagonal; position = parent position * width + offset."""

    lower: int
    upper: int
    gaps: ClassVar[bool] = True

    @property
    def width(self) -> int:
        """The number of positions of each parent."""
        return self.lower + self.upper + 1

    def stride(self, size: Size) -> Size | int:
        return self.width

    def check(self, shape: str) -> None:
        if self.lower < 0 or self.upper < 0:
            raise FormatError(f"{self} is not a band: its numbers of diagonals below and above the main diagonal are at least 0")

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        start, outer = mode.parent.begin * self.width, mode.outer[-1]
        first = call("max", Const(0), Const(self.lower) - outer)
        end = call("min", Const(self.width), mode.size - outer + self.lower)
        return start + first, start + call("max", first, end)  # the band is empty in rows far below the last column

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position - mode.parent.begin * self.width + mode.outer[-1] - Const(self.lower)

    def locate(self, mode: Mode, coordinate: Expr) -> Expr:
        return mode.parent.begin * self.width + self.lower + coordinate - mode.outer[-1]

    def outside(self, outer: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        offset = coordinates - outer
        return (offset < -self.lower) | (offset > self.upper)

    def offsets(self, entries: Entries) -> np.ndarray:
        return entries.coordinates - entries.outer[-1] + self.lower

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        first = np.maximum(stored.outer[-1] - self.lower, 0)
        counts = np.maximum(np.minimum(stored.outer[-1] + self.upper + 1, stored.size) - first, 0)
        coordinates = ranges(first, counts)
        base = stored.parents * self.width - stored.outer[-1] + self.lower
        return Children(counts, coordinates, np.repeat(base, counts) + coordinates)


@dataclass(frozen=True, slots=True)
class Causal(PartialLevel, Strided):
    """The lower triangle: coordinates from 0 to the one in the level above; position = parent position * size + coordinate."""

    gaps: ClassVar[bool] = True

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        start = mode.parent.begin * mode.size
        return start, start + call("min", mode.outer[-1] + 1, mode.size)

    def outside(self, outer: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        return coordinates > outer

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        counts = np.minimum(stored.outer[-1] + 1, stored.size)
        coordinates = ranges(np.zeros(len(counts), dtype=np.int64), counts)
        return Children(counts, coordinates, np.repeat(stored.parents * stored.size, counts) + coordinates)

    def fan(self, size: float) -> float:
        return size / 2


@dataclass(frozen=True, slots=True)
class Within(Implicit):
    """All coordinates of a block. The end of the dimension cuts off the last block, which has only ``last`` coordinates."""

    last: int
    ends: ClassVar[bool] = True

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        remaining = (mode.sizes[mode.at - 1] - mode.outer[-1] - Const(1)) * mode.size + self.last
        return Const(0), call("min", mode.size, remaining)

    def within(self, mode: Mode, coordinate: Expr) -> Expr:
        return coordinate < self.bounds(mode)[1]

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position


@dataclass(frozen=True, slots=True)
class Range(Implicit, Strided):
    """A level of rows, below a level of diagonals j - i; position = parent position * size + coordinate."""

    gaps: ClassVar[bool] = True

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        start, diagonal, columns = mode.parent.begin * mode.size, mode.outer[-1], mode.sizes[mode.at + 1]
        first = call("max", Const(0), mode.size - diagonal - Const(1))
        return start + first, start + call("min", mode.size, columns + mode.size - diagonal - Const(1))

    def tell(self, positions: int, entries: int) -> None:
        warn_of_padding(self, positions, entries, "because it stores whole diagonals")

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        shift = stored.size - 1 - stored.outer[-1]
        first = np.maximum(shift, 0)
        counts = np.maximum(np.minimum(stored.size, stored.sizes[stored.at + 1] + shift) - first, 0)
        coordinates = ranges(first, counts)
        return Children(counts, coordinates, np.repeat(stored.parents * stored.size, counts) + coordinates)


@dataclass(frozen=True, slots=True)
class Offset(Branchless, Implicit):
    """The column at which a diagonal crosses a row, below a level of diagonals (j - i) and a level of rows."""

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return mode.outer[-1] + mode.outer[-2] - (mode.sizes[mode.at - 1] - Const(1))

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        return len(missing) == 1 and missing <= {at - 2, at - 1, at}

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        diagonal, row = stored.outer[-2], stored.outer[-1]
        return Children(1, row + diagonal - (stored.sizes[stored.at - 1] - 1), stored.parents)


@dataclass(frozen=True, slots=True)
class Renaming(Branchless):
    """One coordinate for each position of the parent, computed from the coordinates of the levels above.

    Renaming levels split a coordinate into its parts, join parts into a coordinate, or compute a diagonal. If source and
    target of a conversion split the dimensions differently, the conversion multiplies by a pattern of such levels.
    """

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        return len(missing) == 1


@dataclass(frozen=True, slots=True)
class Quotient(Renaming):
    """The part ``i // divisor`` or ``i % modulus // divisor`` of the first level's coordinate ``i``."""

    divisor: int
    modulus: int = 0

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        dividend = mode.outer[0] % self.modulus if self.modulus else mode.outer[0]
        return dividend // self.divisor if self.divisor > 1 else dividend


@dataclass(frozen=True, slots=True)
class Joined(Renaming):
    """The coordinate that is composed of the parts in the levels above.

    Args:
        sizes: the extents of all parts but the first, outermost first.
        uneven: whether the dimension is not a whole number of blocks; coordinates past its end are then absent.
    """

    sizes: tuple[int, ...]
    uneven: bool = False

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        joined = mode.outer[0]
        for size, part in zip(self.sizes, mode.outer[1:], strict=True):
            joined = joined * size + part
        return joined

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return self.coordinate(mode, position) < mode.size if self.uneven else None

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        return at not in missing or missing == {at}


@dataclass(frozen=True, slots=True)
class Difference(Renaming):
    """The diagonal that a row (the first level) and a column (the second level) lie on, counted from the lowest diagonal."""

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        row, column = mode.outer
        return BinOp("-", column + mode.sizes[0] - Const(1), row)
