"""Guards of the import and of compilations: no garbage collection, no Ctrl-C, and enough address space.

A full garbage collection traverses all of torch's objects and takes 0.1 s. Importing and compiling allocate enough to trigger several.

LLVM calls Python functions during compilation. Python prints and discards exceptions in such callbacks and in finalizers, so
an interrupt there would be lost, together with the machine code that the callback received. KeyboardInterrupt is raised after
the kernel is compiled.

If memory runs out, NumPy, torch and Python raise an error. LLVM terminates the process instead, as does OpenMP if it cannot
start its threads. So the free address space is checked first, if the process has a limit (``ulimit -v``).
"""

from __future__ import annotations

import gc
import mmap
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ..errors import MemoryLimitError

resource: Any = None
with suppress(ImportError):  # Windows has neither the module nor such limits
    import resource

WITH_LLVM = 384 << 20  # bytes needed to load Numba and LLVM, start the threads and compile the first kernel
WITHOUT = 192 << 20  # bytes needed to compile a kernel once LLVM is loaded

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
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):  # not a Python handler, or not the main thread
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


def has_address_space(size: int) -> bool:
    """Whether ``size`` bytes of address space are left; True without a limit. O(1): the memory is mapped, but not written."""
    if resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return True
    with suppress(OSError):
        mmap.mmap(-1, size).close()
        return True
    return False


def check_room() -> None:
    """Check that enough address space is left to compile a kernel. O(1): the memory is mapped, but not written.

    Raises:
        MemoryLimitError: the process's limit leaves too little address space.
    """
    needed = WITHOUT if "llvmlite" in sys.modules else WITH_LLVM
    if not has_address_space(needed):
        raise MemoryLimitError(
            f"compiling a kernel may take {needed >> 20} MiB of address space, more than the process has left: raise its limit (ulimit -v)"
        )
