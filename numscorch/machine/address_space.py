"""Check for free address space before compiling, if the process has a limit (``ulimit -v``).

NumPy, torch and Python raise an error if memory runs out. LLVM terminates the process instead, as does OpenMP if it cannot
start its threads.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from typing import Any

from ..errors import MemoryLimitError

resource: Any = None
with suppress(ImportError):  # Windows has neither the module nor such limits
    import resource

WITH_LLVM = 384 << 20  # bytes needed to load Numba and LLVM, start the threads and compile the first kernel
WITHOUT = 192 << 20  # bytes needed to compile a kernel once LLVM is loaded


def has_address_space(size: int) -> bool:
    """Whether so many bytes of address space are left, if the process has a limit. The memory is mapped, but not written."""
    if resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return True
    with suppress(OSError):
        mmap.mmap(-1, size).close()
        return True
    return False


def check_room() -> None:
    """Check that enough address space is left to compile a kernel. O(1): the memory is mapped, but not written.

    Raises:
        MemoryLimitError: the process's limit leaves too little address space.
    """
    needed = WITHOUT if "llvmlite" in sys.modules else WITH_LLVM
    if not has_address_space(needed):
        raise MemoryLimitError(
            f"compiling a kernel may take {needed >> 20} MiB of address space, more than the process has left: raise its limit (ulimit -v)"
        )
