"""Peaks: estimate from a sample how many values of a pattern share the most frequent coordinate of each level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.format import Format
from ..ir.levels import Dense, Singleton
from ..ir.padded import Bitmap
from ..schedule import tuning


def peaks_of(format: Format, sizes: Sequence[int], count: int, arrays: Sequence[tuple[np.ndarray, ...]]) -> tuple[int, ...]:
    """Estimate, for each level, the number of values with its most frequent coordinate.

    The estimate samples one position in 32, or one in up to 256 of many. It is a power of 4, or 0 below about 16 samples, which
    are 512 to 4096 values. It is 0 for levels without coordinates, and for levels above a level with neither ``pos`` nor a fixed size.

    Args:
        format: the pattern's format.
        sizes: the extent of each level.
        count: the number of values.
        arrays: the index arrays of each level.

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
    step = min(max(tuning.PEAK_STEP, count // tuning.PEAK_SAMPLES), tuning.MOST_PEAK_STEP)
    positions = _sample(count, step)
    for at, level in reversed(list(enumerate(format.levels))):
        if isinstance(level, Dense | Bitmap):
            positions, coordinates = np.divmod(positions, max(sizes[at], 1))
        elif "crd" in level.arrays:
            coordinates = arrays[at][-1][positions]
        else:
            break
        peaks[at] = _peak(coordinates[coordinates >= 0], step)
        if "pos" in level.arrays:
            positions = np.searchsorted(arrays[at][0], positions, "right") - 1
        elif not isinstance(level, Dense | Bitmap | Singleton):
            break
    return tuple(peaks)


def _sample(count: int, step: int) -> np.ndarray:
    """One position in each ``step``, at a pseudorandom offset, to avoid aliasing with regular patterns."""
    first = np.arange(0, count - step + 1, step, dtype=np.int64)
    return first + (first * 0x9E3779B1 >> 16) % step


def _peak(coordinates: np.ndarray, step: int) -> int:
    """The estimated number of values with the most frequent sampled coordinate, rounded down to a power of 4."""
    ordered = np.sort(coordinates)
    if not (ordered[tuning.PEAK_HITS - 1 :] == ordered[: max(len(ordered) - tuning.PEAK_HITS + 1, 0)]).any():
        return 0
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    hits = int(np.diff(ends, prepend=-1).max())
    return 1 << ((hits * step).bit_length() - 1) // 2 * 2
