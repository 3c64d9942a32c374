"""Kernels that are compiled are told of by Python's logging, and those that are found on disk are not."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import time
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "level", "total", "is_shown"),
    [
        (Terminal(), logging.NOTSET, 0.0, True),
        (Terminal(), logging.ERROR, 0.0, False),
        (Terminal(), logging.NOTSET, 9.0, False),
        (io.StringIO(), logging.NOTSET, 0.0, False),
        (None, logging.NOTSET, 0.0, False),
    ],
    ids=["terminal", "switched off", "not the first", "pipe", "no stderr"],
)
def test_a_line_on_a_terminal_while_compiling(
    stderr: io.StringIO | None,
    level: int,
    total: float,
    is_shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(telling, "PATIENCE", 0.01)
    monkeypatch.setattr(telling, "_total", total)
    caplog.set_level(level, logger="numscorch")
    source = Source("kernel_0", '"""y[i] = 2\n"""', cast("Any", None))
    with telling.waiting(source):
        until = time.monotonic() + 5
        while is_shown and stderr is not None and not stderr.getvalue().endswith("\n") and time.monotonic() < until:
            time.sleep(0.01)
    told = "numscorch: compiling kernels, now y[i] = 2; they are kept on disk for later runs\n"
    assert (stderr.getvalue() if stderr is not None else "") == (told if is_shown else "")


def test_short_compiling_shows_nothing_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(telling, "PATIENCE", 0.05)
    monkeypatch.setattr(telling, "_total", 0.0)
    with telling.waiting(Source("kernel_0", "", cast("Any", None))):
        pass
    time.sleep(0.1)
    assert cast("Terminal", sys.stderr).getvalue() == ""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_first_call_on_a_terminal(tmp_path: Path) -> None:
    shown, terminal = os.openpty()
    program = f"import torch; from numscorch.codegen import telling; telling.PATIENCE = 0.05; import numscorch as ns; {CALL}; {CALL}"
    environment = os.environ | {"NUMSCORCH_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=terminal, env=environment, check=True)
    os.close(terminal)
    written = os.read(shown, 10_000).decode()
    os.close(shown)
    assert written.splitlines() == ["numscorch: compiling kernels, now C[i] += A[i,j] * B[j]; they are kept on disk for later runs"]
