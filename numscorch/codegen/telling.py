"""Messages about compiling: by Python's logging as "numscorch" at level INFO, and a line on a terminal where a user waits."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .source import Source

LONG = 5.0  # seconds of compiling in a process after which it is told how they are saved
PATIENCE = 2.0  # seconds of compiling in a process before a line appears on the terminal
WAY_OUT = "other processes find these kernels on disk, and python -m numscorch cache warm compiles kernels ahead"
log = logging.getLogger("numscorch")
_total = 0.0


def tell(source: Source, parallel: bool, seconds: float) -> None:
    """A line for a kernel that was compiled, and once one for all of them, where they took long."""
    global _total
    before, _total = _total, _total + seconds
    variant = "with threads" if parallel else "serial"
    log.info("compiled %s, %s, in %.1f s: %s", source.name, variant, seconds, _expression(source))
    if before < LONG <= _total:
        log.info("compiling has taken %.1f s in this process: %s", _total, WAY_OUT)


@contextmanager
def waiting(source: Source) -> Iterator[None]:
    """Write one line to stderr as soon as this process has compiled for two seconds.

    The line appears once in a process, and only where stderr is a terminal: not in tests, pipes and notebooks.
    ``logging.getLogger("numscorch").setLevel(logging.ERROR)`` switches it off.

    >>> with waiting(Source("kernel_0", "", None)):
    ...     pass
    """
    if _total >= PATIENCE or sys.stderr is None or not sys.stderr.isatty() or not log.isEnabledFor(logging.WARNING):
        yield
        return
    timer = threading.Timer(PATIENCE - _total, _notice, (source,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _notice(source: Source) -> None:
    told = f"numscorch: compiling kernels, now {_expression(source)}; they are kept on disk for later runs"
    print(told, file=sys.stderr, flush=True)


def _expression(source: Source) -> str:
    """What a kernel computes: the first line of its source."""
    return source.text.partition("\n")[0].removeprefix('"""')
