"""First steps in fresh processes with an empty cache, and from that cache: CPU seconds above Numba's own start."""

from __future__ import annotations

from functools import lru_cache

import pytest

from .cold_start import CACHED, Start, floor_of, start_of
from .conftest import Record
from .first_steps import STEPS, THREADS
from .selection import full_only
from .worktrees import ROOT

# at most: the ratios in ``cold_start.BARS`` of the seconds that commit 573de4c took on a machine with two cores
SECONDS = {"GCN": 0.75, "SAGE": 0.75, "GIN": 0.75, "GAT": 1.25, "SparseAttention": 1.3, "A @ A": 0.55, "A + A.t()": 0.5, "SpMM": 0.3}


@lru_cache
def floor() -> float:
    """The floor of this run."""
    return floor_of(ROOT)


@lru_cache
def start(step: str) -> Start:
    """Both measurements of a step: the second one needs the cache of the first."""
    return start_of(step, ROOT)


@full_only
@pytest.mark.parametrize("state", ["new", "cached"])
@pytest.mark.parametrize("step", STEPS)
def test_first_step(step: str, state: str, record: Record) -> None:
    """Schedule, generate, compile and run; then load the machine code from disk, and run."""
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
