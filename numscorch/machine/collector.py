"""Pause the garbage collector during the import and while kernels are compiled.

A full collection traverses all of torch's objects and takes 0.1 s. Importing and compiling allocate enough to trigger several.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

was_enabled = gc.isenabled()
gc.disable()


def resume() -> None:
    """Restore the state that the collector had before the import."""
    if was_enabled:
        gc.enable()


@contextmanager
def paused() -> Iterator[None]:
    """Pause garbage collection; restore its previous state on exit.

    The state belongs to the process. Callers hold the compiler's lock (``BUILDING``); changes by other threads are undone.

    >>> with paused():
    ...     gc.isenabled()
    False
    """
    before = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if before:
            gc.enable()
