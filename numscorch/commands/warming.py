"""Kernels that are compiled ahead, by running requests, layers and products on operands like those that will come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..codegen.kernel import BUILDING, build, jit_is_disabled
from ..errors import UnsupportedError
from ..machine import launcher
from ..measuring.requests import BoundRequest
from ..runtime.plans import Tables, apart


def warm(request: BoundRequest) -> int:
    """Compile the kernels of a request; how many there are.

    Raises:
        UnsupportedError: nothing is compiled for it, all its operands being dense, or with NUMBA_DISABLE_JIT.
    """
    count = warm_all(request)
    if not count:
        raise UnsupportedError(f"nothing is compiled for {request.expr!r}: torch computes it\n{request}")
    return count


def warm_all(call: Callable[[], Any], tables: Tables | None = None) -> int:
    """Compile all kernels of a call; how many there are that the tables lacked.

    Args:
        call: a function.
        tables: the kernels of earlier calls, which are not looked up again; by default none.

    Raises:
        UnsupportedError: NUMBA_DISABLE_JIT is set.
    """
    if jit_is_disabled():
        raise UnsupportedError("NUMBA_DISABLE_JIT asks for plain Python, so that nothing is compiled: unset it")
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
    """Empty tables of plans and kernels that are compiled."""
    return Tables(build, {}, {})
