"""The levels of the n:m:g format: each column has n of every m values, and equally many columns use each combination of n rows.

The values need no index. The columns of a chunk are sorted by their combination, so that the position of a column in the
chunk determines its combination (``nmg_combinations.py``; Ivanov et al., "STen: Productive and Efficient
Sparsity in PyTorch", 2023, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from ..errors import FormatError
from .level import Arrays, Children, Entries, Level, Mode, Parents, check_width, times
from .levels import CoordinateArray, Size, Strided
from .loop import Const, Expr, TableLoad, call
from .nmg_combinations import MOST_KINDS, assigned, kinds_at, listed, masks, starts, table
from .padded import Fixed


@dataclass(frozen=True, slots=True)
class Sharing(Strided):
    """The parameters that both levels have: n of every m values, and g coordinates per chunk for each of the C(m, n) combinations."""

    n: int
    m: int
    g: int

    @property
    def kinds(self) -> int:
        """The number of combinations, C(m, n)."""
        return comb(self.m, self.n)

    @property
    def chunk(self) -> int:
        """The number of coordinates in a chunk, which contains every combination g times."""
        return self.kinds * self.g

    def check(self, shape: str) -> None:
        if not 1 <= self.n <= self.m or self.g < 1:
            raise FormatError(f"{self} is not a level: it keeps n values of every m, with 1 <= n <= m, and g >= 1 columns for each choice")
        if self.m > 62 or self.kinds > MOST_KINDS:
            raise FormatError(
                f"{self}: there are {self.kinds} choices of {self.n} out of {self.m}, but a format supports at most {MOST_KINDS}"
            )


@dataclass(frozen=True, slots=True)
class Grouped(CoordinateArray, Sharing):
    """All coordinates in ``crd``, chunk by chunk and, within a chunk, sorted by combination. A combination level must follow."""

    bits: int = 0

    @property
    def is_ordered(self) -> bool:
        return False

    def check(self, shape: str) -> None:
        Sharing.check(self, shape)
        CoordinateArray.check(self, shape)

    @property
    def kind_chunk(self) -> int:
        return self.chunk

    def kind_starts(self, mode: Mode, chunk: Expr, whole: bool = False) -> list[Expr]:
        first = chunk * Const(self.chunk)
        start = mode.parent.begin * mode.size + first
        if whole:
            return [start + kind * self.g for kind in range(self.kinds + 1)]
        width = call("min", Const(self.chunk), mode.size - first)
        return [start, *(start + (width * kind) // self.kinds for kind in range(1, self.kinds)), start + width]

    def room(self, entries: Entries) -> int:
        return times(entries.count, entries.size)

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        check_width(self.bits, entries.size)
        used = np.zeros((entries.count, entries.size), dtype=np.int64)
        at = np.flatnonzero(entries.first)
        parents, coordinates = entries.parents[at], entries.coordinates[at]
        if len(at):
            used[parents, coordinates] = np.bitwise_or.reduceat(1 << entries.below[0], at)
        crd = self.stored(used)
        slots = np.empty_like(crd)
        np.put_along_axis(slots, crd, np.broadcast_to(np.arange(entries.size), crd.shape), axis=1)
        positions = entries.parents * entries.size + slots[entries.parents, entries.coordinates]
        return self, (crd.reshape(-1),), positions, times(entries.count, entries.size)

    def stored(self, used: np.ndarray) -> np.ndarray:
        """Compute the order in which the coordinates of each parent are stored.

        Args:
            used: for each coordinate, a bit mask of the coordinates it uses in the level below; of shape (parents, size).

        Returns:
            The coordinates in storage order, of shape (parents, size).

        Raises:
            FormatError: a coordinate uses more than n coordinates below, or too many use the same combination.
        """
        counts = np.bitwise_count(used)
        if (counts > self.n).any():
            block, column = np.argwhere(counts > self.n)[0]
            raise FormatError(
                f"keeps {self.n} of every {self.m} values, but block {block} has {counts[block, column]} at coordinate {column}: "
                f"drop the smallest, as sparsify.n_m_g({self.n}, {self.m}, {self.g}) does"
            )
        blocks, size = used.shape
        crd, full_chunks = np.empty(used.shape, dtype=np.int64), size // self.chunk * self.chunk
        for first, last in ((0, full_chunks), (full_chunks, size)):
            if first < last and blocks:
                width = min(self.chunk, last - first)
                ordered = self._order(used[:, first:last].reshape(blocks, -1, width), first)
                crd[:, first:last] = (ordered + np.arange(first, last, width)[:, None]).reshape(blocks, -1)
        return crd

    def _order(self, used: np.ndarray, first: int) -> np.ndarray:
        """The argsort of each chunk by combination. Its shape is that of ``used``: (parents, chunks, coordinates of a chunk)."""
        width = used.shape[2]
        capacity = np.diff(starts(width, self.kinds))
        kinds, failed = assigned(used.reshape(-1, width), masks(self.n, self.m), capacity)
        if len(failed):
            block, chunk = divmod(int(failed[0]), used.shape[1])
            self._refuse(
                used[block, chunk], capacity, f"block {block}, coordinates {first + chunk * width} to {first + (chunk + 1) * width - 1}"
            )
        return np.argsort(kinds.astype(np.uint16), axis=1, kind="stable").reshape(used.shape)  # uint16: radix sort

    def _refuse(self, used: np.ndarray, capacity: np.ndarray, where: str) -> None:
        """Raise the FormatError for a chunk whose combinations cannot be assigned."""
        chosen = (used[:, None] == masks(self.n, self.m)).sum(axis=0)
        kind = int(np.argmax(chosen - capacity))
        if chosen[kind] > capacity[kind]:
            reason = f"{chosen[kind]} of them keep the positions {listed(self.n, self.m)[kind]}, but only {capacity[kind]} can"
        else:
            reason = f"they cannot be assigned evenly to the {self.kinds} combinations of {self.n} places"
        raise FormatError(f"{where}: {reason}; sparsify.n_m_g({self.n}, {self.m}, {self.g}) keeps what fits")

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        positions = self.positions(stored)
        return Children(stored.size, arrays[0][positions], positions)


@dataclass(frozen=True, slots=True)
class Combination(Sharing):
    """The n of m coordinates below each position of the grouped level above. A constant table lists them; nothing is stored."""

    @property
    def constants(self) -> tuple[tuple[int, ...], ...]:
        return listed(self.n, self.m)

    @property
    def alone(self) -> Level:
        return Fixed(self.n)

    def check(self, shape: str) -> None:
        Sharing.check(self, shape)
        above = str(Grouped(self.n, self.m, self.g))
        if not shape.endswith((above, *(f"{above[:-1]}, bits={bits})" for bits in (8, 16)))):
            raise FormatError(f"{self} needs {above} as the level above it, as in NMG(n, m, g)")

    def fits(self, at: int, sizes: tuple[int, ...]) -> str | None:
        return None if sizes[at] == self.m else f"selects among {self.m} coordinates, but its size is {sizes[at]}: store i % {self.m} in it"

    def stride(self, size: Size) -> Size | int:
        return self.n

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        size, column = mode.sizes[mode.at - 1], mode.outer[-1]  # the column's chunk is the chunk of its position
        place, width = mode.parent.begin % size % self.chunk, call("min", Const(self.chunk), size - column // self.chunk * self.chunk)
        kind = ((place + 1) * self.kinds - Const(1)) // width
        values = tuple(coordinate for chosen in listed(self.n, self.m) for coordinate in chosen)
        return TableLoad(f"{mode.name}_table", values, kind * self.n + (position - mode.parent.begin * self.n))

    def _kinds(self, parents: np.ndarray, size: int) -> np.ndarray:
        return kinds_at(parents % size, size, self.kinds, self.g) if size else parents

    def offsets(self, entries: Entries) -> np.ndarray:
        chosen = table(self.n, self.m)[self._kinds(entries.parents, entries.sizes[entries.at - 1])]
        return (chosen < entries.coordinates[:, None]).sum(axis=1)

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        kinds = self._kinds(stored.parents, stored.sizes[stored.at - 1])
        return Children(self.n, table(self.n, self.m)[kinds].reshape(-1), self.positions(stored))
