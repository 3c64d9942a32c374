"""The hash level, which stores the coordinates of each parent in a hash table, unordered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .level import Arrays, Children, Entries, Level, Mode, Parents, ranges, starts_of_runs
from .levels import CoordinateRows
from .loop import BinOp, Const, Expr, call

FREE = -1  # marks an empty slot
ROOM = 2  # minimum number of slots per entry
MULTIPLIER = 0x9E3779B1  # about 2**32 divided by the golden ratio (Knuth, volume 3, section 6.4)


@dataclass(frozen=True, slots=True)
class Hash(CoordinateRows):
    """A hash table of coordinates for each parent p, from ``pos[p]`` to ``pos[p + 1]`` in ``crd``. Empty slots hold -1.

    The length of a table is a power of two, or 0. Collisions are resolved by linear probing.
    """

    gaps: ClassVar[bool] = True
    padded: ClassVar[bool] = False
    spaced: ClassVar[bool] = True

    @property
    def is_ordered(self) -> bool:
        return False

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
        pos = starts_of_runs(table_lengths(children))
        return pos, np.full(pos[-1], FREE, dtype=np.int64)

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        pos, crd = self.spread(entries.children)
        parents = entries.parents[entries.first]
        places = entered(crd, entries.coordinates[entries.first], pos[parents], np.diff(pos)[parents])
        return self, (pos, crd), places[np.cumsum(entries.first) - 1], len(crd)

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        pos, crd = arrays
        lengths = pos[stored.parents + 1] - pos[stored.parents]
        places = ranges(pos[stored.parents].astype(np.int64), lengths)
        occupied = crd[places] >= 0
        owners = np.repeat(np.arange(len(stored.parents)), lengths)[occupied]
        return Children(np.bincount(owners, minlength=len(stored.parents)), crd[places][occupied], places[occupied])


def table_lengths(children: np.ndarray) -> np.ndarray:
    """The number of slots of each hash table: the smallest power of two that is at least twice its number of coordinates.

    >>> table_lengths(np.array([0, 1, 3, 4])).tolist()
    [0, 2, 8, 8]
    """
    powers = np.ceil(np.log2(np.maximum(children * ROOM, 1))).astype(np.int64)
    return np.where(children > 0, np.int64(1) << powers, 0)


def entered(crd: np.ndarray, coordinates: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Insert coordinates into their hash tables and return their positions.

    All coordinates probe at once. If several probe the same empty slot, the first one takes it, and the rest probe the
    next slot.

    Args:
        crd: the slots of all tables; modified in place.
        coordinates: the coordinates to insert, of shape (n,).
        starts: the first slot of each coordinate's table, of shape (n,).
        lengths: the number of slots of each coordinate's table, of shape (n,).

    >>> table = np.full(8, -1)
    >>> entered(table, np.array([3, 11, 4]), np.zeros(3, dtype=int), np.full(3, 8)).tolist(), table.tolist()
    ([6, 2, 5], [-1, -1, 11, -1, -1, 4, 3, -1])
    """
    places: np.ndarray = starts + (((coordinates * MULTIPLIER) >> 16) & (lengths - 1))
    pending = np.arange(len(coordinates))
    while pending.size:
        free = pending[crd[places[pending]] == FREE]
        slots, winners = np.unique(places[free], return_index=True)
        crd[slots] = coordinates[free[winners]]
        pending = pending[crd[places[pending]] != coordinates[pending]]
        places[pending] = starts[pending] + ((places[pending] - starts[pending] + 1) & (lengths[pending] - 1))
    return places
