"""Results with a new pattern: allocation of their arrays between counting and filling, and the finished tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch

from ..errors import SizeError
from ..ir.assembled import position_dtype
from ..ir.derived_formats import runs_of
from ..ir.format import Format
from ..ir.level import INT32_MAX
from ..machine import memory
from ..machine.buffer_pool import LARGEST, Block, room
from ..machine.guards import has_address_space
from ..machine.memory import check_bytes, check_workspace, compressed_instead
from ..schedule import tuning
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor

KEY_BITS = 62  # bits of a key of a coordinate and a place in a list

Parts = tuple[np.ndarray, np.ndarray, np.ndarray]


def _shrunk(array: np.ndarray, total: int) -> np.ndarray:
    """The first entries of an array; pooled memory that is not almost full is copied, other memory is shrunk in place."""
    if type(array) is not Block:
        array.resize(total, refcheck=False)
        return array
    if len(array) - total <= len(array) // tuning.SPARE_PART:
        return array[:total]
    output = room(total, array.dtype)
    output[:] = array[:total]
    return output


def packed_room(bounds: np.ndarray, extent: int, workers: int, where: object, is_hashed: bool) -> int:
    """Number of places in a workspace for the longest row, computed as in the routines ``emptied`` and ``combined``.

    A hash table has a power of two of places, at most half of them used. A list to be sorted has two places for each insertion.

    Raises:
        SizeError: the workspaces of all workers exceed the memory limit, or the keys of a sorted list exceed 62 bits.

    >>> packed_room(np.array([3, 100, 0]), 1000, 1, "", True), packed_room(np.array([3, 100]), 10, 1, "", True)
    (256, 32)
    """
    most = int(bounds.max())
    if is_hashed:
        most = min(most, extent)
    elif extent.bit_length() + most.bit_length() > KEY_BITS:
        raise SizeError(f'{where}: keys of {extent} coordinates and {most} insertions exceed 62 bits: use schedule="workspace(hash)"')
    size = 1 << max((2 * most - 1).bit_length(), 1) if is_hashed else 2 * most
    check_workspace(workers * size, size, where, "list")
    return size


def workers_for(parents: int) -> int:
    """Maximum number of workers if each of them counts entries for every parent.

    >>> workers_for(1000), workers_for(1 << 21)
    (64, 2)
    """
    return min(max(tuning.MOST_COUNTS // max(parents, 1), 1), tuning.BLOCKS)


def bounded_starts(patterns: Sequence[Pattern], each: bool, parents: np.ndarray) -> np.ndarray:
    """Upper bounds of the parents' start positions: those in the smallest operand if ``each``, else their sums over all operands.

    >>> pattern = Pattern(Format("ds"), (2, 3), ((), (torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]))))
    >>> bounded_starts([pattern, pattern], False, np.array([0, 1, 2])).tolist()
    [0, 4, 6]
    """
    if each:
        patterns = [min(patterns, key=lambda pattern: pattern.nnz)]
    return sum(pattern.level_arrays(-1)[0][parents].astype(np.int64) for pattern in patterns)


@dataclass(frozen=True)
class Arrays:
    """Values and index arrays of a result; the arrays of a level are keyed by ``(level, "pos")`` and ``(level, "crd")``.

    If ``gaps``, the kernel wrote ends only for the parents that it visited.
    """

    values: np.ndarray
    index: dict[tuple[int, str], np.ndarray]
    gaps: bool = True


@dataclass(frozen=True)
class ResultLayout:
    """The properties of a result that determine its arrays, apart from the number of entries.

    ``fill`` is the value of a stored place without a term, such as the zero of a semiring.
    """

    format: Format
    shape: tuple[int, ...]
    dtype: type
    index_dtype: str
    fill: float = 0.0

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Extent of each level."""
        return self.format.sizes(self.shape)

    @cached_property
    def width(self) -> int:
        """Bytes per value."""
        return np.dtype(self.dtype).itemsize

    def allocated(self, starts: np.ndarray) -> Arrays:
        """Allocate arrays for the entries that all blocks counted; replace the counts in ``starts`` by the start of each block.

        Raises:
            SizeError: the arrays exceed the memory limit, or the entries the range of the index type.
        """
        runs = runs_of(self.format)
        counts = starts.reshape(-1, max(len(runs), 1))
        totals = counts.sum(axis=0)
        counts[:] = np.cumsum(counts, axis=0) - counts
        index: dict[tuple[int, str], np.ndarray] = {}
        positions, sizes = 1, self.sizes
        for at, level in enumerate(self.format.levels):
            run = next((n for n, (first, last) in enumerate(runs) if first <= at <= last), None)
            if run is None:
                positions = level.count((), positions, sizes[at])
                self._check(positions, f"level {at + 1} of the result", padded=True)
                index |= {} if level.mark is None else {(at, level.mark): np.zeros(positions, level.array_dtype(level.mark))}
                continue
            total = self._check_count(int(totals[run]))
            self._check((positions + 1 + total) * 8, f"level {at + 1} of the result", padded=positions > total)
            if "pos" in level.arrays:
                index[at, "pos"] = np.zeros(positions + 1, self.index_dtype)
                index[at, "pos"][-1] = total
            index[at, "crd"] = self._coordinates(at, total)
            positions = total
        is_padded = not runs or runs[-1][1] < len(self.format.levels) - 1
        self._check(positions * self.width, f"the result's {positions} values", padded=is_padded)
        values = (
            np.full(positions, self.fill, self.dtype)
            if is_padded and self.fill
            else (np.zeros if is_padded else room)(positions, self.dtype)
        )
        return Arrays(values, index)

    def heads(self, workers: int, parents: int) -> np.ndarray:
        """Allocate zeros to count the entries of each parent and worker.

        Raises:
            SizeError: these counts and the starts of all parents exceed the memory limit.
        """
        self._check((workers + 1) * parents * 8, f"the counts of {parents} parents", padded=True)
        return np.zeros(workers * parents, position_dtype(self.format, self.index_dtype))

    def placed(self, heads: np.ndarray, workers: int) -> Arrays:
        """Allocate arrays for placed entries; replace the count of each worker and parent in ``heads`` by its first place.

        Raises:
            SizeError: the arrays exceed the memory limit, or the entries the range of the index type.
        """
        ((first, last),) = runs_of(self.format)
        heads = heads.reshape(workers, -1)
        pos = np.zeros(heads.shape[1] + 1, np.int64)
        np.cumsum(heads[0] if workers == 1 else heads.sum(axis=0), out=pos[1:])
        total = self._check_count(int(pos[-1]))
        each = (last + 1 - first) * 8 + self.width
        self._check(total * each, f"the result's {total} values", padded=False)
        start = pos[:-1]
        for piece in heads[:-1]:
            after = start + piece
            piece[:] = start
            start = after
        heads[-1] = start
        pos = pos.astype(self.index_dtype, copy=False)
        index = {(first, "pos"): pos} | {(at, "crd"): self._coordinates(at, total) for at in range(first, last + 1)}
        return Arrays(room(total, self.dtype), index, gaps=False)

    def spaced(self, pattern: Pattern) -> Arrays:
        """Allocate arrays for a result that has, below each parent, as many entries as ``pattern``.

        Raises:
            SizeError: the arrays exceed the memory limit, or the entries the range of the index type.
        """
        level, sizes = self.format.levels[1], self.sizes
        arrays = level.spread(np.diff(pattern.level_arrays(1)[0]))
        total = self._check_count(len(arrays[-1])) * prod(sizes[2:])
        self._check(total * self.width, f"the result's {total} values", padded=True)
        named = zip(level.arrays, arrays, strict=True)
        index = {(1, name): array.astype(level.array_dtype(name) or self.index_dtype, copy=False) for name, array in named}
        return Arrays(np.zeros(total, self.dtype), index, gaps=False)

    def has_room(self, most: int) -> bool:
        """Whether arrays for this number of entries may be allocated; only written pages take memory."""
        size = most * (8 + self.width)
        has_memory = size <= memory.ASK_FROM or (size <= memory.limit() // 4 and has_address_space(size))
        return has_memory and (self.index_dtype != "int32" or most <= INT32_MAX)

    @property
    def each(self) -> int:
        """Bytes of an entry in the longest array of the result; the memory limit applies to each array."""
        return max(self.width, 8 if "crd" in self.format.levels[-1].arrays else 0)

    def fits(self, most: int) -> bool:
        """Whether the memory limit and the index type allow this number of entries."""
        size = most * self.each
        return size <= memory.ASK_FROM or (size <= memory.limit() and (self.index_dtype != "int32" or most <= INT32_MAX))

    def check_least(self, least: int) -> None:
        """Refuse a result with ``least`` or more entries if these exceed a limit.

        Raises:
            SizeError: the entries exceed the memory limit or the range of the index type.
        """
        self._check(least * self.each, f"the result, of {least} entries or more,", padded=False)
        self._check_count(least, "has at least")

    def bounded(self, most: int) -> Parts:
        """Allocate the two index arrays and the values of a result with one sparse level and at most ``most`` entries.

        Raises:
            SizeError: the arrays exceed the memory limit, or the entries the range of the index type.
        """
        parents = prod(self.sizes[:-1])
        size = (parents + 1 + self._check_count(most, "may have")) * 8 + most * self.width
        if size > memory.ASK_FROM:
            self._check(size, f"the result's {most} values, if no two of its terms coincide,", padded=parents > most)
        pos = np.empty(parents + 1, self.index_dtype)
        pos[0] = 0
        return pos, *self.entries(most)

    def entries(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Allocate the coordinates and the values of a result with one sparse level."""
        return self._coordinates(len(self.format.levels) - 1, count), room(count, self.dtype)

    def is_pooled(self, count: int) -> bool:
        """Whether arrays for ``count`` entries are small enough for pooled memory. In larger ones, entries are moved in place."""
        return count * max(self.width, 8) <= LARGEST

    def appended(self, pos: np.ndarray, crd: np.ndarray, values: np.ndarray, total: int) -> SparseTensor:
        """The tensor of the entries that one worker appended."""
        pos[-1] = total  # the kernel visits no parent to write the end of a single row
        if len(crd) != total:
            crd, values = _shrunk(crd, total), _shrunk(values, total)
        return self._with_one_level(pos, crd, values)

    def closed(self, arrays: Parts, starts: Sequence[int], ends: np.ndarray, parents: Sequence[int]) -> SparseTensor:
        """Close the gaps between the workers' entries; ``parents`` holds the first parent of each worker, and the number of parents."""
        pos, crd, values = arrays
        total = int(ends[0])
        for worker in range(1, len(ends)):
            start, end = int(starts[worker]), int(ends[worker])
            pos[parents[worker] + 1 : parents[worker + 1] + 1] -= start - total
            for array in (crd, values):
                array[total : total + end - start] = array[start:end]
            total += end - start
        return self.appended(pos, crd, values, total)

    def _with_one_level(self, pos: np.ndarray, crd: np.ndarray, values: np.ndarray) -> SparseTensor:
        """The tensor of these arrays, whose last level is its only sparse level."""
        *above, last = self.format.levels
        arrays = (pos, crd) if last.arrays[0] == "pos" else (crd, pos)
        pattern = Pattern(self.format, self.shape, (*((),) * len(above), tuple(map(torch.from_numpy, arrays))), self.index_dtype)
        return SparseTensor.trusted(pattern, torch.from_numpy(values))

    def _coordinates(self, at: int, count: int) -> np.ndarray:
        return room(count, self.format.levels[at].array_dtype("crd") or self.index_dtype)

    def _check(self, size: int, what: str, padded: bool) -> None:
        """Check an allocation against the memory limit; the error suggests compressed levels if the allocation is ``padded``."""
        if size <= memory.ASK_FROM:
            return
        suggestion = compressed_instead(self.format.order) if padded else "no format takes much less memory: compute the result in parts"
        check_bytes(size, what, str(self.format), suggestion)

    def _check_count(self, total: int, has: str = "has") -> int:
        if self.index_dtype == "int32" and total > INT32_MAX:
            raise SizeError(f"the result {has} {total} entries, more than int32 can count: convert an operand to int64 indices")
        return total

    def finished(self, arrays: Arrays) -> SparseTensor:
        """The tensor of filled arrays; parents that the kernel did not visit have no children."""
        for (at, which), array in arrays.index.items():
            if which == "pos" and at and arrays.gaps and (array[1:] < array[:-1]).any():  # a tenth of the time of the maxima
                np.maximum.accumulate(array, out=array)
        index = {place: torch.from_numpy(array) for place, array in arrays.index.items()}
        stored = tuple([tuple([index[at, which] for which in level.arrays]) for at, level in enumerate(self.format.levels)])
        return SparseTensor.trusted(Pattern(self.format, self.shape, stored, self.index_dtype), torch.from_numpy(arrays.values))
