"""Kernel: a source file, compiled by Numba for the types of its parameters."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..runtime import address_space, interrupts, kernel_cache, threads
from ..runtime.machine_code import Stored
from .assembly import Param
from .source import OPTIONS, Source
from .telling import tell, waiting
from .twins import run_as_python

BUILDING = threading.RLock()  # held while a plan is made or a kernel compiled, and over a fork


class Kernel:
    """A source file and the functions that Numba makes of it, each compiled when it is first asked for.

    The serial variant is the same file compiled without threads: it runs small problems, and large
    ones where there is one thread, and gives the same bits.
    """

    __slots__ = ("_parallel", "_serial", "plain", "source")

    def __init__(self, source: Source, plain: Callable[..., None]):
        self.source, self.plain = source, plain
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
        """Compile for exactly one signature, or load the machine code from disk; Ctrl-C takes effect when that is done.

        Raises:
            MemoryLimitError: the process's limits leave too little memory.
        """
        if jit_is_disabled():
            return run_as_python(self.plain)
        with interrupts.deferred():
            address_space.check_room()
            # machine code lies beside a file of its variant
            name = self.source.name if parallel == self.source.program.parallel else f"{self.source.name}_serial"
            plain = _loaded(name, self.source.text)
            if parallel:
                threads.prepare()
            return _jit(self.source, name, plain, parallel)


class PlainKernel(Kernel):
    """The kernel as plain Python, checked at every access."""

    __slots__ = ()

    def compiled(self, parallel: bool) -> Callable[..., None]:
        return run_as_python(self.plain)


def build(source: Source) -> Kernel:
    """Write the source to the cache and load it; nothing is compiled yet."""
    return Kernel(source, _loaded(source.name, source.text))


def _loaded(name: str, text: str) -> Callable[..., None]:
    path = kernel_cache.store(name, text)
    with interrupts.deferred():  # the first kernel imports Numba: a module that is imported halfway stays so
        function: Callable[..., None] = kernel_cache.load_module(name, text, path).kernel
    return function


def build_plain(source: Source) -> Kernel:
    """The kernel as plain Python; nothing is compiled or written."""
    scope: dict[str, Any] = {}
    with interrupts.deferred():
        exec(compile(source.text, f"<{source.name}>", "exec"), scope)
    return PlainKernel(source, scope["kernel"])


def jit_is_disabled() -> bool:
    """Whether NUMBA_DISABLE_JIT asks for plain Python."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _jit(source: Source, name: str, plain: Callable[..., None], parallel: bool) -> Callable[..., None]:
    import numba

    dispatcher: Any = numba.njit(parallel=parallel, **OPTIONS)(plain)
    dispatcher._cache = stored = Stored(name, source.text)
    signature = tuple(_type(p) for p in source.params)
    started = time.perf_counter()
    with waiting(source):
        dispatcher.compile(signature)
    if not stored.was_found:
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
