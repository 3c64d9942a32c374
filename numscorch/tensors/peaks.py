"""Peaks: about how many values of a pattern share the most frequent coordinate of each level, from a sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.format import Format
from ..ir.levels import Dense, Singleton
from ..ir.padded import Bitmap
from ..schedule import tuning


def peaks_of(format: Format, sizes: Sequence[int], count: int, arrays: Sequence[tuple[np.ndarray, ...]]) -> tuple[int, ...]:
    """For each level, the number of values with its most frequent coordinate: a power of 4, or 0 below about 512 values.

    Args:
        format: of the pattern.
        sizes: the extent of each level.
        count: the number of values.
        arrays: the index arrays of each level.

    The estimate reads one position of 32. Levels that store no coordinates, and levels above one with neither ``pos`` nor a fixed size,
    count as 0.

    >>> from numscorch import from_torch
    >>> import torch
    >>> square = torch.eye(3000)
    >>> square[0] = 1
    >>> from_torch(square, "CSR").pattern.peaks
    (1024, 0)
    """
    peaks = [0] * len(format.levels)
    if count < tuning.PEAK_STEP * tuning.PEAK_HITS:
        return tuple(peaks)
    positions = _sample(count)
    for at, level in reversed(list(enumerate(format.levels))):
        if isinstance(level, Dense | Bitmap):
            positions, coordinates = np.divmod(positions, max(sizes[at], 1))
        elif "crd" in level.arrays:
            coordinates = arrays[at][-1][positions]
        else:
            break
        peaks[at] = _peak(coordinates[coordinates >= 0])
        if "pos" in level.arrays:
            positions = np.searchsorted(arrays[at][0], positions, "right") - 1
        elif not isinstance(level, Dense | Bitmap | Singleton):
            break
    return tuple(peaks)


def _sample(count: int) -> np.ndarray:
    """One position of each ``tuning.PEAK_STEP``, at a pseudorandom offset, so that no regular pattern falls between the samples."""
    first = np.arange(0, count - tuning.PEAK_STEP + 1, tuning.PEAK_STEP, dtype=np.int64)
    sample: np.ndarray = first + (first * 0x9E3779B1 >> 16) % tuning.PEAK_STEP
    return sample


def _peak(coordinates: np.ndarray) -> int:
    """The number of values that the most frequent sampled coordinate stands for, rounded down to a power of 4."""
    ordered = np.sort(coordinates)
    if not (ordered[tuning.PEAK_HITS - 1 :] == ordered[: max(len(ordered) - tuning.PEAK_HITS + 1, 0)]).any():
        return 0
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    hits = int(np.diff(ends, prepend=-1).max())
    return 1 << ((hits * tuning.PEAK_STEP).bit_length() - 1) // 2 * 2
