"""Kernel: a source file and its machine code, which Numba compiles for the parameter types."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..machine import guards, kernel_cache, threads
from ..machine.compile_log import tell, waiting
from ..machine.launcher import address_of, callable_at, launcher
from ..machine.machine_code import DAMAGED, store_code, stored_code
from .checked_intrinsics import run_as_python
from .source import Source

Addresses = dict[str, int]  # of the entries of a kernel, by the names of its functions
BUILDING = threading.RLock()  # held while planning, while compiling a kernel, and during a fork
Run = Callable[[bytes, int], Any]


class Kernel:
    """A source file and the machine code of its functions, which is compiled, or loaded from disk, on first use.

    Call a kernel as ``kernel.run(words, workers)``. The same code serves any number of workers, and the results are bitwise
    equal.
    """

    __slots__ = ("_addresses", "_run", "scope", "source")

    def __init__(self, source: Source, scope: dict[str, Any]):
        self.source, self.scope = source, scope
        self._addresses: Addresses | None = None
        self._run: Run | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether the kernel takes its arguments as words; otherwise :attr:`plain` takes arrays."""
        return not jit_is_disabled()

    @property
    def plain(self) -> Callable[..., None]:
        """The kernel as a plain Python function of its parameters, in order."""
        return run_as_python(self.scope)

    @property
    def addresses(self) -> Addresses:
        """The addresses of the kernel's entries. Compilation defers Ctrl-C until it ends.

        Raises:
            MemoryLimitError: the process's limits leave too little memory.
        """
        if self._addresses is None:
            with BUILDING:
                self._addresses = self._addresses or self._compiled()
        return self._addresses

    def _compiled(self) -> Addresses:
        from . import compiling  # deferred: it imports Numba

        source = self.source
        with guards.deferred(), guards.paused():
            guards.check_room()
            with waiting(source.text):
                if (stored := _stored(source)) is not None:
                    return stored
                started = time.perf_counter()
                addresses, code = compiling.compiled(source, self.scope)
            store_code(source.name, source.text, code)
            tell(source.name, source.text, time.perf_counter() - started)
            return addresses

    @property
    def run(self) -> Run:
        """A function of the words and the number of workers that runs the kernel.

        It raises the exceptions of the kernel's functions: DivisionError if an integer is divided by 0, MemoryError if the
        kernel can't allocate its temporary arrays. They are raised after all workers finish.
        """
        if self._run is None:
            self._run = self._runner()
        return self._run

    def _runner(self) -> Run:
        from .compiling import raised  # deferred: it imports Numba

        addresses = self.addresses
        if "kernel" in addresses:
            entry = callable_at(addresses["kernel"])

            def run_alone(words: bytes, workers: int) -> None:
                if status := entry(0, words):
                    raise raised(status)

            return run_alone
        body, finish = callable_at(addresses["body"]), callable_at(addresses["finish"]) if "finish" in addresses else None

        def run(words: bytes, workers: int) -> None:
            if workers == 1:
                status = body(0, words)
            else:
                launch, shared = launcher(BUILDING), ctypes.c_int64(0)
                with threads.call_lock():
                    launch(addresses["body"], address_of(words), workers, ctypes.addressof(shared))
                status = shared.value
            if status or (finish is not None and (status := finish(0, words))):
                raise raised(status)

        return run


def _stored(source: Source) -> Addresses | None:
    """Return the addresses of entries whose machine code is on disk; None if it is missing or damaged."""
    if (data := stored_code(source.name, source.text)) is None:
        return None
    from .compiling import loaded  # deferred: it imports Numba

    try:
        return loaded(source, data)
    except DAMAGED:  # the file was replaced atomically, so another program damaged it
        return None


class PlainKernel(Kernel):
    """A kernel that runs as plain Python and checks every array access."""

    __slots__ = ()
    is_compiled = False


def build(source: Source) -> Kernel:
    """Write the source to the cache and load it, without compiling it."""
    path = kernel_cache.store(source.name, source.text)
    with guards.deferred():  # the first kernel imports Numba, and an interrupted import would leave broken modules
        return Kernel(source, kernel_cache.load_module(source.name, source.text, path).__dict__)


def build_plain(source: Source) -> Kernel:
    """Make a kernel that runs as plain Python. Nothing is compiled or written to disk."""
    scope: dict[str, Any] = {}
    with guards.deferred():
        exec(compile(source.text, f"<{source.name}>", "exec"), scope)
    return PlainKernel(source, scope)


def jit_is_disabled() -> bool:
    """Whether NUMBA_DISABLE_JIT requests plain Python."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _compilers_lock() -> Any:
    """Return Numba's compiler lock, which a thread of the parent may hold at a fork; None before Numba is imported."""
    return getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)


def _before_fork() -> None:
    BUILDING.acquire()
    if (lock := _compilers_lock()) is not None:
        lock.acquire()


def _after_fork() -> None:
    if (lock := _compilers_lock()) is not None:
        lock.release()
    BUILDING.release()


if hasattr(os, "register_at_fork"):  # a child must not inherit a lock that is held by a thread of its parent
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
