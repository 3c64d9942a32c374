"""Compilation messages: records of the logger "numscorch" at level INFO, and a progress line on terminals."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

LONG = 5.0  # seconds of compiling in a process after which ``WAY_OUT`` is logged
PATIENCE = 1.0  # seconds of compiling before the progress line appears
PAUSE = 5.0  # seconds without compiling that reset the progress line
EVERY = 1.0  # seconds between two updates of the progress line
COLUMNS = 80  # width of notebooks and of terminals that do not report their width
WAY_OUT = "the cache keeps these kernels for other processes, and python -m numscorch cache warm compiles kernels ahead of time"
log = logging.getLogger("numscorch")


@dataclass
class Counts:
    """Counts of the kernels of this process.

    Args:
        ready: kernels that were compiled or loaded from the cache.
        compiled: kernels that were compiled.
        compiling: time spent on compiling them, in seconds.
        recent: kernels that were compiled or loaded since the last pause.
        seconds: time spent on the recent kernels.
        ended: the time of ``time.monotonic`` at which the last kernel was ready.
        active: kernels that are being compiled or loaded.
    """

    ready: int = 0
    compiled: int = 0
    compiling: float = 0.0
    recent: int = 0
    seconds: float = 0.0
    ended: float = float("-inf")
    active: int = 0


@dataclass
class Goal:
    """The progress of a task that compiles kernels, in units such as requests."""

    total: int
    unit: str
    finished: int = 0


counts = Counts()
_lock = threading.Lock()
_goal: Goal | None = None


def tell(name: str, text: str, seconds: float) -> None:
    """Log that a kernel was compiled. Once per process, if compiling took longer than ``LONG``, also log how to avoid it."""
    with _lock:
        before = counts.compiling
        counts.compiling += seconds
        counts.compiled += 1
    log.info("compiled %s in %.1f s: %s", name, seconds, _expression(text))
    if before < LONG <= before + seconds:
        log.info("compiling has taken %.1f s in this process: %s", before + seconds, WAY_OUT)


@contextmanager
def expecting(total: int, unit: str) -> Iterator[Goal]:
    """Show the progress of a task in the progress line. The caller updates ``finished``.

    >>> with expecting(2, "requests") as goal:
    ...     goal.finished += 1
    ...     _progress(3)
    '1 of 2 requests, 3 kernels done'
    """
    global _goal
    before, _goal = _goal, Goal(total, unit)
    try:
        yield _goal
    finally:
        _goal = before


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a progress line on stderr while a kernel is compiled.

    The line appears after one second of compiling and is erased at the end. It names the kernel and counts the finished
    kernels. It appears only if stderr is a terminal or belongs to a notebook. ``NUMSCORCH_PROGRESS=0`` or
    ``logging.getLogger("numscorch").setLevel(logging.ERROR)`` disables it.

    >>> with waiting(""):
    ...     pass
    """
    started = time.monotonic()
    is_wanted = os.environ.get("NUMSCORCH_PROGRESS") != "0" and log.isEnabledFor(logging.WARNING) and is_read(sys.stderr)
    with _lock:
        if not counts.active and started > counts.ended + PAUSE:
            counts.recent, counts.seconds = 0, 0.0
        line = _Line(sys.stderr, text, counts.seconds) if not counts.active and is_wanted else None
        counts.active += 1
    if line is not None:
        line.start()
    try:
        yield
    finally:
        if line is not None:
            line.erase()
        with _lock:
            counts.active -= 1
            counts.ready += 1
            counts.recent += 1
            counts.ended = time.monotonic()
            counts.seconds += counts.ended - started


class _Line(threading.Thread):
    """A thread that writes the progress line while another thread compiles."""

    def __init__(self, stream: Any, text: str, waited: float):
        super().__init__(name="numscorch-progress", daemon=True)
        self.stream, self.kernel_text, self.waited, self.started_at = stream, text, waited, time.monotonic()
        self.is_over, self.width = threading.Event(), 0

    def run(self) -> None:
        delay = max(PATIENCE - self.waited, 0.0)
        while not self.is_over.wait(delay):
            self.write(self.text()[: max(columns(self.stream) - 1, 1)])
            delay = EVERY

    def text(self) -> str:
        """The current text. It starts with the parts that change, since narrow terminals cut off its end."""
        seconds = self.waited + time.monotonic() - self.started_at
        return f"numscorch: {_progress(counts.recent)}, {seconds:.0f} s, compiling {_expression(self.kernel_text)}"

    def write(self, text: str) -> None:
        """Replace the line, using only spaces and carriage returns, which notebooks support."""
        blank, self.width = " " * (self.width - len(text)), len(text)
        with suppress(OSError, ValueError):  # the terminal is closed
            print(f"\r{text}{blank}" if text else f"\r{blank}\r", end="", file=self.stream, flush=True)

    def erase(self) -> None:
        """End the thread and erase the line."""
        self.is_over.set()
        self.join()
        if self.width:
            self.write("")


def is_read(stream: Any) -> bool:
    """Whether a stream is a terminal or the output of a notebook cell."""
    if type(stream).__module__.partition(".")[0] == "ipykernel":
        return True
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # None or another object without the method, or a closed file
        return False


def columns(stream: Any) -> int:
    """The width of a terminal. A wrapped line cannot be erased."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS
    except (AttributeError, OSError, ValueError):
        return COLUMNS


def _progress(kernels: int) -> str:
    """The progress as text.

    >>> _progress(1), _progress(3)
    ('1 kernel done', '3 kernels done')
    """
    goal = "" if _goal is None else f"{_goal.finished} of {_goal.total} {_goal.unit}, "
    return f"{goal}{kernels} kernel{'' if kernels == 1 else 's'} done"


def _expression(text: str) -> str:
    """The expression of a kernel: the first line of its source."""
    return text.partition("\n")[0].removeprefix('"""')


def _after_fork() -> None:
    """Replace the lock in a forked child, where the thread that held it does not exist."""
    global _lock
    _lock = threading.Lock()
    counts.active = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
