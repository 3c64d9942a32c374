"""Threads: the number of workers of a parallel kernel, Numba's threading layer, and its restrictions.

=========  ==========================  ==================================  ===========================================
layer      two Python threads at once  a forked child                      numscorch's measure
=========  ==========================  ==================================  ===========================================
omp        runs                        aborts (GNU)                        forked children run serially
tbb        runs                        runs, if the main thread forked it  loaded from its wheel; forks wait for kernels
workqueue  aborts the process          runs                                parallel calls run one at a time
=========  ==========================  ==================================  ===========================================

If torch uses OpenMP, OpenMP has the highest priority. Numba links the system's GNU library, and torch may bring a copy of its own.
Beside torch's OpenMP, kernels on TBB take longer, because OpenMP threads spin for a while after each torch operator and occupy the
cores. Otherwise, TBB has the highest priority.

If torch uses GNU OpenMP, forked children set torch's thread count to 1, as DataLoader workers do. Otherwise, torch operators,
which conversions and gradients use too, would wait forever for threads that exist in the parent only.

:func:`prepare` starts the layer. It is called before the first parallel kernel is built or loaded, and never for serial
kernels. It imports Numba; this module does not.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

import torch

from ..errors import NumscorchError

TBB_LIBRARIES = frozenset({"libtbb.so.12", "tbb12.dll", "libtbb.12.dylib"})
Guard = AbstractContextManager[Any]


class Gate:
    """A context manager around each parallel kernel, which is closed during a fork.

    TBB stops its threads before a fork. It would deadlock if a kernel of another Python thread were running.

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

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self.within -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Block new kernels, and wait until the running kernels have finished."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closing)
            self._closing = True
            self._changed.wait_for(lambda: not self.within)

    def open(self) -> None:
        """Admit kernels again."""
        with self._changed:
            self._closing = False
            self._changed.notify_all()


GUARDS: dict[str | None, Callable[[], Guard]] = {"workqueue": threading.Lock, "tbb": Gate}  # keyed by the layer; other layers need none


@dataclass(slots=True)
class _State:
    """The threading state of this process. A forked child inherits its parent's state."""

    call_lock: Guard
    prepare_lock: Guard
    most: int  # maximum number of workers: the number of CPUs or, after ``prepare``, Numba's thread count
    layer: str | None = None  # set by ``prepare``
    preset: str = ""  # reason for the layer if ``prepare`` could not choose it; else empty
    serial: bool = False
    forked_by_main: bool = True


_state = _State(nullcontext(), threading.RLock(), os.cpu_count() or 1)
_torch_threads = torch.get_num_threads


def workers() -> int:
    """The number of workers of a parallel kernel: torch's thread count, at most Numba's.

    It is 1 if :func:`must_run_serial`, so that this number alone selects the variant of a kernel.
    """
    threads = _torch_threads()
    return threads if threads < _state.most else _state.most


def must_run_serial() -> bool:
    """Whether a parallel kernel could abort or deadlock, even with one worker, as in some forked children."""
    return _state.serial


def call_lock() -> Guard:
    """The context manager around a parallel kernel: a lock for workqueue, a gate for TBB, a null context for OpenMP."""
    return _state.call_lock


def layer() -> tuple[str, str]:
    """The threading layer (``tbb``, ``omp`` or ``workqueue``), and why it is used. Starts the layer if needed."""
    prepare()
    name = _state.layer or "none"
    return name, _state.preset or _why(name)


def prepare() -> None:
    """Choose and start Numba's threading layer. Torch's thread count does not change. Later calls do nothing.

    Raises:
        NumscorchError: NUMBA_THREADING_LAYER names a layer that cannot be loaded.
    """
    if _state.layer is None:
        with _state.prepare_lock:
            if _state.layer is None:
                _start()


def _start() -> None:
    import numba

    _state.preset = _choose(numba.config)
    name = _launch(numba)
    _state.call_lock = GUARDS.get(name, nullcontext)()
    if not _state.serial:
        _state.most = int(numba.config.NUMBA_NUM_THREADS)
    _state.layer = name


def _launch(numba: Any) -> str:
    """Start the layer. This changes torch's thread count and multiprocessing's start method, so restore both."""
    threads, start_method = torch.get_num_threads(), multiprocessing.get_start_method(allow_none=True)
    try:
        numba.get_num_threads()
    except ValueError as error:
        raise NumscorchError(
            f"Numba can't start a threading layer: {error}\n  unset NUMBA_THREADING_LAYER, or install the layer it names (pip install tbb)"
        ) from error
    if torch.get_num_threads() != threads:  # Numba sets the thread count of OpenMP, which torch may use, too
        torch.set_num_threads(threads)
    if start_method is None:  # Numba reads and so fixes it, and a later set_start_method would fail
        multiprocessing.set_start_method(None, force=True)
    return str(numba.threading_layer())


def _choose(config: Any) -> str:
    """Set the priority of the layers and load TBB's library. If the layer is already determined, return the reason."""
    if _running_layer():
        return "was started by other code before numscorch"
    requested = str(config.THREADING_LAYER)
    if requested in {"default", "tbb"}:
        _tbb_problem()
    if requested != "default":
        return f"NUMBA_THREADING_LAYER={requested} requests it"
    if "NUMBA_THREADING_LAYER_PRIORITY" in os.environ:
        return f"NUMBA_THREADING_LAYER_PRIORITY={os.environ['NUMBA_THREADING_LAYER_PRIORITY']} prefers it"
    config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"] if torch_uses_openmp() else ["tbb", "omp", "workqueue"]
    return ""


@cache
def torch_uses_openmp() -> bool:
    """Whether torch runs on GNU OpenMP. Its library may be another file than that of Numba's layer, with threads of its own."""
    return sys.platform == "linux" and "OpenMP" in torch.__config__.parallel_info()


@cache
def _tbb_problem() -> str | None:
    """Load TBB's library from its wheel, where the system's loader does not search; return the problem, or None."""
    try:
        files = metadata.files("tbb") or []
    except metadata.PackageNotFoundError:
        return "the package tbb is not installed"
    for file in files:
        if file.name in TBB_LIBRARIES:
            try:
                ctypes.CDLL(str(file.locate()), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                return str(error)
            return None
    return "the package tbb has no library for this platform"


def _why(name: str) -> str:
    if name == "omp" and torch_uses_openmp():
        return "GNU OpenMP, as for torch; forked children will run serially"
    problem = _tbb_problem()
    match name:
        case "tbb":
            return "runs from several Python threads and after fork" if problem is None else "found by the system's loader"
        case "omp":
            return f"TBB can't be used ({problem or 'its version is too old'}): forked children will run serially"
        case _:
            return f"neither TBB ({problem or 'too old'}) nor OpenMP can be used: parallel calls run one at a time"


def _running_layer() -> str | None:
    """The layer that Numba started in this process or in the process it was forked from; None if there is none."""
    threading_layer = getattr(sys.modules.get("numba"), "threading_layer", None)
    try:
        return str(threading_layer()) if threading_layer is not None else None
    except ValueError:  # no layer is started yet
        return None


def _before_fork() -> None:
    _state.forked_by_main = threading.current_thread() is threading.main_thread()
    if isinstance(_state.call_lock, Gate):
        _state.call_lock.close()


def _in_parent() -> None:
    if isinstance(_state.call_lock, Gate):
        _state.call_lock.open()


def _in_child() -> None:
    """Replace locks that the parent's threads may hold, and disable parallel kernels if the layer does not survive a fork."""
    running = _running_layer()
    _state.prepare_lock = threading.RLock()
    _state.call_lock = GUARDS.get(running, nullcontext)()
    # Numba's TBB layer can stop its threads before a fork only from the main thread.
    # In most parents, torch has started OpenMP's threads. A child cannot use them, even if Numba has not started its layer.
    unstarted = running is None and torch_uses_openmp()
    if running == "omp" or unstarted or (running == "tbb" and not _state.forked_by_main):
        _state.serial, _state.most = True, 1
    if torch_uses_openmp():  # torch's first large operator would wait for those threads forever
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
