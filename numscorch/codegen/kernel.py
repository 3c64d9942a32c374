"""Kernel: a source file, and its machine code, which Numba compiles for the types of its parameters."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..machine import address_space, collector, interrupts, kernel_cache, threads
from ..machine.compile_log import tell, waiting
from ..machine.launcher import address_of, callable_at, launcher
from ..machine.machine_code import DAMAGED, store_code, stored_code
from . import machine
from .checked_intrinsics import run_as_python
from .source import Source

BUILDING = threading.RLock()  # held while a plan is made or a kernel compiled, and over a fork
Run = Callable[[bytes, int], Any]


class Kernel:
    """A source file and the machine code of its functions, which is compiled, or loaded from disk, when it is first asked for.

    A kernel is called as ``kernel.run(words, workers)``: the same code serves every number of workers, and gives the same bits.
    """

    __slots__ = ("_addresses", "_run", "scope", "source")

    def __init__(self, source: Source, scope: dict[str, Any]):
        self.source, self.scope = source, scope
        self._addresses: machine.Addresses | None = None
        self._run: Run | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether arguments are passed as words; else :attr:`plain` takes arrays."""
        return not jit_is_disabled()

    @property
    def plain(self) -> Callable[..., None]:
        """The kernel as plain Python; takes its parameters in order."""
        return run_as_python(self.scope)

    @property
    def addresses(self) -> machine.Addresses:
        """The addresses of the kernel's entries; Ctrl-C takes effect once they are compiled.

        Raises:
            MemoryLimitError: the process's limits leave too little memory.
        """
        if self._addresses is None:
            with BUILDING:
                self._addresses = self._addresses or self._compiled()
        return self._addresses

    def _compiled(self) -> machine.Addresses:
        source = self.source
        with interrupts.deferred(), collector.paused():
            address_space.check_room()
            with waiting(source.text):
                if (stored := _stored(source)) is not None:
                    return stored
                started = time.perf_counter()
                addresses, code = machine.compiled(source, self.scope)
            store_code(source.name, source.text, code)
            tell(source.name, source.text, time.perf_counter() - started)
            return addresses

    @property
    def run(self) -> Run:
        """A function of the words and the number of workers that runs the kernel.

        It raises MemoryError where the kernel needs memory of its own and finds none.
        """
        if self._run is None:
            self._run = self._runner()
        return self._run

    def _runner(self) -> Run:
        addresses = self.addresses
        if "kernel" in addresses:
            entry = callable_at(addresses["kernel"])

            def run_alone(words: bytes, workers: int) -> None:
                if entry(0, words):
                    _fail()

            return run_alone
        body, finish = callable_at(addresses["body"]), callable_at(addresses["finish"]) if "finish" in addresses else None

        def run(words: bytes, workers: int) -> None:
            if workers == 1:
                failed = body(0, words)
            else:
                launch, status = launcher(BUILDING), ctypes.c_int64(0)
                with threads.call_lock():
                    launch(addresses["body"], address_of(words), workers, ctypes.addressof(status))
                failed = status.value
            if failed or (finish is not None and finish(0, words)):
                _fail()

        return run


def _fail() -> None:
    raise MemoryError("a kernel could not allocate the memory that it needs for itself")


def _stored(source: Source) -> machine.Addresses | None:
    """The addresses of entries whose machine code is on disk; None where there is none, or it is damaged."""
    if (data := stored_code(source.name, source.text)) is None:
        return None
    try:
        return machine.loaded(source, data)
    except DAMAGED:  # it was written whole, but by something else
        return None


class PlainKernel(Kernel):
    """The kernel as plain Python, checked at every access."""

    __slots__ = ()

    @property
    def is_compiled(self) -> bool:
        return False


def build(source: Source) -> Kernel:
    """Write the source to the cache and load it; nothing is compiled yet."""
    return Kernel(source, _loaded(source.name, source.text))


def _loaded(name: str, text: str) -> dict[str, Any]:
    path = kernel_cache.store(name, text)
    with interrupts.deferred():  # the first kernel imports Numba: a module that is imported halfway stays so
        return kernel_cache.load_module(name, text, path).__dict__


def build_plain(source: Source) -> Kernel:
    """The kernel as plain Python; nothing is compiled or written."""
    scope: dict[str, Any] = {}
    with interrupts.deferred():
        exec(compile(source.text, f"<{source.name}>", "exec"), scope)
    return PlainKernel(source, scope)


def jit_is_disabled() -> bool:
    """Whether NUMBA_DISABLE_JIT asks for plain Python."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


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
