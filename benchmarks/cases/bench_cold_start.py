"""CPU seconds of first steps in fresh processes, with an empty and with a filled kernel cache; Numba's start-up is subtracted."""

from __future__ import annotations

from functools import lru_cache

import pytest

from ..cold_start import CACHED, Start, floor_of, start_of
from ..conftest import Record
from ..first_steps import STEPS, THREADS
from ..selection import full_only
from ..worktrees import ROOT

# upper bounds: the seconds of commit 573de4c on a machine with two cores, times the ratios in ``cold_start.BARS``
SECONDS = {"GCN": 0.75, "SAGE": 0.75, "GIN": 0.75, "GAT": 1.25, "SparseAttention": 1.3, "A @ A": 0.55, "A + A.t()": 0.5, "SpMM": 0.3}


@lru_cache
def floor() -> float:
    """CPU seconds of Numba's start-up in this run."""
    return floor_of(ROOT)


@lru_cache
def start(step: str) -> Start:
    """Both measurements of a step; the second one uses the cache that the first one fills."""
    return start_of(step, ROOT)


@full_only
@pytest.mark.parametrize("state", ["new", "cached"])
@pytest.mark.parametrize("step", STEPS)
def test_first_step(step: str, state: str, record: Record) -> None:
    """Schedule, generate, compile and run the kernels; with a filled cache, load their machine code from disk and run it."""
    seconds = start(step).compiling if state == "new" else start(step).cached
    record(
        [max(seconds - floor(), 0.0)],
        kernel="first step",
        matrix="generated",
        variant=["what"],
        what=f"{step}, {state} kernels, CPU seconds above Numba's start",
        kernels_in_cache=start(step).kernels,
        threads=THREADS,
        bar={"at_most": SECONDS[step] if state == "new" else CACHED},
    )
