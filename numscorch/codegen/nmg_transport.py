"""Which combination each column of a block keeps in n:m:g, so that the kept magnitudes are the largest that there can be.

Every column first takes the combination whose values are largest. Where more columns of a chunk have taken one than may,
one after the other moves on, along the way that costs least, to a combination that has room: as in the transportation
problem, what is left at the end is the best of all ways to share them out (Ahuja, Magnanti, Orlin, "Network Flows", 1993,
section 9.7).
"""

from __future__ import annotations

import numpy as np

from .routines import jitted

FAR = 1 << 62


@jitted
def share(weights: np.ndarray, scale: float, rows: np.ndarray, chunk: int, kinds: np.ndarray, first: int, last: int) -> None:
    """Find the combinations of blocks first to last.

    Args:
        weights: magnitudes, of shape (blocks, m, columns).
        scale: what they are multiplied by, to be taken as whole numbers: their sums and differences are exact.
        rows: of each combination, its n rows; shape (combinations, n).
        chunk: columns that share out the combinations among them.
        kinds: where a column's combination is written; shape (blocks, columns).
    """
    columns, count = weights.shape[2], rows.shape[0]
    sums, costs = np.empty((chunk, count), np.int64), np.empty((count, count), np.int64)
    chosen, room = np.empty(chunk, np.int64), np.empty(count, np.int64)
    mover, distance, before = np.empty((count, count), np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    for block in range(first, last):
        for start in range(0, columns, chunk):
            width = min(chunk, columns - start)
            prefer(weights[block, :, start : start + width], scale, rows, sums, chosen, room)
            for kind in range(count):
                price(kind, sums, chosen, costs, mover, width)
            while relieve(costs, mover, distance, before, room, sums, chosen, width):
                pass
            for column in range(width):
                kinds[block, start + column] = chosen[column]


@jitted
def prefer(weights: np.ndarray, scale: float, rows: np.ndarray, sums: np.ndarray, chosen: np.ndarray, room: np.ndarray) -> None:
    """What each column keeps of each combination, the one that it would take, and how many more may take each."""
    count, width = rows.shape[0], weights.shape[1]
    for kind in range(count):
        room[kind] = (kind + 1) * width // count - kind * width // count
    preferred = np.empty(weights.shape[0], np.int64)
    for column in range(width):
        for row in range(len(preferred)):
            preferred[row] = int(weights[row, column] * scale)
        best = 0
        for kind in range(count):
            total = 0
            for place in range(rows.shape[1]):
                total += preferred[rows[kind, place]]
            sums[column, kind] = total
            if total > sums[column, best]:
                best = kind
        chosen[column] = best
        room[best] -= 1


@jitted
def price(kind: int, sums: np.ndarray, chosen: np.ndarray, costs: np.ndarray, mover: np.ndarray, width: int) -> None:
    """What it costs at least that a column moves on from one combination to each other, and which column that is."""
    count = sums.shape[1]
    for other in range(count):
        costs[kind, other] = FAR
    for column in range(width):
        if chosen[column] == kind:
            for other in range(count):
                lost = sums[column, kind] - sums[column, other]
                if lost < costs[kind, other]:
                    costs[kind, other], mover[kind, other] = lost, column


@jitted
def relieve(
    costs: np.ndarray,
    mover: np.ndarray,
    distance: np.ndarray,
    before: np.ndarray,
    room: np.ndarray,
    sums: np.ndarray,
    chosen: np.ndarray,
    width: int,
) -> bool:
    """Move columns along the cheapest way from a combination that too many have to one that has room; False where there is no need."""
    count = len(room)
    crowded = False
    for kind in range(count):
        crowded |= room[kind] < 0
        distance[kind], before[kind] = 0 if room[kind] < 0 else FAR, -1
    if not crowded:
        return False
    changed = True
    while changed:
        changed = False
        for kind in range(count):
            if distance[kind] < FAR:
                for other in range(count):
                    if costs[kind, other] < FAR and distance[kind] + costs[kind, other] < distance[other]:
                        distance[other], before[other], changed = distance[kind] + costs[kind, other], kind, True
    last = -1
    for kind in range(count):
        if room[kind] > 0 and (last < 0 or distance[kind] < distance[last]):
            last = kind
    room[last] -= 1
    moved = last
    while before[moved] >= 0:
        chosen[mover[before[moved], moved]] = moved
        moved = before[moved]
    room[moved] += 1
    while last >= 0:
        price(last, sums, chosen, costs, mover, width)
        last = before[last]
    return True
