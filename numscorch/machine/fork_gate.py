"""A gate that any number of kernels can enter, and that a fork closes until all kernels have left."""

from __future__ import annotations

import threading
from types import TracebackType


class Gate:
    """A context manager around each parallel kernel, which is closed during a fork.

    TBB stops its threads before a fork, and deadlocks if a kernel of another Python thread is running.

    >>> gate = Gate()
    >>> with gate:
    ...     gate.within
    1
    >>> gate.close(), gate.open()
    (None, None)
    """

    def __init__(self) -> None:
        self.within = 0
        self._changed = threading.Condition(threading.Lock())
        self._closing = False

    def __enter__(self) -> None:
        with self._changed:
            while self._closing:
                self._changed.wait()
            self.within += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._changed:
            self.within -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Block new kernels, and wait until the running ones have left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closing)
            self._closing = True
            self._changed.wait_for(lambda: not self.within)

    def open(self) -> None:
        """Admit kernels again."""
        with self._changed:
            self._closing = False
            self._changed.notify_all()
