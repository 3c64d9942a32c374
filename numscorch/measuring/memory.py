"""How much memory a call takes at most: the system counts it, so that torch's, numpy's and a peer's own are among it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..machine.buffer_pool import release

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): VmHWM starts again from what is resident now


def growth(call: Callable[[], object]) -> int | None:
    """The bytes by which the process grows at most during a call, its result among them.

    Memory of dead results that is kept for the next ones is given back first, so that it counts again. Pages count that are
    written: a call may ask for more. Some hundreds of KB are noise.

    Args:
        call: what is measured; called once, so that what only first calls need is part of it.

    Returns:
        None where the system doesn't tell: only Linux lets the largest count be reset, and some containers don't allow that.

    >>> import numpy as np
    >>> nbytes = growth(lambda: np.ones(1 << 22))
    >>> nbytes is None or 1 << 25 <= nbytes < 1 << 26
    True
    """
    if not RESET.exists():
        return None
    release()
    gc.collect()
    _trim()
    try:
        RESET.write_text(RESET_PEAK)
    except OSError:
        return None
    before = _resident("VmRSS")
    result = call()
    most = _resident("VmHWM")
    del result
    return max(most - before, 0)


def _resident(which: str) -> int:
    """Bytes of memory: ``VmRSS`` now, ``VmHWM`` at most since the last reset."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024


def _trim() -> None:
    """Have glibc give free memory back, which a call would fill without growing; other libraries have no such function."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
