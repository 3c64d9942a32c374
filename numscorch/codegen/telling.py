"""What compiling takes, told by Python's logging as "numscorch", at level INFO: nothing is shown unless a program asks for it."""

from __future__ import annotations

import logging

from .source import Source

LONG = 5.0  # seconds of compiling in a process after which it is told how they are saved
WAY_OUT = "other processes find these kernels on disk, and python -m numscorch cache warm compiles kernels ahead"
log = logging.getLogger("numscorch")
_total = 0.0


def tell(source: Source, parallel: bool, seconds: float) -> None:
    """A line for a kernel that was compiled, and once one for all of them, where they took long."""
    global _total
    before, _total = _total, _total + seconds
    variant, expression = "with threads" if parallel else "serial", source.text.partition("\n")[0].removeprefix('"""')
    log.info("compiled %s, %s, in %.1f s: %s", source.name, variant, seconds, expression)
    if before < LONG <= _total:
        log.info("compiling has taken %.1f s in this process: %s", _total, WAY_OUT)
