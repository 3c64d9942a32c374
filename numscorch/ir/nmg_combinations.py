"""The combinations ("kinds") of n of m coordinates, and their positions in the chunks of the n:m:g format.

A *chunk* consists of ``C(m, n) * g`` consecutive positions. The first g positions have the first combination, the next g
have the second one, and so on (Ivanov et al., "STen: Productive and Efficient Sparsity in PyTorch", 2023).
The last chunk may be shorter. Its ``width`` positions are divided evenly: kind k starts at ``k * width // C(m, n)``.

Packing assigns a combination to each coordinate, with a limit on the coordinates per combination: a bipartite matching, for many
chunks at once. A coordinate that uses n places has exactly one possible combination. The remaining coordinates are assigned greedily: those
with the fewest possible combinations first, each to the combination with the most capacity left. If a coordinate finds none,
coordinates are reassigned along the shortest augmenting path (Kuhn, "The Hungarian method for the assignment problem", 1955).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

MOST_KINDS = 1 << 12  # maximum number of combinations of a format
TABLE_SIZE = 1 << 16  # bit masks below this number are looked up in a table
SLAB = 1 << 22  # maximum number of booleans allocated at once


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
    """The first position of each kind in a chunk of ``width`` positions, followed by ``width``.

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


def assigned(used: np.ndarray, kinds: np.ndarray, capacity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Assign a combination ("kind") to each coordinate of each chunk.

    Args:
        used: bit masks of the places that each coordinate uses, of shape (chunks, coordinates).
        kinds: bit masks of the places of each kind, of shape (kinds,).
        capacity: the maximum number of coordinates of a chunk for each kind, of shape (kinds,).

    Returns:
        The kinds, of shape (chunks, coordinates), -1 where none was found; and the indices of the chunks that contain -1.

    Complexity:
        O(chunks * coordinates * kinds), more if coordinates have to be reassigned.

    >>> assigned(np.array([[0, 1, 2]]), np.array([1, 2]), np.array([2, 1]))[0].tolist()
    [[0, 0, 1]]
    """
    chosen = _exact(used, kinds)
    failed = np.zeros(len(used), dtype=bool)
    unmatched = np.flatnonzero((chosen < 0).any(axis=1) | (_counts(chosen, len(kinds)) > capacity).any(axis=1))
    step = max(SLAB // max(used.shape[1] * len(kinds), 1), 1)
    for rows in (unmatched[first : first + step] for first in range(0, len(unmatched), step)):
        chosen[rows] = _match(used[rows], kinds, capacity)
        failed[rows] = (chosen[rows] < 0).any(axis=1)
    return chosen, np.flatnonzero(failed)


def _exact(used: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """The kind with exactly the places that a coordinate uses; -1 if there is none."""
    largest = int(kinds.max())
    if largest < TABLE_SIZE:
        table = np.full(largest + 1, -1)
        table[kinds] = np.arange(len(kinds))
        return table[used]
    places = np.argsort(kinds, kind="stable")
    at = places[np.minimum(np.searchsorted(kinds, used, sorter=places), len(kinds) - 1)]
    return np.where(kinds[at] == used, at, -1)


def _counts(chosen: np.ndarray, kinds: int) -> np.ndarray:
    """The number of coordinates of each kind in each chunk, of shape (chunks, kinds)."""
    rows = np.arange(len(chosen))[:, None] * (kinds + 1)
    counts = np.bincount((rows + chosen + 1).reshape(-1), minlength=len(chosen) * (kinds + 1))
    return counts.reshape(len(chosen), kinds + 1)[:, 1:]


def _match(used: np.ndarray, kinds: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Assign a kind to each coordinate, greedily and then by augmenting paths; -1 where none is possible."""
    fits = (used[:, :, None] & ~kinds) == 0
    room = np.tile(capacity, (len(used), 1))
    chosen = np.full(used.shape, -1)
    every = np.arange(len(used))
    choices = fits.sum(axis=2)
    for column in np.argsort(choices, axis=1, kind="stable").T:  # fewest choices first
        available = np.where(fits[every, column], room, 0)
        best = available.argmax(axis=1)
        matched = available[every, best] > 0
        chosen[every[matched], column[matched]] = best[matched]
        room[every[matched], best[matched]] -= 1
    for row in np.flatnonzero((chosen < 0).any(axis=1)):
        _settle(chosen[row], room[row], fits[row])
    return chosen


def _settle(chosen: np.ndarray, room: np.ndarray, fits: np.ndarray) -> None:
    """Assign kinds to the unassigned coordinates of a chunk by augmenting paths, in place; -1 stays where no path exists."""
    for column in np.flatnonzero(chosen < 0):
        path = _augmenting_path(int(column), chosen, room, fits)
        for coordinate, kind in path:
            chosen[coordinate] = kind
        if path:
            room[path[0][1]] -= 1


def _augmenting_path(column: int, chosen: np.ndarray, room: np.ndarray, fits: np.ndarray) -> list[tuple[int, int]]:
    """The shortest augmenting path from an unassigned coordinate, found by breadth-first search.

    Returns:
        The new (coordinate, kind) pairs, from the kind with capacity left back to the start; empty if there is no path.
    """
    paths = {int(kind): [(column, int(kind))] for kind in np.flatnonzero(fits[column])}
    queue = list(paths)
    for kind in queue:
        if room[kind] > 0:
            return paths[kind]
        for coordinate in np.flatnonzero(chosen == kind):
            for next_kind in np.flatnonzero(fits[coordinate]):
                if int(next_kind) not in paths:
                    paths[int(next_kind)] = [(int(coordinate), int(next_kind)), *paths[kind]]
                    queue.append(int(next_kind))
    return []
