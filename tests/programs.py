"""Programs that tests run as processes of their own: a file, since workers that are spawned import it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Python 3.12 warns of every fork of a process with threads, and torch has some; that such a child works is what is tested.
FORKS = "ignore:This process (pid=:DeprecationWarning"


def run_program(code: str, folder: Path, *arguments: str, timeout: int = 200, **environment: str) -> list[str]:
    """The lines that a program prints; it must not fail, warn, abort or hang, nor may the processes that it starts."""
    path = folder / "program.py"
    path.write_text(code, encoding="utf-8")
    command = [sys.executable, "-W", "error", "-W", FORKS, str(path), *arguments]
    settings = os.environ | {"PYTHONWARNINGS": FORKS} | environment
    process = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipes, too
        pytest.fail(f"the program, or a child of it, hangs\n{''.join(process.communicate())}")
    assert process.returncode == 0, f"{process.returncode}\n{printed}\n{errors}"
    return printed.splitlines()
