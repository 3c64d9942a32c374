"""The combinations ("kinds") of n of m coordinates, and their positions in the chunks of the n:m:g format.

A *chunk* consists of ``C(m, n) * g`` consecutive positions. The first g positions have the first combination, the next g
have the second one, and so on (Ivanov, Ben-Nun, Hoefler et al., "STen: Productive and Efficient Sparsity in PyTorch", 2023).
The last chunk may be shorter. Its ``width`` positions are divided evenly: kind k starts at ``k * width // C(m, n)``.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

MOST_KINDS = 1 << 12  # maximum number of combinations of a format


@lru_cache(maxsize=64)
def listed(n: int, m: int) -> tuple[tuple[int, ...], ...]:
    """All combinations of n of m coordinates, in lexicographic order.

    >>> listed(2, 3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple(combinations(range(m), n))


@lru_cache(maxsize=64)
def table(n: int, m: int) -> np.ndarray:
    """The combinations as an array of shape (C(m, n), n)."""
    return np.array(listed(n, m), dtype=np.int64).reshape(comb(m, n), n)


@lru_cache(maxsize=64)
def masks(n: int, m: int) -> np.ndarray:
    """The bit mask of each combination.

    >>> masks(2, 3).tolist()
    [3, 5, 6]
    """
    return (1 << table(n, m)).sum(axis=1)


def starts(width: int, kinds: int) -> np.ndarray:
    """The first position of each kind in a chunk of a width, followed by the width.

    >>> starts(6, 3).tolist(), starts(4, 3).tolist()
    ([0, 2, 4, 6], [0, 1, 2, 4])
    """
    return np.arange(kinds + 1) * width // kinds


def kinds_at(places: np.ndarray, size: int, kinds: int, each: int) -> np.ndarray:
    """The kind at each position, for ``size`` positions in chunks of ``kinds * each``.

    >>> kinds_at(np.arange(10), 10, 3, 2).tolist()
    [0, 0, 1, 1, 2, 2, 0, 1, 2, 2]
    """
    chunk = kinds * each
    first = places // chunk * chunk
    return ((places - first + 1) * kinds - 1) // np.maximum(np.minimum(chunk, size - first), 1)
