"""Time of first calls in fresh processes, with new and with cached kernels, and of ``import numscorch``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import Record
from ..fresh import ROOT
from ..selection import full_only

ROUNDS = 5
IMPORT = "import time, torch; start = time.perf_counter(); import numscorch; print(time.perf_counter() - start)"
BARS = {"new": 1.2, "cached": 0.02, "import": 0.15}


def output(*arguments: str, cache: Path) -> str:
    """Standard output of a Python process that uses this cache folder."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")}
    environment |= {"NUMSCORCH_CACHE_DIR": str(cache), "PYTHONPYCACHEPREFIX": str(cache.parent / "bytecode")}
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A cache folder per thread count, since kernels have serial and parallel variants."""
    return {threads: tmp_path_factory.mktemp(f"cache{threads}") for threads in (1, 2)}


@full_only
@pytest.mark.parametrize("state", ["new", "cached"])
def test_first_call(state: str, threads: int, record: Record, folders: dict[int, Path]) -> None:
    """Schedule, generate, compile and run each kernel; with a filled cache, load its machine code from disk and run it."""
    if state == "cached" and not any(folders[threads].iterdir()):
        output("-m", "benchmarks.fresh", str(threads), cache=folders[threads])
    seconds = json.loads(output("-m", "benchmarks.fresh", str(threads), cache=folders[threads]))
    variant = "serial" if threads == 1 else "parallel"
    record(
        list(seconds.values()),
        kernel="first call",
        matrix="thirty kernels",
        variant=["what"],
        what=f"{state} kernel, median of {len(seconds)}, {variant}",
        longest=max(seconds, key=lambda name: seconds[name]),
        each=seconds,
        threads=threads,
        bar={"at_most": BARS[state]},
    )


@full_only
def test_import(record: Record, tmp_path: Path) -> None:
    """Import time of numscorch after torch, with cached bytecode: the first import writes the bytecode and is not counted."""
    times = [float(output("-c", IMPORT, cache=tmp_path)) for _ in range(1 + ROUNDS)]
    record(times[1:], kernel="import", matrix="none", what="import numscorch, after torch", threads=1, bar={"at_most": BARS["import"]})
