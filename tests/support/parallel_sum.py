"""A parallel function of Numba, cached on disk, for processes that test threading layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compiled() -> Callable[[Any, int], float]:
    """The sum of a vector in parallel parts; imports Numba."""
    import numba
    import numpy as np

    @numba.njit(parallel=True, cache=True)
    def total(x: Any, workers: int) -> float:
        parts = np.zeros(workers)
        for w in numba.prange(workers):
            for i in range(x.size * w // workers, x.size * (w + 1) // workers):
                parts[w] += x[i]
        return parts.sum()

    return total
