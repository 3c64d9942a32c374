"""The launcher: machine code that calls the entry of a kernel for each worker. It is compiled once per installation."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any

from . import guards, kernel_cache, threads
from .compile_log import tell
from .fingerprints import OPTIONS, hashed
from .machine_code import CodeFile, stored_code
from .target import host

Launch = Callable[[int, int, int, int], None]
address_of: Callable[[bytes], int] = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))
# the entry at an address, as a function of the worker's number and the words, which runs without the GIL and returns a status
callable_at: Callable[[int], Callable[[int, bytes], int]] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)
_launch: Launch | None = None


def launcher(lock: AbstractContextManager[Any]) -> Launch:
    """The launch function, compiled or loaded from the cache while holding the lock. Starts the threads.

    Its arguments are the address of an entry, the address of the words, the number of workers, and the address of a word
    for the status of a call that fails.
    """
    global _launch
    if _launch is None:
        with lock:
            _launch = _launch or _build()
    return _launch


def name() -> str:
    """The name of the launcher in the kernel cache."""
    return f"kernel_{hashed(_text(), host())}"


def keep(lock: AbstractContextManager[Any]) -> None:
    """Store the launcher in the cache if it is missing. This process may have loaded it from another folder."""
    with lock:
        if stored_code(name(), _text()) is None:
            _build()


def _text() -> str:
    return files("numscorch").joinpath("machine/launch_loop.py").read_text()


def _build() -> Launch:
    with guards.deferred(), guards.paused():  # an interrupted import or compilation would stay incomplete
        guards.check_room()
        import numba
        from numba import types

        from .launch_loop import launch  # deferred: it imports Numba

        threads.prepare()
        names, text, signature = name(), _text(), (types.int64,) * 4
        kernel_cache.store(names, text)
        dispatcher: Any = numba.njit(parallel=True, nogil=True, **OPTIONS)(launch)
        dispatcher._cache = stored = CodeFile(names, text)
        started = time.perf_counter()
        dispatcher.compile(signature)
        if not stored.was_found:
            tell(names, text, time.perf_counter() - started)
        return dispatcher.overloads[signature].entry_point
