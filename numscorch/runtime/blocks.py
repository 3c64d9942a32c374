"""Blocks of the outermost loop: positions or coordinates at which blocks of about equal work start.

If blocks have partial sums, their number and cuts depend on the problem alone, so results are bitwise equal for any number of
threads. Otherwise a single worker has one block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..schedule import tuning
from ..tensors.pattern import BY_ROWS, Pattern


def cuts_of(pattern: Pattern, blocks: int) -> np.ndarray:
    """First-level positions at which blocks of about equal work start."""
    if blocks == 1:
        return np.array([0, pattern.counts[0]])
    level = pattern.format.levels[0]
    may_cut_anywhere = level.is_unique or not level.is_ordered  # unordered lists are only copied
    if pattern.counts[0] == pattern.counts[-1] and all(below.branchless for below in pattern.format.levels[1:]):
        cuts = equal_cuts(pattern.counts[0], blocks)
        return cuts if may_cut_anywhere else _at_boundaries(pattern, cuts)
    starts = leaf_starts(pattern)
    work = np.arange(0, tuning.ROW_COST * len(starts), tuning.ROW_COST, dtype=np.int64)
    work += starts
    first, last = int(work[0]), int(work[-1])
    cuts = work.searchsorted((np.arange(blocks + 1) * (last - first) + blocks - 1) // blocks + first)
    cuts[0], cuts[-1] = 0, len(starts) - 1
    return cuts if may_cut_anywhere else _at_boundaries(pattern, cuts)


def sharing_workers(pattern: Pattern, workers: int) -> int:
    """Number of workers that share the rows of the last level; one at the first calls for a pattern, because it takes time to split rows.

    Each worker visits all rows, so there are at most as many workers as entries per row.
    """
    return max(min(workers, pattern.counts[-1] // max(pattern.counts[-2], 1)), 1) if is_repeated(pattern, "shared") else 1


def is_repeated(pattern: Pattern, what: str) -> bool:
    """Whether a step has run for a pattern so often that it pays to prepare a faster one. Counts the calls in ``pattern.derived``."""
    calls = pattern.derived["calls", what] = pattern.derived.get(("calls", what), 0) + 1
    return calls > tuning.SERIAL_CALLS


def split_rows(pattern: Pattern, workers: int) -> np.ndarray:
    """The bounds of the workers' parts of the coordinates, then the start of each part of each row of the last level, and the last end.

    A worker has the same range of coordinates in all rows. The workers have about equal numbers of entries. For a single worker, the array
    is empty. O(nnz + extent).

    >>> from numscorch import from_torch
    >>> import torch
    >>> split_rows(from_torch(torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1]]), "CSR").pattern, 2)
    array([0, 2, 4, 0, 2, 4, 5, 6])
    """
    last = len(pattern.format.levels) - 1
    pos, crd = pattern.level_arrays(last)
    if workers == 1:
        return pos[:0]
    counts = np.bincount(crd, minlength=pattern.format.sizes(pattern.shape)[last])
    part_of = (counts.cumsum() - counts) * workers // len(crd)
    parts = np.arange(0, (len(pos) - 1) * workers, workers).repeat(np.diff(pos))
    parts += part_of[crd]
    bounds = part_of.searchsorted(np.arange(workers))
    return np.concatenate([bounds, [len(counts), 0], np.bincount(parts, minlength=(len(pos) - 1) * workers).cumsum()])


def placed(cuts: Callable[[Pattern, int], np.ndarray], pattern: Pattern, blocks: int) -> tuple[np.ndarray, int]:
    """Cuts and their memory address; cached with the pattern."""
    bounds = pattern.derived.get((cuts, blocks))
    if bounds is None:
        bounds = pattern.remember((cuts, blocks), lambda: _with_address(cuts(pattern, blocks)))
    return bounds


@lru_cache(maxsize=1024)
def placed_equally(extent: int, blocks: int) -> tuple[np.ndarray, int]:
    """Cuts into blocks of equal length, and their memory address."""
    return _with_address(equal_cuts(extent, blocks))


def _with_address(cuts: np.ndarray) -> tuple[np.ndarray, int]:
    array = np.ascontiguousarray(cuts, np.int64)
    return array, array.ctypes.data


def longest_row(pattern: Pattern) -> int:
    """Number of last-level positions in the longest row; cached with the pattern."""
    return pattern.remember("longest row", lambda: int(np.diff(pattern.level_arrays(len(pattern.format.levels) - 1)[0]).max(initial=0)))


def leaf_starts(pattern: Pattern, depth: int = 1) -> np.ndarray:
    """Start of the values below each position of level ``depth`` (counted from 1), followed by the end of all values."""
    if pattern.format.levels == BY_ROWS and depth == 1:
        return pattern.views[0]
    starts = np.arange(pattern.counts[depth - 1] + 1, dtype=np.int64)
    for at, level in list(enumerate(pattern.format.levels))[depth:]:
        if "pos" in level.arrays:
            starts = pattern.level_arrays(at)[0][starts]
        elif not level.branchless:
            starts = starts * (pattern.counts[at] // max(pattern.counts[at - 1], 1))
    return starts


def _at_boundaries(pattern: Pattern, cuts: np.ndarray) -> np.ndarray:
    """Cuts moved back to the start of a run of equal coordinates."""
    crd = pattern.level_arrays(0)[-1]  # levels with repeated coordinates store them
    if not len(crd):
        return cuts
    inner = cuts[1:-1]
    cuts[1:-1] = np.where(inner < len(crd), np.searchsorted(crd, crd[np.minimum(inner, len(crd) - 1)]), inner)
    return cuts


def coordinate_cuts(pattern: Pattern, blocks: int) -> np.ndarray:
    """Convert ``cuts_of`` to coordinates, from 0 to the extent, for loops that walk several operands together."""
    extent = pattern.format.sizes(pattern.shape)[0]
    coordinates: np.ndarray = np.append(pattern.level_arrays(0)[-1], extent).astype(np.int64)[cuts_of(pattern, blocks)]
    coordinates[0], coordinates[-1] = 0, extent
    return coordinates


def shared_out(work: np.ndarray, workers: int) -> np.ndarray:
    """The first block of each worker such that all workers have about equal work, followed by the number of blocks.

    ``work`` is the cumulative work before each block, followed by the total.

    >>> shared_out(np.array([0, 10, 20, 60, 100]), 2)
    array([0, 3, 4])
    """
    middles = (work[:-1] + work[1:]) // 2
    first: np.ndarray = middles.searchsorted(work[-1] * np.arange(workers + 1) // workers)
    first[0], first[-1] = 0, len(work) - 1
    return first


def equal_cuts(extent: int, blocks: int) -> np.ndarray:
    """Cuts of a dimension into blocks of equal length.

    >>> equal_cuts(10, 4)
    array([ 0,  2,  5,  7, 10])
    """
    return np.arange(blocks + 1, dtype=np.int64) * extent // blocks
