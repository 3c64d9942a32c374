"""The basic levels: dense, compressed, and singleton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import FormatError, SizeError
from .level import Arrays, Children, Entries, Level, Mode, Parents, check_bits, check_width, crd_at, ranges, times
from .loop import Expr


@dataclass(frozen=True, slots=True)
class Dense(Level):
    """Every coordinate is stored; position = parent position * size + coordinate."""

    fixed: int | None = None  # the extent, if known at compile time, as in a block
    spelling: ClassVar[str] = "dense"
    letter: ClassVar[str] = "d"
    full: ClassVar[bool] = True

    @property
    def extent(self) -> int | None:
        return self.fixed

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        start = mode.parent.begin * mode.size
        return start, start + mode.size

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position % mode.size

    def locate(self, mode: Mode, coordinate: Expr) -> Expr:
        return mode.parent.begin * mode.size + coordinate

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        count = times(entries.count, entries.size)
        return self, (), entries.parents * entries.size + entries.coordinates, count

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * size

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        coordinates = np.tile(np.arange(stored.size), len(stored.parents))
        return Children(stored.size, coordinates, np.repeat(stored.parents * stored.size, stored.size) + coordinates)


@dataclass(frozen=True, slots=True)
class Compressed(Level):
    """Coordinates in ``crd``; those of parent p are at the positions from ``pos[p]`` to ``pos[p + 1]``."""

    unique: bool = True
    ordered: bool = True
    bits: int = 0  # width of a coordinate: 8, 16, or 0 for the tensor's index type
    spelling: ClassVar[str] = "compressed"
    padded: ClassVar[bool] = False
    letter: ClassVar[str] = "s"
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    appended: ClassVar[bool] = True

    @property
    def is_unique(self) -> bool:
        return self.unique

    @property
    def is_ordered(self) -> bool:
        return self.ordered

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return mode.pos[mode.parent.begin], mode.pos[mode.parent.begin + 1]

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return crd_at(mode, position, self.bits)

    def check(self, shape: str) -> None:
        check_bits(self, self.bits)

    def array_dtype(self, name: str) -> str | None:
        return f"uint{self.bits}" if self.bits and name == "crd" else None

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        check_width(self.bits, entries.size)
        crd = entries.coordinates[entries.first]
        try:
            pos = np.zeros(entries.count + 1, dtype=np.int64)
            np.cumsum(entries.children, out=pos[1:])
        except MemoryError as error:
            raise SizeError(
                f"a pos array for {entries.count} parents does not fit in memory: use compressed levels above, as in DCSR"
            ) from error
        return self, (pos, crd), np.cumsum(entries.first) - 1, len(crd)

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return len(arrays[-1])

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        pos, crd = arrays
        starts = pos[stored.parents]
        counts = pos[stored.parents + 1] - starts
        has_all = len(stored.parents) == len(pos) - 1
        positions = np.arange(len(crd)) if has_all else ranges(starts, counts)
        return Children(counts, crd if has_all else crd[positions], positions)


@dataclass(frozen=True, slots=True)
class Singleton(Level):
    """One coordinate for each position of the parent, in ``crd``."""

    unique: bool = True
    ordered: bool = True
    bits: int = 0
    spelling: ClassVar[str] = "singleton"
    padded: ClassVar[bool] = False
    letter: ClassVar[str] = "o"
    branchless: ClassVar[bool] = True
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    appended: ClassVar[bool] = True

    @property
    def is_unique(self) -> bool:
        return self.unique

    @property
    def is_ordered(self) -> bool:
        return self.ordered

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return mode.parent.begin, mode.parent.stop

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return crd_at(mode, position, self.bits)

    def check(self, shape: str) -> None:
        check_bits(self, self.bits)

    def array_dtype(self, name: str) -> str | None:
        return f"uint{self.bits}" if self.bits else None

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        check_width(self.bits, entries.size)
        invalid = np.flatnonzero(entries.children != 1)
        if invalid.size:
            raise FormatError(
                f"holds one coordinate for each position above it, but position {invalid[0]} has {entries.children[invalid[0]]}: "
                "use a compressed level"
            )
        return self, (entries.coordinates[entries.first],), entries.parents, entries.count

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        return Children(1, arrays[0][stored.parents], stored.parents)

    def fan(self, size: float) -> float:
        return 1.0
