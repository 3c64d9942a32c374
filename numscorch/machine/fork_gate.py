"""A gate that lets kernels of all threads pass at once, and that a fork closes until those within have left."""

from __future__ import annotations

import threading
from types import TracebackType


class Gate:
    """Entered with ``with`` around each parallel kernel; closed around a fork.

    TBB ends its threads before a fork, and waits forever for those that are within a kernel of another Python thread.

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
        """Let nothing in any more, and wait until nothing is within."""
        with self._changed:
            while self._closing:
                self._changed.wait()
            self._closing = True
            while self.within:
                self._changed.wait()

    def open(self) -> None:
        """Let kernels in again."""
        with self._changed:
            self._closing = False
            self._changed.notify_all()
