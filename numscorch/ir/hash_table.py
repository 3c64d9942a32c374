"""A level whose coordinates lie in hash tables, in no order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .level import Arrays, Children, Entries, Level, Mode, Parents, ranges
from .loop import BinOp, Const, Expr, call

FREE = -1  # the coordinate of a place without an entry
ROOM = 2  # places for each entry, at least
MULTIPLIER = 0x9E3779B1  # near 2**32 divided by the golden ratio (Knuth, volume 3, section 6.4)


@dataclass(frozen=True, slots=True)
class Hash(Level):
    """A hash table of coordinates for each parent, from ``pos[p]`` to ``pos[p + 1]`` in ``crd``; free places hold -1.

    A table's length is a power of two, or 0. A coordinate's place is the first free one from its hash on, as it was
    when the coordinate was entered.
    """

    spelling: ClassVar[str] = "hash"
    gaps: ClassVar[bool] = True
    padded: ClassVar[bool] = False
    letter: ClassVar[str] = "h"
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    spaced: ClassVar[bool] = True

    @property
    def is_ordered(self) -> bool:
        return False

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return mode.pos[mode.parent.begin], mode.pos[mode.parent.begin + 1]

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return mode.crd[position]

    def present(self, mode: Mode, position: Expr) -> Expr | None:
        return BinOp(">=", mode.crd[position], Const(0))

    def entered(self, mode: Mode, coordinate: Expr) -> Expr | None:
        start, end = self.bounds(mode)
        return call("entered", mode.crd, start, end, coordinate)

    def places(self, children: np.ndarray) -> int:
        return int(table_lengths(children).sum())

    def spread(self, children: np.ndarray) -> Arrays:
        pos = np.zeros(len(children) + 1, dtype=np.int64)
        np.cumsum(table_lengths(children), out=pos[1:])
        return pos, np.full(pos[-1], FREE, dtype=np.int64)

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        pos, crd = self.spread(entries.children)
        parents = entries.parents[entries.first]
        places = entered(crd, entries.coordinates[entries.first], pos[parents], np.diff(pos)[parents])
        return self, (pos, crd), places[np.cumsum(entries.first) - 1], len(crd)

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return len(arrays[-1])

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        pos, crd = arrays
        lengths = pos[stored.parents + 1] - pos[stored.parents]
        places = ranges(pos[stored.parents], lengths)
        occupied = crd[places] >= 0
        owners = np.repeat(np.arange(len(stored.parents)), lengths)[occupied]
        return Children(np.bincount(owners, minlength=len(stored.parents)), crd[places][occupied], places[occupied])


def table_lengths(children: np.ndarray) -> np.ndarray:
    """The length of a table for so many coordinates: the power of two that leaves about half of it free.

    >>> table_lengths(np.array([0, 1, 3, 4])).tolist()
    [0, 2, 8, 8]
    """
    powers = np.ceil(np.log2(np.maximum(children * ROOM, 1))).astype(np.int64)
    lengths: np.ndarray = np.where(children > 0, np.int64(1) << powers, 0)
    return lengths


def entered(crd: np.ndarray, coordinates: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Enter coordinates into their tables, and return their places.

    All of them try the place of their hash at once. Where several want one place, the first of them gets it, and the others
    try the next.

    >>> table = np.full(8, -1)
    >>> entered(table, np.array([3, 11, 4]), np.zeros(3, dtype=int), np.full(3, 8)).tolist(), table.tolist()
    ([6, 2, 5], [-1, -1, 11, -1, -1, 4, 3, -1])
    """
    places: np.ndarray = starts + (((coordinates * MULTIPLIER) >> 16) & (lengths - 1))
    left = np.arange(len(coordinates))
    while left.size:
        free = left[crd[places[left]] == FREE]
        wanted, winners = np.unique(places[free], return_index=True)
        crd[wanted] = coordinates[free[winners]]
        left = left[crd[places[left]] != coordinates[left]]
        places[left] = starts[left] + ((places[left] - starts[left] + 1) & (lengths[left] - 1))
    return places
