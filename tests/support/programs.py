"""Programs run in separate processes, which :mod:`program_server` forks, because the import of torch takes two seconds."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from program_server import NUMBER

import numscorch

SERVER = Path(__file__).with_name("program_server.py")


@cache
def server(*modules: str) -> socket.socket:
    """The connection to a server that has imported these modules, started on the first use."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    home = Path(str(numscorch.__file__)).parents[1]  # programs import the package that the tests import
    settings = {**os.environ, "PYTHONPATH": str(home), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(SERVER), str(theirs.fileno()), *modules], env=settings, pass_fds=[theirs.fileno()])
    theirs.close()

    def stop() -> None:
        ours.close()
        process.wait()

    atexit.register(stop)
    return ours


class ChildProcess:
    """A running program.

    Args:
        source: its text.
        arguments: its ``sys.argv[1:]``.
        path: its file, which spawned workers import; by default it has none.
        environment: variables beside those of this process.
        strict: whether warnings are errors.
        imported: modules that the program finds imported.
    """

    def __init__(
        self,
        source: str,
        *arguments: str,
        path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        strict: bool = True,
        imported: Sequence[str] = ("torch",),
    ):
        request = {
            "source": source,
            "arguments": arguments,
            "path": str(path) if path else None,
            "environment": {**os.environ, **(environment or {})},
            "folder": os.getcwd(),
            "strict": strict,
        }
        reads, writes = zip(*(os.pipe() for _ in range(3)), strict=True)
        socket.send_fds(server(*imported), [json.dumps(request).encode()], writes)
        for file in writes:
            os.close(file)
        self._outputs = [os.fdopen(file, encoding="utf-8", errors="replace") for file in reads[:2]]
        self._status = reads[2]
        self.pid = self._number()
        self.returncode: int | None = None

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Output and errors, after the program and all its children have closed them; the test fails after ``timeout`` seconds."""
        with ThreadPoolExecutor(2) as pool:
            texts = [pool.submit(file.read) for file in self._outputs]
            try:
                printed, errors = (text.result(timeout) for text in texts)
            except TimeoutError:
                self.kill()
                pytest.fail("the program, or a child of it, hangs\n" + "\n".join(text.result() for text in texts))
        if not select.select([self._status], [], [], timeout)[0]:
            pytest.fail("the program does not end")
        self.returncode = self._number()
        os.close(self._status)
        for file in self._outputs:
            file.close()
        return printed, errors

    def kill(self) -> None:
        """End the program and its child processes, which also hold the pipes, unless it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _number(self) -> int:
        return int(NUMBER.unpack(os.read(self._status, NUMBER.size))[0])


def output_of(program: ChildProcess, timeout: float = 200) -> str:
    """What a program prints; it and its child processes must not fail, warn, abort or hang."""
    printed, errors = program.communicate(timeout)
    assert program.returncode == 0, f"{program.returncode}\n{printed}\n{errors}"
    return printed


def run_program(code: str, folder: Path, *arguments: str, timeout: float = 200, **environment: str) -> list[str]:
    """Run a program from a file, and return its printed lines."""
    path = folder / "program.py"
    path.write_text(code, encoding="utf-8")
    return output_of(ChildProcess(code, *arguments, path=path, environment=environment), timeout).splitlines()
