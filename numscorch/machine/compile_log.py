"""Messages about compiling: by Python's logging as "numscorch" at level INFO, and a line on a terminal where a user waits."""

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

LONG = 5.0  # seconds of compiling in a process after which it is told how they are saved
PATIENCE = 1.0  # seconds of compiling before a line appears on the terminal
PAUSE = 5.0  # seconds without compiling after which patience starts anew
EVERY = 1.0  # seconds between two updates of the line
COLUMNS = 80  # of a notebook, and of a terminal that doesn't say
OFF = "0"  # of NUMSCORCH_PROGRESS
WAY_OUT = "other processes find these kernels on disk, and python -m numscorch cache warm compiles kernels ahead"
log = logging.getLogger("numscorch")
_total = 0.0


@dataclass
class Counts:
    """Kernels that were made ready in this process, from the disk too; those of them that were compiled; and both since the last pause."""

    ready: int = 0
    compiled: int = 0
    recent: int = 0
    seconds: float = 0.0
    ended: float = float("-inf")
    active: int = 0


@dataclass
class Goal:
    """Pieces of work that compile kernels, as requests, and how many of them are done."""

    total: int
    unit: str
    finished: int = 0


counts = Counts()
_lock = threading.Lock()
_goal: Goal | None = None


def tell(name: str, text: str, seconds: float) -> None:
    """A line for a file that was compiled, and once one for all of them, where they took long."""
    global _total
    with _lock:
        before, _total = _total, _total + seconds
        counts.compiled += 1
    log.info("compiled %s in %.1f s: %s", name, seconds, _expression(text))
    if before < LONG <= before + seconds:
        log.info("compiling has taken %.1f s in this process: %s", before + seconds, WAY_OUT)


@contextmanager
def expecting(total: int, unit: str) -> Iterator[Goal]:
    """Within it, the line on the terminal says how much of some work is done; whoever does the work counts.

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
    """Show a line on stderr while a kernel is compiled, once compiling has taken a second; the line is erased at the end.

    The line names the kernel and counts those that are done. It appears where stderr is a terminal or a notebook's, so not in tests
    and pipes. ``NUMSCORCH_PROGRESS=0`` turns it off, as does ``logging.getLogger("numscorch").setLevel(logging.ERROR)``.

    >>> with waiting(""):
    ...     pass
    """
    started = time.monotonic()
    with _lock:
        if not counts.active and started > counts.ended + PAUSE:
            counts.recent, counts.seconds = 0, 0.0
        line = _Line(sys.stderr, text, counts.seconds) if not counts.active and _is_wanted() else None
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
    """A thread that writes the line while another one compiles."""

    def __init__(self, stream: Any, text: str, waited: float):
        super().__init__(name="numscorch-progress", daemon=True)
        self.stream, self.kernel_text, self.waited, self.started_at = stream, text, waited, time.monotonic()
        self.is_over, self.width = threading.Event(), 0

    def run(self) -> None:
        left = max(PATIENCE - self.waited, 0.0)
        while not self.is_over.wait(left):
            self.write(self.text()[: max(columns(self.stream) - 1, 1)])
            left = EVERY

    def text(self) -> str:
        """The line as it stands, which starts with what changes: its end may be cut."""
        seconds = self.waited + time.monotonic() - self.started_at
        return f"numscorch: {_progress(counts.recent)}, {seconds:.0f} s, compiling {_expression(self.kernel_text)}"

    def write(self, text: str) -> None:
        """Replace the line, by spaces and returns alone, which notebooks understand as well."""
        blank, self.width = " " * (self.width - len(text)), len(text)
        with suppress(OSError, ValueError):  # a terminal that is gone
            self.stream.write(f"\r{text}{blank}" if text else f"\r{blank}\r")
            self.stream.flush()

    def erase(self) -> None:
        """End the thread; then the line is gone."""
        self.is_over.set()
        self.join()
        if self.width:
            self.write("")


def _is_wanted() -> bool:
    """Whether somebody can read a line: a terminal, or a notebook."""
    return os.environ.get("NUMSCORCH_PROGRESS") != OFF and log.isEnabledFor(logging.WARNING) and is_read(sys.stderr)


def is_read(stream: Any) -> bool:
    """Whether a stream is a terminal, or a cell of a notebook."""
    if stream is None:
        return False
    if type(stream).__module__.partition(".")[0] == "ipykernel":
        return True
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # it is closed, or no file
        return False


def columns(stream: Any) -> int:
    """The width of a terminal: a line that wraps can't be erased."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS
    except (AttributeError, OSError, ValueError):
        return COLUMNS


def _progress(kernels: int) -> str:
    """How far compiling is.

    >>> _progress(1), _progress(3)
    ('1 kernel done', '3 kernels done')
    """
    goal = "" if _goal is None else f"{_goal.finished} of {_goal.total} {_goal.unit}, "
    return f"{goal}{kernels} kernel{'' if kernels == 1 else 's'} done"


def _expression(text: str) -> str:
    """What a kernel computes: the first line of its source."""
    return text.partition("\n")[0].removeprefix('"""')


def _after_fork() -> None:
    """A child has no thread that could free a lock which was taken at the fork."""
    global _lock
    _lock = threading.Lock()
    counts.active = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
