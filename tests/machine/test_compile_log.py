"""Compiled kernels are logged, and shown in a progress line on a terminal; kernels loaded from disk are not."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from programs import ChildProcess

from numscorch.codegen.source import Source
from numscorch.machine import compile_log

CALL = "ns.einsum('ij,j->i', ns.from_torch(torch.eye(3), ns.CSR), torch.ones(3))"


def stderr_lines(place: Path, *lines: str) -> list[str]:
    """Lines that a process with an empty cache writes to stderr."""
    program = "\n".join(
        ["import logging, os, torch", f"os.environ['NUMSCORCH_CACHE_DIR'] = {str(place)!r}", *lines, "import numscorch as ns", CALL]
    )
    process = ChildProcess(program, strict=False)
    errors = process.communicate(timeout=100)[1]
    assert process.returncode == 0, errors
    return errors.splitlines()


def test_a_process_that_logs_shows_compiled_kernels_and_the_next_one_compiles_nothing(tmp_path: Path) -> None:
    setup = "logging.basicConfig(level=logging.INFO, format='%(name)s %(levelname)s %(message)s')"
    (line,) = [line for line in stderr_lines(tmp_path, setup) if line.startswith("numscorch ")]
    assert line.startswith("numscorch INFO compiled kernel_")
    assert line.endswith(" s: C[i] += A[i,j] * B[j]")
    assert not [line for line in stderr_lines(tmp_path, setup) if line.startswith("numscorch ")]


def test_a_process_that_does_not_log_shows_nothing(tmp_path: Path) -> None:
    assert stderr_lines(tmp_path) == []


def test_long_compile_times_are_logged_once_with_a_remedy(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compile_log.counts, "compiling", 0.0)
    caplog.set_level(logging.INFO, logger="numscorch")
    for seconds in (3.0, 2.5, 9.0):
        compile_log.tell("kernel_0", '"""y[i] = 2\n"""', seconds)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "compiled kernel_0 in 3.0 s: y[i] = 2"
    assert [line for line in lines if "cache warm" in line] == [f"compiling has taken 5.5 s in this process: {compile_log.WAY_OUT}"]
    assert len(lines) == 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})  # isatty() is False, as ipykernel's is
SOURCE = Source("kernel_0", '"""y[i] = 2\n"""', cast("Any", None))
LINE = re.compile(r"\rnumscorch: (\d+ kernels? done, \d+ s, compiling y\[i\] = 2) *")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is compiled yet, and the progress line appears soon."""
    monkeypatch.setattr(compile_log, "PATIENCE", 0.01)
    monkeypatch.setattr(compile_log, "EVERY", 0.01)
    monkeypatch.setattr(compile_log, "counts", compile_log.Counts())


def compile_on(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch, until: str = "compiling") -> str:
    """Text written while a kernel is compiled: for 0.1 s, or until it contains ``until``."""
    monkeypatch.setattr(sys, "stderr", stream)
    with compile_log.waiting(SOURCE.text):
        latest = time.monotonic() + (5 if until else 0.1)
        while time.monotonic() < latest and not (until and stream is not None and until in stream.getvalue()):
            time.sleep(0.005)
    return "" if stream is None else stream.getvalue()


def on_screen(written: str) -> str:
    """Text that remains on the screen; text after a carriage return overwrites."""
    screen: list[str] = []
    for part in written.split("\r"):
        screen[: len(part)] = part
    return "".join(screen).rstrip()


@pytest.mark.parametrize("stream", [Terminal, Notebook])
def test_the_progress_line_names_the_statement_and_disappears(
    stream: Callable[[], io.StringIO], quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = compile_on(stream(), monkeypatch)
    match = LINE.match(written)
    assert match is not None and match[1] == "0 kernels done, 0 s, compiling y[i] = 2"
    assert on_screen(written) == "" and "\n" not in written


def test_the_line_counts_kernels_of_one_burst(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in ("0 kernels done", "1 kernel done", "2 kernels done"):
        assert count in compile_on(Terminal(), monkeypatch)
    with compile_log.expecting(7, "requests") as goal:
        goal.finished += 2
        assert "2 of 7 requests, 3 kernels done" in compile_on(Terminal(), monkeypatch)
    compile_log.counts.ended -= compile_log.PAUSE  # some seconds later
    assert "0 kernels done" in compile_on(Terminal(), monkeypatch)


def test_the_line_changes_while_a_kernel_takes_long(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_log.counts.seconds, compile_log.counts.ended = 3.7, time.monotonic()
    written = compile_on(Terminal(), monkeypatch, until="5 s")
    assert "4 s" in written and on_screen(written) == ""


@pytest.mark.parametrize(
    ("stream", "level", "setting"),
    [
        (Terminal(), logging.ERROR, "1"),
        (Terminal(), logging.NOTSET, "0"),
        (Notebook(), logging.NOTSET, "0"),
        (io.StringIO(), logging.NOTSET, "1"),
        (None, logging.NOTSET, "1"),
    ],
    ids=["logging is off", "progress is off", "progress is off in a notebook", "pipe", "no stderr"],
)
def test_nothing_is_written_without_a_terminal_or_if_progress_is_off(
    stream: io.StringIO | None,
    level: int,
    setting: str,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("NUMSCORCH_PROGRESS", setting)
    caplog.set_level(level, logger="numscorch")
    assert compile_on(stream, monkeypatch, until="") == ""


def test_a_closed_stderr_is_ignored(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Terminal()
    monkeypatch.setattr(sys, "stderr", closed)
    with compile_log.waiting(SOURCE.text):
        time.sleep(0.05)
        closed.close()
        time.sleep(0.05)
    with compile_log.waiting(SOURCE.text):
        time.sleep(0.05)


def test_short_compile_times_show_no_progress_line(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log, "PATIENCE", 0.2)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with compile_log.waiting(SOURCE.text):
        pass
    time.sleep(0.3)
    assert cast("Terminal", sys.stderr).getvalue() == ""


def test_threads_share_one_line(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def compile_some() -> None:
        for _ in range(5):
            with compile_log.waiting(SOURCE.text):
                time.sleep(0.03)

    threads = [threading.Thread(target=compile_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = terminal.getvalue()
    assert (compile_log.counts.ready, compile_log.counts.active) == (20, 0)
    assert on_screen(written) == ""
    assert not re.sub(r"\r *\r", "", LINE.sub("", written)).strip()  # no partial lines
    assert not [thread for thread in threading.enumerate() if thread.name == "numscorch-progress"]


def test_a_line_is_cut_to_the_terminal(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log, "COLUMNS", 20)
    written = compile_on(Terminal(), monkeypatch, until="0 ker")
    assert max(map(len, written.split("\r"))) == 19


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("setting", ["", "0"])
def test_a_first_call_on_a_terminal(setting: str, tmp_path: Path) -> None:
    controller, terminal = os.openpty()
    change = "from numscorch.machine import compile_log; compile_log.PATIENCE = 0.05"
    program = f"import os, sys, torch; {change}; import numscorch as ns; {CALL}; print('.', file=sys.stderr); {CALL}"
    environment = os.environ | {"NUMSCORCH_CACHE_DIR": str(tmp_path), "NUMSCORCH_PROGRESS": setting}
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=terminal, env=environment, check=True)
    os.close(terminal)
    written = os.read(controller, 10_000).decode()
    os.close(controller)
    before, _, after = written.partition(".")
    assert after.strip() == "" and on_screen(before) == ""
    assert ("compiling C[i] += A[i,j] * B[j]" in before) == (setting != "0")
