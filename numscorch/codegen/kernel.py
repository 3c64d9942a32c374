"""Kernel: a source file, compiled by Numba for the types of its parameters."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..runtime import address_space, kernel_cache, machine_code, threads
from .assembly import Param
from .source import OPTIONS, Source
from .telling import tell
from .twins import run_as_python

BUILDING = threading.RLock()  # held while a plan is made or a kernel compiled, and over a fork
DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ImportError,
    IndexError,
    OSError,
    RuntimeError,
)


class Kernel:
    """A source file and the functions that Numba makes of it, each compiled when it is first asked for.

    The serial variant is the same file compiled without threads: it runs small problems, and large
    ones where there is one thread, and gives the same bits.
    """

    __slots__ = ("_parallel", "_serial", "path", "plain", "source")

    def __init__(self, source: Source, path: Path, plain: Callable[..., None]):
        self.source, self.path, self.plain = source, path, plain
        self._serial: Callable[..., None] | None = None
        self._parallel: Callable[..., None] | None = None

    def serial(self) -> Callable[..., None]:
        """The kernel without threads; takes its parameters in order."""
        if self._serial is None:
            with BUILDING:
                self._serial = self._serial or self.compiled(parallel=False)
        return self._serial

    def parallel(self) -> Callable[..., None]:
        """The kernel whose prange loop runs in threads."""
        if self._parallel is None:
            with BUILDING:
                self._parallel = self._parallel or self.compiled(parallel=True)
        return self._parallel

    def compiled(self, parallel: bool) -> Callable[..., None]:
        """Compile for exactly one signature; damaged machine code on disk is deleted and made again.

        Raises:
            MemoryLimitError: the process's limits leave too little memory.
        """
        if jit_is_disabled():
            return run_as_python(self.plain)
        address_space.check_room()
        # Numba's cache doesn't tell variants of one function apart, so each has a file
        name = self.source.name if parallel == self.source.program.parallel else f"{self.source.name}_serial"
        path = kernel_cache.store(name, self.source.text)
        plain = kernel_cache.load_module(name, path).kernel
        if parallel:
            threads.prepare()
        machine_code.discard_damaged(path)
        try:
            return _jit(self.source, plain, parallel, path)
        except DAMAGED:
            machine_code.discard(path)
            return _jit(self.source, plain, parallel, path)


class PlainKernel(Kernel):
    """The kernel as plain Python, checked at every access."""

    __slots__ = ()

    def compiled(self, parallel: bool) -> Callable[..., None]:
        return run_as_python(self.plain)


def build(source: Source) -> Kernel:
    """Write the source to the cache and load it; nothing is compiled yet."""
    path = kernel_cache.store(source.name, source.text)
    return Kernel(source, path, kernel_cache.load_module(source.name, path).kernel)


def build_plain(source: Source) -> Kernel:
    """The kernel as plain Python; nothing is compiled or written."""
    scope: dict[str, Any] = {}
    exec(compile(source.text, f"<{source.name}>", "exec"), scope)
    return PlainKernel(source, Path(), scope["kernel"])


def jit_is_disabled() -> bool:
    """Whether NUMBA_DISABLE_JIT asks for plain Python."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _jit(source: Source, plain: Callable[..., None], parallel: bool, path: Path) -> Callable[..., None]:
    import numba

    dispatcher: Any = numba.njit(cache=True, parallel=parallel, **OPTIONS)(plain)
    signature = tuple(_type(p) for p in source.params)
    started = time.perf_counter()
    dispatcher.compile(signature)
    if dispatcher.stats.cache_misses:
        machine_code.seal(path)
        tell(source, parallel, time.perf_counter() - started)
    # what the dispatcher would call once it had found the types out, which costs more than most small kernels
    entry: Callable[..., None] = dispatcher.overloads[signature].entry_point
    return entry


def _type(param: Param) -> Any:
    from numba import types

    scalar = getattr(types, param.dtype)
    return types.Array(scalar, 1, "C") if param.is_array else scalar


def _compilers_lock() -> Any:
    """Numba's own lock, which a thread of the parent may hold at a fork; None before Numba is imported."""
    module = sys.modules.get("numba.core.compiler_lock")
    return getattr(module, "global_compiler_lock", None)


def _before_fork() -> None:
    BUILDING.acquire()
    if (lock := _compilers_lock()) is not None:
        lock.acquire()


def _after_fork() -> None:
    if (lock := _compilers_lock()) is not None:
        lock.release()
    BUILDING.release()


if hasattr(os, "register_at_fork"):  # so that no child finds a lock taken by a thread that it doesn't have
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
