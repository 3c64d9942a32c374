"""Address space: room for the compiler, where a limit is set (``ulimit -v``).

numpy, torch and Python raise an error when memory runs out. LLVM ends the process instead, and so does OpenMP where it can't start
its threads. So we ask first.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from typing import Any

from ..errors import MemoryLimitError

resource: Any = None
with suppress(ImportError):  # there is none on Windows, nor such limits
    import resource

WITH_LLVM = 384 << 20  # bytes that Numba and LLVM, the threads and the first kernel take,
WITHOUT = 192 << 20  # and those of kernels alone


def check_room() -> None:
    """Refuse to compile in what a limited address space has left. O(1): nothing is written to.

    Raises:
        MemoryLimitError: there is a limit, and too little left below it.
    """
    if resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    needed = WITHOUT if "llvmlite" in sys.modules else WITH_LLVM
    try:
        mmap.mmap(-1, needed).close()
    except OSError as error:
        raise MemoryLimitError(
            f"compiling a kernel may take {needed >> 20} MiB of address space, more than the process's limit leaves: raise it (ulimit -v)"
        ) from error
