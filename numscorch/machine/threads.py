"""Threads: how many workers a parallel kernel may use, on which of Numba's layers, and when it must not run.

=========  ==========================  ==================================  ===============================
layer      two Python threads at once  a child after fork                  so here
=========  ==========================  ==================================  ===============================
omp        runs                        aborts (GNU)                        forked children run serially
tbb        runs                        runs, if the main thread forked it  loaded from its wheel; a fork waits for kernels
workqueue  aborts the process          runs                                parallel calls one at a time
=========  ==========================  ==================================  ===============================

OpenMP comes first where torch runs on it too: Numba then uses the very threads of torch. Two pools
would compete, since OpenMP's threads spin for a while after each torch operator and hold the cores
that the other pool needs. Elsewhere TBB comes first.

Where torch runs on GNU's OpenMP, torch's thread count is set to 1 in a forked child, as DataLoaders do in theirs: torch's own
operators, which conversions and gradients are made of too, would wait there forever for threads that only the parent has.

:func:`prepare` starts the layer, so it is called before the first parallel kernel is built or loaded,
and never for serial ones. It imports Numba; this module does not.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

import torch

from ..errors import NumscorchError
from .fork_gate import Gate

TBB_LIBRARIES = frozenset({"libtbb.so.12", "tbb12.dll", "libtbb.12.dylib"})
Guard = AbstractContextManager[Any]


@dataclass(slots=True)
class _State:
    """What this process knows of its threads; a forked child starts from its parent's."""

    call_lock: Guard
    prepare_lock: Guard
    most: int  # workers beyond Numba's own count gain nothing; that count is known once prepared
    layer: str | None = None  # once prepared
    preset: str = ""  # who chose the layer, if not we
    serial: bool = False
    forked_by_main: bool = True


_state = _State(nullcontext(), threading.RLock(), os.cpu_count() or 1)
_torch_threads = torch.get_num_threads


def workers() -> int:
    """How many workers a parallel kernel is given: torch's thread count, at most Numba's.

    Also 1 where :func:`must_run_serial`, so one look at it chooses the variant.
    """
    threads = _torch_threads()
    return threads if threads < _state.most else _state.most


def must_run_serial() -> bool:
    """Whether a parallel kernel, even with one worker, could abort or hang: in some forked children."""
    return _state.serial


def call_lock() -> Guard:
    """What a parallel kernel is called within: a lock under workqueue, a gate under TBB, nothing under OpenMP."""
    return _state.call_lock


def layer() -> tuple[str, str]:
    """The threading layer (``tbb``, ``omp`` or ``workqueue``) and why it is that one; starts it if need be."""
    prepare()
    name = _state.layer or "none"
    return name, _state.preset or _why(name)


def prepare() -> None:
    """Choose and start Numba's threading layer; torch's thread count stays as it is. Later calls do nothing.

    Raises:
        NumscorchError: NUMBA_THREADING_LAYER asks for a layer that can't be loaded.
    """
    if _state.layer is None:
        with _state.prepare_lock:
            if _state.layer is None:
                _start()


def _start() -> None:
    import numba

    _state.preset = _choose(numba.config)
    name = _launch(numba)
    if name == "workqueue":
        _state.call_lock = threading.Lock()
    if name == "tbb":
        _state.call_lock = Gate()
    if not _state.serial:
        _state.most = int(numba.config.NUMBA_NUM_THREADS)
    _state.layer = name


def _launch(numba: Any) -> str:
    """Start the layer, and undo what else that does: torch's thread count and Python's choice of start method."""
    threads, start_method = torch.get_num_threads(), multiprocessing.get_start_method(allow_none=True)
    try:
        numba.get_num_threads()
    except ValueError as error:
        raise NumscorchError(
            f"Numba can't start a threading layer: {error}\n  unset NUMBA_THREADING_LAYER, or install the layer it names (pip install tbb)"
        ) from error
    if torch.get_num_threads() != threads:  # an OpenMP that torch shares would count for both
        torch.set_num_threads(threads)
    if start_method is None:  # Numba's look at it settles it, and the user's own set_start_method would fail
        multiprocessing.set_start_method(None, force=True)
    return str(numba.threading_layer())


def _choose(config: Any) -> str:
    """Order the layers and make TBB loadable, where that is still ours to choose; otherwise, who chose."""
    if _running_layer():
        return "was started by other code before numscorch"
    asked = str(config.THREADING_LAYER)
    if asked in {"default", "tbb"}:
        _tbb_problem()
    if asked != "default":
        return f"NUMBA_THREADING_LAYER={asked} asks for it"
    if "NUMBA_THREADING_LAYER_PRIORITY" in os.environ:
        return f"NUMBA_THREADING_LAYER_PRIORITY={os.environ['NUMBA_THREADING_LAYER_PRIORITY']} prefers it"
    config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"] if shares_openmp() else ["tbb", "omp", "workqueue"]
    return ""


@cache
def shares_openmp() -> bool:
    """Whether Numba's OpenMP layer would run on torch's own threads: both link the GNU library by the same name."""
    return sys.platform == "linux" and "OpenMP" in torch.__config__.parallel_info()


@cache
def _tbb_problem() -> str | None:
    """Load TBB's library from its wheel, which puts it where the loader doesn't look; what prevents it, or None."""
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
    if name == "omp" and shares_openmp():
        return "runs on torch's own threads; forked children will run serially"
    problem = _tbb_problem()
    match name:
        case "tbb":
            return "runs from several Python threads and after fork" if problem is None else "found by the system's loader"
        case "omp":
            return f"TBB can't be used ({problem or 'its version is too old'}): forked children will run serially"
        case _:
            return f"neither TBB ({problem or 'too old'}) nor OpenMP can be used: parallel calls run one at a time"


def _running_layer() -> str | None:
    """The layer that Numba has started in this process or in the one it was forked from."""
    threading_layer = getattr(sys.modules.get("numba"), "threading_layer", None)
    try:
        return str(threading_layer()) if threading_layer is not None else None
    except ValueError:  # Numba's way to say: none yet
        return None


def _before_fork() -> None:
    _state.forked_by_main = threading.current_thread() is threading.main_thread()
    if isinstance(_state.call_lock, Gate):
        _state.call_lock.close()


def _in_parent() -> None:
    if isinstance(_state.call_lock, Gate):
        _state.call_lock.open()


def _in_child() -> None:
    """Note what of the parent's layer still works, and drop locks that its other threads may have held."""
    running = _running_layer()
    _state.prepare_lock = threading.RLock()
    if running == "workqueue":
        _state.call_lock = threading.Lock()
    if running == "tbb":
        _state.call_lock = Gate()
    # Numba's TBB layer shuts its threads down before a fork, but can do so from the main thread only.
    # torch has started OpenMP's threads in most parents, and a child can't use them even if Numba hadn't yet.
    unstarted = running is None and shares_openmp()
    if running == "omp" or unstarted or (running == "tbb" and not _state.forked_by_main):
        _state.serial, _state.most = True, 1
    if shares_openmp():  # torch's own first large operator would wait for those threads forever
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
