"""Compilation ahead of time: run requests, layers and products on sample operands, and store their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..codegen.kernel import BUILDING, build, jit_is_disabled
from ..errors import UnsupportedError
from ..machine import launcher
from ..measuring.requests import BoundRequest
from ..runtime.plans import Tables, apart


def warm(request: BoundRequest) -> int:
    """Compile the kernels of a request, and return their number.

    Raises:
        UnsupportedError: the request compiles nothing, because all operands are dense; or NUMBA_DISABLE_JIT is set.
    """
    count = warm_all(request)
    if not count:
        raise UnsupportedError(f"nothing is compiled for {request.expr!r}: torch computes it\n{request}")
    return count


def warm_all(call: Callable[[], Any], tables: Tables | None = None) -> int:
    """Compile all kernels of a call, and return the number of kernels that are new to the tables.

    Args:
        call: a function.
        tables: the plans and kernels of earlier calls; by default empty.

    Raises:
        UnsupportedError: NUMBA_DISABLE_JIT is set.
    """
    if jit_is_disabled():
        raise UnsupportedError("NUMBA_DISABLE_JIT is set, so nothing is compiled: unset it")
    tables = tables_of_kernels() if tables is None else tables
    before = set(tables.kernels)
    with apart(tables):
        call()
        new = [kernel for name, kernel in tables.kernels.items() if name not in before]
        for kernel in new:
            if kernel.addresses and kernel.source.program.parallel:
                launcher.keep(BUILDING)
    return len(new)


def tables_of_kernels() -> Tables:
    """Empty tables of plans and compiled kernels."""
    return Tables(build, {}, {})
