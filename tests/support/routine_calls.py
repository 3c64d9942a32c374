"""Calls from Python to routines that only kernels can call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numba


@cache
def compiled(routine: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function that calls a routine as a kernel does."""

    @numba.njit
    def call(*args: Any) -> Any:
        return routine(*args)

    return cast("Callable[..., Any]", call)
