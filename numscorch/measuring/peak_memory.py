"""Peak memory of a call, as counted by the system. It includes the memory of torch, numpy and other libraries."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..machine.buffer_pool import release

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # resets VmHWM to the current resident size; see proc(5)


def growth(call: Callable[[], object]) -> int | None:
    """The peak growth of the process during a call, in bytes, including the call's result.

    The pool of freed results is emptied first, so reused memory counts too. Only pages that are written count. The noise is some
    hundreds of KB.

    Args:
        call: the function to measure. It is called once, so the memory of one-time initialization counts.

    Returns:
        The bytes, or None if the system doesn't report them: only Linux can reset the peak, and some containers forbid it.

    >>> import numpy as np
    >>> nbytes = growth(lambda: np.ones(1 << 22))
    >>> nbytes is None or 1 << 25 <= nbytes < 1 << 26
    True
    """
    release()
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc only: return its free memory to the system, so that its reuse counts as growth
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        RESET.write_text(RESET_PEAK)
    except OSError:
        return None
    before = _resident("VmRSS")
    result = call()
    most = _resident("VmHWM")
    del result
    return max(most - before, 0)


def _resident(field: str) -> int:
    """Resident memory in bytes: ``VmRSS`` is the current size, ``VmHWM`` the peak since the last reset."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
