"""Blocks of the outermost loop: how many, and where they are cut.

Both follow from the problem alone where blocks have sums of their own, so that results are bitwise the same at any thread count;
elsewhere one worker has one block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..schedule import tuning
from ..tensors.pattern import BY_ROWS, Pattern


def cuts_of(pattern: Pattern, blocks: int) -> np.ndarray:
    """First-level positions at which blocks of about equal work start; remembered with the pattern."""
    cuts = pattern.derived.get(("cuts", blocks))
    if cuts is None:
        cuts = pattern.remember(("cuts", blocks), lambda: _balanced(pattern, blocks))
    return cuts


def _balanced(pattern: Pattern, blocks: int) -> np.ndarray:
    if blocks == 1:
        return np.array([0, pattern.counts[0]])
    starts = leaf_starts(pattern)
    work = np.arange(0, tuning.ROW_COST * len(starts), tuning.ROW_COST, dtype=np.int64)
    work += starts
    first, last = int(work[0]), int(work[-1])
    cuts: np.ndarray = work.searchsorted((np.arange(blocks + 1) * (last - first) + blocks - 1) // blocks + first)
    cuts[0], cuts[-1] = 0, len(starts) - 1
    level = pattern.format.levels[0]
    return cuts if level.is_unique or not level.is_ordered else _at_boundaries(pattern, cuts)  # copies alone walk lists without order


def placed(cuts: Callable[[Pattern, int], np.ndarray], pattern: Pattern, blocks: int) -> tuple[np.ndarray, int]:
    """Cuts, and where they lie in memory; remembered with the pattern."""
    bounds = pattern.derived.get((cuts, blocks))
    if bounds is None:
        bounds = pattern.remember((cuts, blocks), lambda: _with_address(cuts(pattern, blocks)))
    return bounds


@lru_cache(maxsize=1024)
def placed_equally(extent: int, blocks: int) -> tuple[np.ndarray, int]:
    """Cuts into blocks of equal length, and where they lie in memory."""
    return _with_address(equal_cuts(extent, blocks))


def _with_address(cuts: np.ndarray) -> tuple[np.ndarray, int]:
    array = np.ascontiguousarray(cuts, np.int64)
    return array, array.ctypes.data


def longest_row(pattern: Pattern) -> int:
    """How many positions of the last level the longest row has; remembered with the pattern."""
    longest: int | None = pattern.derived.get("longest row")
    if longest is None:
        pos = pattern.level_arrays(len(pattern.format.levels) - 1)[0]
        longest = pattern.remember("longest row", lambda: int(np.diff(pos).max(initial=0)))
    return longest


def leaf_starts(pattern: Pattern) -> np.ndarray:
    """For each position of the first level, and one past the last, where its values start."""
    if pattern.format.levels == BY_ROWS:
        return pattern.views[0]
    starts = np.arange(pattern.counts[0] + 1, dtype=np.int64)
    for at, level in list(enumerate(pattern.format.levels))[1:]:
        if "pos" in level.arrays:
            starts = pattern.level_arrays(at)[0][starts]
        elif not level.branchless:
            starts = starts * (pattern.counts[at] // max(pattern.counts[at - 1], 1))
    return starts


def _at_boundaries(pattern: Pattern, cuts: np.ndarray) -> np.ndarray:
    """Move cuts back to where a run of equal coordinates starts."""
    crd = pattern.level_arrays(0)[-1]  # levels with repeated coordinates store them
    inner = cuts[1:-1]
    inside = np.minimum(inner, len(crd) - 1) if len(crd) else inner
    if len(crd):
        cuts[1:-1] = np.where(inner < len(crd), np.searchsorted(crd, crd[inside]), inner)
    return cuts


def coordinate_cuts(pattern: Pattern, blocks: int) -> np.ndarray:
    """``cuts_of`` as coordinates, from 0 to the extent, where several operands are walked together; remembered with the pattern."""
    cuts = pattern.derived.get(("coordinate cuts", blocks))
    if cuts is None:
        cuts = pattern.remember(("coordinate cuts", blocks), lambda: _coordinates_at(pattern, cuts_of(pattern, blocks)))
    return cuts


def _coordinates_at(pattern: Pattern, cuts: np.ndarray) -> np.ndarray:
    extent = pattern.format.sizes(pattern.shape)[0]
    coordinates: np.ndarray = np.append(pattern.level_arrays(0)[-1], extent).astype(np.int64)[cuts]
    coordinates[0], coordinates[-1] = 0, extent
    return coordinates


def shared_out(work: np.ndarray, workers: int) -> np.ndarray:
    """The block that each worker starts with, so that all have about as much to do, and one past the last.

    ``work`` is that of the blocks before each one, and in all.

    >>> shared_out(np.array([0, 10, 20, 60, 100]), 2)
    array([0, 3, 4])
    """
    middles = (work[:-1] + work[1:]) // 2
    first: np.ndarray = middles.searchsorted(work[-1] * np.arange(workers + 1) // workers)
    first[0], first[-1] = 0, len(work) - 1
    return first


@lru_cache(maxsize=1024)
def equal_cuts(extent: int, blocks: int) -> np.ndarray:
    """Cuts of a dimension into blocks of equal length.

    >>> equal_cuts(10, 4)
    array([ 0,  2,  5,  7, 10])
    """
    return np.arange(blocks + 1, dtype=np.int64) * extent // blocks
