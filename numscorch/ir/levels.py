"""The basic levels (dense, compressed, singleton), and base classes that other levels share with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from ..errors import FormatError, SizeError
from .level import Arrays, Children, Entries, Level, Mode, Parents, check_width, ranges, starts_of_runs, times
from .loop import Expr, call

Size = TypeVar("Size", int, Expr)


class Strided(Level):
    """The same number of positions below each parent: position = parent position * stride + offset; the offset is the coordinate."""

    def stride(self, size: Size) -> Size | int:
        """The number of positions below each parent, for a dimension of this size."""
        return size

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        start = mode.parent.begin * self.stride(mode.size)
        return start, start + self.stride(mode.size)

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position - mode.parent.begin * mode.size

    def locate(self, mode: Mode, coordinate: Expr) -> Expr:
        return mode.parent.begin * mode.size + coordinate

    def fan(self, size: float) -> float:
        return min(float(self.stride(int(size)) or size), size)

    def offsets(self, entries: Entries) -> np.ndarray:
        """The offset of each entry from its parent's first position."""
        return entries.coordinates

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        count = self.count((), entries.count, entries.size)
        return self, (), entries.parents * self.stride(entries.size) + self.offsets(entries), count

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return times(parents, self.stride(size))

    def positions(self, stored: Parents) -> np.ndarray:
        """All positions of the given parents."""
        stride = self.stride(stored.size)
        return (stored.parents[:, None] * stride + np.arange(stride)).reshape(-1)


class Branchless(Level):
    """One position for each position of the parent."""

    branchless: ClassVar[bool] = True

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return mode.parent.begin, mode.parent.stop

    def locate(self, mode: Mode, coordinate: Expr) -> Expr:
        return mode.parent.begin

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        return self, (), entries.parents, entries.count

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents

    def fan(self, size: float) -> float:
        return 1.0


class CoordinateArray(Level):
    """Coordinates in the array ``crd``, each of ``bits`` bits: 8, 16, 32, or 0 for the tensor's index type."""

    bits: int
    arrays: ClassVar[tuple[str, ...]] = ("crd",)

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        stored = mode.crd[position]
        return call("int64", stored) if self.bits else stored  # widened, so that differences may be negative

    def check(self, shape: str) -> None:
        if self.bits not in (0, 8, 16, 32):
            raise FormatError(f"{self}: use bits=8, 16 or 32, or leave bits out for the tensor's index type")

    def array_dtype(self, name: str) -> str | None:
        return f"uint{self.bits}" if self.bits and name == "crd" else None


class CoordinateRows(Level):
    """Coordinates in ``crd``: parent p has the positions from ``pos[p]`` to ``pos[p + 1]``, the end excluded."""

    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return mode.pos[mode.parent.begin], mode.pos[mode.parent.begin + 1]


@dataclass(frozen=True, slots=True)
class Dense(Strided):
    """Every coordinate is stored; position = parent position * size + coordinate."""

    extent: int | None = None  # if known at compile time, as in a block
    letter: ClassVar[str] = "d"
    full: ClassVar[bool] = True

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return position % mode.size

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        return Children(stored.size, np.tile(np.arange(stored.size), len(stored.parents)), self.positions(stored))


@dataclass(frozen=True, slots=True)
class AppendedCoordinates(CoordinateArray):
    """Coordinates that a kernel appends one after another."""

    unique: bool = True
    ordered: bool = True
    bits: int = 0
    padded: ClassVar[bool] = False
    appended: ClassVar[bool] = True

    @property
    def is_unique(self) -> bool:
        return self.unique

    @property
    def is_ordered(self) -> bool:
        return self.ordered


@dataclass(frozen=True, slots=True)
class Compressed(CoordinateRows, AppendedCoordinates):
    """Coordinates in ``crd``: parent p has the positions from ``pos[p]`` to ``pos[p + 1]``, the end excluded; kernels append to them."""

    letter: ClassVar[str] = "s"

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        check_width(self.bits, entries.size)
        crd = entries.coordinates[entries.first]
        try:
            pos = starts_of_runs(entries.children)
        except MemoryError as error:
            raise SizeError(
                f"a pos array for {entries.count} parents does not fit in memory: use compressed levels above, as in DCSR"
            ) from error
        return self, (pos, crd), np.add.accumulate(entries.first.view(np.int8), dtype=np.int64) - 1, len(crd)

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        pos, crd = arrays
        starts = pos[stored.parents]
        counts = pos[stored.parents + 1] - starts
        has_all = len(stored.parents) == len(pos) - 1
        positions = np.arange(len(crd)) if has_all else ranges(starts.astype(np.int64), counts)
        return Children(counts, crd if has_all else crd[positions], positions)


@dataclass(frozen=True, slots=True)
class Singleton(AppendedCoordinates, Branchless):
    """One coordinate for each position of the parent, in ``crd``."""

    letter: ClassVar[str] = "o"

    def determines(self, at: int, missing: frozenset[int]) -> bool:
        return missing == {at}

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        check_width(self.bits, entries.size)
        invalid = np.flatnonzero(entries.children != 1)
        if invalid.size:
            raise FormatError(
                f"holds one coordinate for each position above it, but position {invalid[0]} has {entries.children[invalid[0]]}: "
                "use a compressed level"
            )
        return self, (entries.coordinates[entries.first],), entries.parents, entries.count

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        return Children(1, arrays[0][stored.parents], stored.parents)
