"""Choose the combination that each column of an n:m:g block keeps, so that the sum of the kept magnitudes is maximal.

Each column first takes the combination with its largest values. If more columns of a chunk take a combination than its
capacity, columns move one by one along the cheapest path to a combination with room. As in the transportation problem, the final
assignment is optimal (Ahuja, Magnanti, Orlin, "Network Flows", 1993, section 9.7).
"""

from __future__ import annotations

import numpy as np

from .routines import jitted

FAR = 1 << 62  # cost of an impossible move


@jitted
def choose_combinations(weights: np.ndarray, scale: float, rows: np.ndarray, chunk: int, kinds: np.ndarray, first: int, last: int) -> None:
    """Find the combinations of the blocks first, ..., last - 1.

    Args:
        weights: magnitudes, of shape (blocks, m, columns).
        scale: factor that makes the magnitudes integers, so that their sums and differences are exact.
        rows: the n rows of each combination, of shape (combinations, n).
        chunk: number of columns in a chunk, which share the capacity of each combination.
        kinds: output, the combination of each column, of shape (blocks, columns).
        first: the first block.
        last: one past the last block.
    """
    columns, count = weights.shape[2], rows.shape[0]
    sums, costs = np.empty((chunk, count), np.int64), np.empty((count, count), np.int64)
    chosen, room = np.empty(chunk, np.int64), np.empty(count, np.int64)
    mover, distance, before = np.empty((count, count), np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    for block in range(first, last):
        for start in range(0, columns, chunk):
            width = min(chunk, columns - start)
            choose_best(weights[block, :, start : start + width], scale, rows, sums, chosen, room)
            for kind in range(count):
                price_moves(kind, sums, chosen, costs, mover, width)
            while move_to_room(costs, mover, distance, before, room, sums, chosen, width):
                pass
            for column in range(width):
                kinds[block, start + column] = chosen[column]


@jitted
def choose_best(weights: np.ndarray, scale: float, rows: np.ndarray, sums: np.ndarray, chosen: np.ndarray, room: np.ndarray) -> None:
    """Compute the sum that each column keeps with each combination, its best combination, and the room left in each combination."""
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
def price_moves(kind: int, sums: np.ndarray, chosen: np.ndarray, costs: np.ndarray, mover: np.ndarray, width: int) -> None:
    """Find the cheapest column to move from one combination to each other combination, and its cost."""
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
def move_to_room(
    costs: np.ndarray,
    mover: np.ndarray,
    distance: np.ndarray,
    before: np.ndarray,
    room: np.ndarray,
    sums: np.ndarray,
    chosen: np.ndarray,
    width: int,
) -> bool:
    """Move columns along the cheapest path from an overfull combination to one with room; return False if none is overfull."""
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
        price_moves(last, sums, chosen, costs, mover, width)
        last = before[last]
    return True
