"""Which combination each coordinate takes, where no more than so many may take the same: a matching, in many chunks at once.

Coordinates of which all n places are used have no choice. The others choose, those with the fewest first, what has most room
left; where that leaves one without, coordinates that have chosen already move on along the shortest way to where there is
room (Kuhn, "The Hungarian method for the assignment problem", 1955).
"""

from __future__ import annotations

import numpy as np

LOOKED_UP = 1 << 16  # the largest number of places' bits that a table is made for
SLAB = 1 << 22  # truth values that are made at a time


def assigned(used: np.ndarray, kinds: np.ndarray, capacity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kind for each coordinate of each chunk, and which chunks have none for some.

    Args:
        used: of each coordinate, the places that it uses, as bits; shape (chunks, coordinates).
        kinds: of each kind, the places that it has, as bits; shape (kinds,).
        capacity: how many coordinates of a chunk may have each kind; shape (kinds,).

    Returns:
        kinds, of shape (chunks, coordinates), -1 where none is left; and the numbers of the chunks that have some of these.

    Complexity:
        O(chunks * coordinates * kinds), more where coordinates have to move.

    >>> assigned(np.array([[0, 1, 2]]), np.array([1, 2]), np.array([2, 1]))[0].tolist()
    [[0, 0, 1]]
    """
    chosen = _exact(used, kinds)
    over = np.zeros(len(used), dtype=bool)
    loose = np.flatnonzero((chosen < 0).any(axis=1) | (_counts(chosen, len(kinds)) > capacity).any(axis=1))
    step = max(SLAB // max(used.shape[1] * len(kinds), 1), 1)
    for rows in (loose[first : first + step] for first in range(0, len(loose), step)):
        chosen[rows] = _matched(used[rows], kinds, capacity)
        over[rows] = (chosen[rows] < 0).any(axis=1)
    return chosen, np.flatnonzero(over)


def _exact(used: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """The kind that has just the places which a coordinate uses, -1 where none has."""
    most = int(kinds.max())
    if most < LOOKED_UP:
        table = np.full(most + 1, -1)
        table[kinds] = np.arange(len(kinds))
        assigned: np.ndarray = table[used]
        return assigned
    places = np.argsort(kinds, kind="stable")
    at = places[np.minimum(np.searchsorted(kinds, used, sorter=places), len(kinds) - 1)]
    return np.where(kinds[at] == used, at, -1)


def _counts(chosen: np.ndarray, kinds: int) -> np.ndarray:
    """How many coordinates of each chunk have each kind."""
    rows = np.arange(len(chosen))[:, None] * (kinds + 1)
    counted = np.bincount((rows + chosen + 1).reshape(-1), minlength=len(chosen) * (kinds + 1))
    return counted.reshape(len(chosen), kinds + 1)[:, 1:]


def _matched(used: np.ndarray, kinds: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """A kind for each coordinate, as far as there are any left."""
    fits = (used[:, :, None] & ~kinds) == 0
    room = np.tile(capacity, (len(used), 1))
    chosen = np.full(used.shape, -1)
    every = np.arange(len(used))
    choices = fits.sum(axis=2)
    for column in np.argsort(choices, axis=1, kind="stable").T:  # those with the fewest choices first
        left = np.where(fits[every, column], room, 0)
        best = left.argmax(axis=1)
        matched = left[every, best] > 0
        chosen[every[matched], column[matched]] = best[matched]
        room[every[matched], best[matched]] -= 1
    for row in np.flatnonzero((chosen < 0).any(axis=1)):
        _settle(chosen[row], room[row], fits[row])
    return chosen


def _settle(chosen: np.ndarray, room: np.ndarray, fits: np.ndarray) -> None:
    """Find a kind for what has none in one chunk, moving others along; what is left has -1."""
    for column in np.flatnonzero(chosen < 0):
        moved = _way(int(column), chosen, room, fits)
        for coordinate, kind in moved:
            chosen[coordinate] = kind
        if moved:
            room[moved[0][1]] -= 1


def _way(column: int, chosen: np.ndarray, room: np.ndarray, fits: np.ndarray) -> list[tuple[int, int]]:
    """The shortest way by which a coordinate gets a kind: who takes which one, the last one first; nothing where there is no way."""
    came: dict[int, tuple[int, int]] = {int(kind): (column, -1) for kind in np.flatnonzero(fits[column])}
    queue = list(came)
    for kind in queue:
        if room[kind] > 0:
            return _traced(kind, came)
        for other in np.flatnonzero(chosen == kind):
            for further in np.flatnonzero(fits[other]):
                if int(further) not in came:
                    came[int(further)] = (int(other), kind)
                    queue.append(int(further))
    return []


def _traced(kind: int, came: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Who takes which kind, from the one that had room back to the start."""
    path = []
    while kind >= 0:
        coordinate, before = came[kind]
        path.append((coordinate, kind))
        kind = before
    return path
