"""Kernels that are compiled are told of by Python's logging, and those that are found on disk are not."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from numscorch.codegen import telling
from numscorch.codegen.source import Source

CALL = "ns.einsum('ij,j->i', ns.from_torch(torch.eye(3), ns.CSR), torch.ones(3))"


def told(place: Path, *lines: str) -> list[str]:
    """What a process that has a cache of its own writes to stderr."""
    program = "\n".join(
        ["import logging, os, torch", f"os.environ['NUMSCORCH_CACHE_DIR'] = {str(place)!r}", *lines, "import numscorch as ns", CALL]
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ran.stderr.splitlines()


def test_a_process_that_asks_sees_what_it_compiles_and_the_next_one_compiles_nothing(tmp_path: Path) -> None:
    shown = "logging.basicConfig(level=logging.INFO, format='%(name)s %(levelname)s %(message)s')"
    (line,) = [line for line in told(tmp_path, shown) if line.startswith("numscorch ")]
    assert line.startswith("numscorch INFO compiled kernel_")
    assert ", serial, in " in line
    assert line.endswith(" s: C[i] += A[i,j] * B[j]")
    assert not [line for line in told(tmp_path, shown) if line.startswith("numscorch ")]


def test_a_process_that_doesnt_ask_sees_nothing(tmp_path: Path) -> None:
    assert told(tmp_path) == []


def test_long_compiling_is_told_once_with_what_saves_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(telling, "_total", 0.0)
    caplog.set_level(logging.INFO, logger="numscorch")
    source = Source("kernel_0", '"""y[i] = 2\n"""', cast("Any", None))
    for seconds in (3.0, 2.5, 9.0):
        telling.tell(source, True, seconds)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "compiled kernel_0, with threads, in 3.0 s: y[i] = 2"
    assert [line for line in lines if "cache warm" in line] == [f"compiling has taken 5.5 s in this process: {telling.WAY_OUT}"]
    assert len(lines) == 4
