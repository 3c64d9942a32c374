"""Programs run in separate processes, from a file that spawned workers can import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Python 3.12 warns when a process with threads forks. torch has threads, and the tests check that forked children work.
FORKS = "ignore:This process (pid=:DeprecationWarning"


def run_program(code: str, folder: Path, *arguments: str, timeout: int = 200, **environment: str) -> list[str]:
    """Run a program and return its printed lines; it and its child processes must not fail, warn, abort or hang."""
    path = folder / "program.py"
    path.write_text(code, encoding="utf-8")
    command = [sys.executable, "-W", "error", "-W", FORKS, str(path), *arguments]
    settings = os.environ | {"PYTHONWARNINGS": FORKS} | environment
    process = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # child processes also hold the pipes
        pytest.fail(f"the program, or a child of it, hangs\n{''.join(process.communicate())}")
    assert process.returncode == 0, f"{process.returncode}\n{printed}\n{errors}"
    return printed.splitlines()
