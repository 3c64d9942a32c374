"""Combinations: which n of m coordinates a group's values have, and how groups of them share out a run of coordinates.

In n:m:g, ``C(m, n) * g`` neighbouring coordinates are a *chunk*: g of them have the first combination of n coordinates, the
next g the second one, and so on (Ivanov, Ben-Nun, Hoefler et al., "STen: Productive and Efficient Sparsity in PyTorch", 2023).
The last chunk may be shorter: its ``width`` coordinates are shared out evenly, kind k having those from ``k * width // C(m, n)`` on.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

MOST_KINDS = 1 << 12  # combinations that a table lists


@lru_cache(maxsize=64)
def listed(n: int, m: int) -> tuple[tuple[int, ...], ...]:
    """Every choice of n out of m coordinates, in order.

    >>> listed(2, 3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple(combinations(range(m), n))


@lru_cache(maxsize=64)
def table(n: int, m: int) -> np.ndarray:
    """The same as an array of shape (C(m, n), n)."""
    return np.array(listed(n, m), dtype=np.int64).reshape(comb(m, n), n)


@lru_cache(maxsize=64)
def masks(n: int, m: int) -> np.ndarray:
    """Each choice as a number with the bits of its coordinates set.

    >>> masks(2, 3).tolist()
    [3, 5, 6]
    """
    bits: np.ndarray = (1 << table(n, m)).sum(axis=1)
    return bits


def starts(width: int, kinds: int) -> np.ndarray:
    """Where each kind starts among the coordinates of a chunk, and the end of the last one.

    >>> starts(6, 3).tolist(), starts(4, 3).tolist()
    ([0, 2, 4, 6], [0, 1, 2, 4])
    """
    first: np.ndarray = np.arange(kinds + 1) * width // kinds
    return first


def kinds_at(places: np.ndarray, size: int, kinds: int, each: int) -> np.ndarray:
    """The kind at each place of a run of so many coordinates, in chunks of ``kinds * each``.

    >>> kinds_at(np.arange(10), 10, 3, 2).tolist()
    [0, 0, 1, 1, 2, 2, 0, 1, 2, 2]
    """
    chunk = kinds * each
    first = places // chunk * chunk
    numbers: np.ndarray = ((places - first + 1) * kinds - 1) // np.maximum(np.minimum(chunk, size - first), 1)
    return numbers
