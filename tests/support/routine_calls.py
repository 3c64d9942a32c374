"""Calls from Python to routines and intrinsics that only kernels can call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numba

from numscorch.codegen.checked_intrinsics import run_as_python
from numscorch.machine.fingerprints import OPTIONS

jitted = cache(numba.njit(**OPTIONS))  # a kernel is compiled once for each of its data types


@cache
def compiled(routine: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function that calls a routine as a kernel does."""

    @numba.njit
    def call(*args: Any) -> Any:
        return routine(*args)

    return cast("Callable[..., Any]", call)


def run(kernel: Any, *arrays: Any, compiled: bool) -> None:
    """Call a kernel, compiled or as Python with checked intrinsics."""
    (jitted(kernel) if compiled else run_as_python({**kernel.__globals__, "kernel": kernel}))(*arrays)
