"""First calls in fresh processes: a kernel that is nowhere yet, and one that lies on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Record

ROUNDS = 3
ROOT = Path(__file__).parent.parent


def first_call(cache: Path, product: str, threads: int, *options: str) -> float:
    """Seconds of the first call in a process of its own, torch's import left out."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["NUMSCORCH_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.fresh", product, str(threads), *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def variant(threads: int) -> str:
    """Which of a kernel's variants so many threads take."""
    return "serial" if threads == 1 else "parallel"


@pytest.mark.parametrize("product", ["spmm", "sddmm"])
def test_new_kernel(product: str, threads: int, record: Record, tmp_path: Path) -> None:
    """Schedule, generate, compile and run; Numba is imported already."""
    times = [first_call(tmp_path / str(at), product, threads, "numba") for at in range(ROUNDS)]
    record(times, kernel="compile", what=f"new kernel, {product}, {variant(threads)}", threads=threads, bar={"at_most": 2.0})


@pytest.mark.parametrize("product", ["spmm", "sddmm"])
def test_cached_kernel(product: str, threads: int, record: Record, tmp_path: Path) -> None:
    """Import Numba, load the machine code from disk, and run."""
    first_call(tmp_path, product, threads)
    times = [first_call(tmp_path, product, threads) for _ in range(ROUNDS)]
    record(
        times,
        kernel="cached",
        what=f"cached kernel in a fresh process, {product}, {variant(threads)}",
        threads=threads,
        bar={"at_most": 1.2},
    )
