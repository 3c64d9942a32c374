"""Defer Ctrl-C during compilation: KeyboardInterrupt is raised after the kernel is compiled.

LLVM calls Python functions during compilation. Python prints and discards exceptions in such callbacks and in finalizers, so
an interrupt there would be lost, together with the machine code that the callback received.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred() -> Iterator[None]:
    """Defer SIGINT to the end of a block in the main thread. The installed handler then runs once.

    >>> try:
    ...     with deferred():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("the block is completed")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    the block is completed
    interrupted
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main_thread else None
    if not callable(handler):  # it is the system's, or another thread's
        yield
        return
    arrived: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(signal.SIGINT, arrived[0])
