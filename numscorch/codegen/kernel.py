"""Kernel: a source file, compiled by Numba for the types of its parameters."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime import kernel_cache, threads
from .assembly import Param
from .source import Source

DAMAGED = (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, AttributeError, ImportError, IndexError, OSError)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel: call ``function`` with its parameters in order."""

    source: Source
    path: Path
    plain: Callable[..., None]
    function: Callable[..., None]


def build(source: Source) -> Kernel:
    """Write the source to the cache, load it, and compile it or take its machine code from there."""
    path = kernel_cache.store(source.name, source.text)
    plain = kernel_cache.load_module(source.name, path).kernel
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        from .twins import run_as_python

        return Kernel(source, path, plain, run_as_python(plain))
    return Kernel(source, path, plain, compile_function(source, plain, path))


def compile_function(source: Source, plain: Callable[..., None], path: Path) -> Callable[..., None]:
    """Compile for exactly one signature; damaged machine code on disk is deleted and made again."""
    threads.prepare()
    try:
        return _jit(source, plain)
    except DAMAGED:
        kernel_cache.discard_compiled(path)
        return _jit(source, plain)


def _jit(source: Source, plain: Callable[..., None]) -> Callable[..., None]:
    import numba

    dispatcher: Any = numba.njit(
        cache=True, nogil=True, error_model="numpy", boundscheck=False, fastmath={"contract"}, parallel=source.program.parallel
    )(plain)
    dispatcher.compile(tuple(_type(p) for p in source.params))
    dispatcher.disable_compile()
    return dispatcher  # type: ignore[no-any-return]


def _type(param: Param) -> Any:
    from numba import types

    scalar = getattr(types, param.dtype)
    return types.Array(scalar, 1, "C") if param.is_array else scalar


def build_plain(source: Source) -> Kernel:
    """The kernel as plain Python, checked at every access; nothing is compiled or written."""
    from .twins import run_as_python

    scope: dict[str, Any] = {}
    exec(compile(source.text, f"<{source.name}>", "exec"), scope)
    return Kernel(source, Path(), scope["kernel"], run_as_python(scope["kernel"]))
