"""Levels with a fixed capacity below each parent: ELL, bitmaps, and dense tensors read as sparse ones."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from functools import reduce
from types import FrameType
from typing import ClassVar

import numpy as np

from ..errors import FormatError
from .level import INT32_MAX, Arrays, Children, Entries, Level, Mode, Parents, check_width, times
from .levels import CoordinateArray, Size, Strided
from .loop import BinOp, Call, Const, Expr, any_of, call, mul

WASTEFUL = 2.0  # ratio of positions to entries above which packing warns


@dataclass(frozen=True, slots=True)
class Fixed(CoordinateArray, Strided):
    """Exactly ``width`` coordinates below each parent, in ``crd``. By default, the width is that of the longest parent.

    A parent with fewer entries is padded with zeros at coordinates without an entry, so that its coordinates are still
    ordered and unique. ELL is a dense level followed by this level; n:m keeps ``n`` coordinates of every block of m.
    """

    width: int | None = None
    bits: int = 0
    spaced: ClassVar[bool] = True

    def stride(self, size: Size) -> Size | int:
        return self.width or 0

    def check(self, shape: str) -> None:
        CoordinateArray.check(self, shape)
        if self.width is not None and self.width < 0:
            raise FormatError(f"{self} is not a level: its width is at least 0")

    def closed(self, mode: Mode, end: Expr) -> Call | None:
        each: Expr = reduce(mul, (Const(1), *mode.sizes[mode.at + 1 :]))
        return call("padded", mode.crd, mode.values, self.bounds(mode)[0], end, self.width or 0, each)

    def fitted(self, children: np.ndarray, size: int) -> Fixed:
        check_width(self.bits, size)
        longest = int(children.max(initial=0))
        width = self.width if self.width is not None else longest
        if longest > width:
            row = int(np.argmax(children > width))
            raise FormatError(f"holds {width} coordinates for each position above it, but position {row} has {children[row]}: widen it")
        if width > size and len(children):
            raise FormatError(f"needs {width} different coordinates, but the dimension has {size}: use a compressed level")
        if self.width is None:
            warn_of_padding(self, times(len(children), width), int(children.sum()), "because it pads each row to the longest row")
        return Fixed(width, self.bits)

    def places(self, children: np.ndarray) -> int:
        return times(len(children), self.width or 0)

    def spread(self, children: np.ndarray) -> Arrays:
        width = self.width or 0
        return (np.tile(np.arange(width, dtype=np.int32 if width <= INT32_MAX else np.int64), len(children)),)

    def room(self, entries: Entries) -> int:
        return times(entries.count, int(entries.children.max(initial=0)) if self.width is None else self.width)

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        children = entries.children
        packed = self.fitted(children, entries.size)
        width = packed.width or 0
        parents, coordinates = entries.parents[entries.first], entries.coordinates[entries.first]
        positions = parents * width + _places(parents, coordinates, children, width)
        (crd,) = packed.spread(children)
        crd = crd if entries.size <= INT32_MAX else crd.astype(np.int64)
        crd[positions] = coordinates
        return packed, (crd,), positions[np.cumsum(entries.first) - 1], times(entries.count, width)

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        positions = self.positions(stored)
        return Children(self.width or 0, arrays[0][positions], positions)


def _frames_inside() -> int:
    """The number of stack frames between the caller and the user's code, for a warning that points at the latter."""
    frame: FrameType | None = sys._getframe(1)
    frames = 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("numscorch."):
        frame, frames = frame.f_back, frames + 1
    return frames


def warn_of_padding(level: Level, count: int, entries: int, why: str) -> None:
    """Warn if a level stores more than ``WASTEFUL`` times as many values as entries, and more than 1024."""
    if count > WASTEFUL * max(entries, 1) and count > 1024:
        warnings.warn(
            f"{level} stores {count} values for {entries} entries, {why}: a compressed level stores just the entries",
            stacklevel=_frames_inside() + 1,
        )


def _places(parents: np.ndarray, coordinates: np.ndarray, children: np.ndarray, width: int) -> np.ndarray:
    """The offset of each entry below its parent, once each parent is padded to the width with its smallest unused coordinates.

    The padding uses coordinates below some coordinate t. An entry below t has its coordinate as its offset; entries from t
    on have the last offsets.

    >>> _places(np.array([0, 0, 1]), np.array([1, 7, 3]), np.array([2, 1]), 3).tolist()
    [1, 2, 2]
    """
    number = np.arange(len(parents)) - (np.cumsum(children) - children)[parents]
    return np.minimum(coordinates, width - children[parents] + number)


@dataclass(frozen=True, slots=True)
class Bitmap(Strided):
    """A position for every coordinate; ``bit`` is 1 where an entry is stored. position = parent position * size + coordinate."""

    gaps: ClassVar[bool] = True
    padded: ClassVar[bool] = False
    arrays: ClassVar[tuple[str, ...]] = ("bit",)
    located: ClassVar[bool] = True
    mark: ClassVar[str | None] = "bit"

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return BinOp("!=", mode.array("bit")[position], Const(0))

    def room(self, entries: Entries) -> int:
        return times(entries.count, entries.size)

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        _, _, positions, count = Strided.pack(self, entries)
        bit = np.zeros(count, dtype=np.uint8)
        bit[positions] = 1
        return self, (bit,), positions, count

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        bits = arrays[0][(stored.parents[:, None] * stored.size + np.arange(stored.size))] != 0
        rows, coordinates = np.nonzero(bits)
        return Children(bits.sum(axis=1), coordinates, stored.parents[rows] * stored.size + coordinates)

    def array_dtype(self, name: str) -> str | None:
        return "uint8"


@dataclass(frozen=True, slots=True)
class Nonzero(Strided):
    """The nonzero values of a dense tensor. The level is read-only: conversions from dense tensors use it."""

    gaps: ClassVar[bool] = True

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return BinOp("!=", mode.values[position], Const(0))


@dataclass(frozen=True, slots=True)
class Outside(Nonzero):
    """The values of a dense tensor that are below ``low[0]``, above ``high[0]``, or NaN.

    The level is read-only: conversions from dense tensors use it.
    """

    arrays: ClassVar[tuple[str, ...]] = ("low", "high")

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        value = mode.values[position]
        tests: list[Expr] = [BinOp("<", value, mode.array("low")[0]), BinOp(">", value, mode.array("high")[0]), BinOp("!=", value, value)]
        return any_of(tests)

    def array_dtype(self, name: str) -> str | None:
        return "float64"
