"""Server that forks Python programs from a process that has imported torch, which takes two seconds.

Run as ``python program_server.py FD MODULES``: FD is a Unix socket, MODULES are imported once. A request is a line of JSON and three
files, for the output, the errors and the status. A supervisor process per program writes the program's process id and then its exit
status to the last one. Programs have their own session, and end as usual, with a shutdown of the interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import struct
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

NUMBER = struct.Struct("q")
WARNINGS = ["error", "ignore:This process (pid=:DeprecationWarning"]  # Python 3.12 warns of forks; the tests check that children work


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a supervisor and a program for each request. Returns the request in the program, and None after the last request."""
    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not data:
            return None
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (program := os.fork()) == 0:
                connect(files)
                return json.loads(data)
            supervise(program, files)
        for file in files:
            os.close(file)


def reap(number: int, frame: Any) -> None:
    """Wait for supervisors that have ended: the processor time of their programs counts as time of this process's children."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def supervise(program: int, files: list[int]) -> None:
    """Report the process id and the exit status of a program."""
    *outputs, status = files
    for file in outputs:
        os.close(file)
    os.write(status, NUMBER.pack(program))
    os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])))
    os._exit(0)


def connect(files: list[int]) -> None:
    """Make the first two files the standard output and errors of a new session."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for file, standard in zip(files, (1, 2), strict=False):
        os.dup2(file, standard)
    for file in files:
        os.close(file)


def run(request: dict[str, Any]) -> None:
    """Run a program as ``__main__``."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    path = request["path"]
    sys.argv = [path or "-c", *request["arguments"]]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [os.path.dirname(path) if path else "", *filter(None, given)]
    if request["strict"]:
        sys.warnoptions[:] = WARNINGS  # processes that the program spawns inherit them
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", r"This process \(pid=", DeprecationWarning)
    main = sys.modules["__main__"] = ModuleType("__main__")
    if path:
        main.__file__ = path
    gc.unfreeze()
    exec(compile(request["source"], path or "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        import_module(module)
    gc.freeze()  # forked programs do not copy the objects of torch
    if (request := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        run(request)
