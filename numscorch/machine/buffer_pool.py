"""Buffer pool: freed results of 128 KiB to 64 MiB are reused for new results of about the same size (256 MiB at most).

The system allocates each page at its first write, which takes longer than the kernel that writes it. Addresses are
multiples of 64, so that a row of 16 floats occupies a single cache line.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

SMALLEST = 1 << 17  # bytes of the smallest pooled buffer; glibc maps new pages for larger ones, and returns them when they are freed
LARGEST = 1 << 26  # bytes of the largest pooled buffer
POOL_BYTES = 1 << 28  # maximum number of bytes in the pool
LINE = 64  # bytes of a cache line

_free: dict[int, list[Any]] = {}  # buffers by their bytes; pop and append need no lock and are safe during garbage collection


def room(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An uninitialized array, like ``np.empty``. Its memory returns to the pool when its last view is deleted.

    >>> first = room((600, 600), np.float32)
    >>> address = first.ctypes.data
    >>> del first
    >>> room((600, 599), np.float32).ctypes.data == address, address % 64
    (True, 0)
    """
    element = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else shape
    size = prod(shape) * element.itemsize
    return Block(shape, element, _pooled(rounded_up(size))) if SMALLEST <= size <= LARGEST else np.empty(shape, element)


def rounded_up(size: int) -> int:
    """Round a size up to the next size class: multiples of an eighth of a power of two.

    >>> rounded_up(100_000), rounded_up(1 << 20)
    (106496, 1048576)
    """
    step = 1 << max(size.bit_length() - 4, 0)
    return -(-size // step) * step


def release() -> None:
    """Release the pooled memory to the system."""
    _free.clear()


class Block(np.ndarray):
    """An array in a pooled buffer, which returns to the pool when the array and its views are deleted.

    The buffer is a ``ctypes.Array``. If it was a NumPy array, ``np.asarray`` of a block would keep that array alive, not the block.
    Callers must not keep a block's ``base``, the buffer: it returns to the pool all the same.
    """

    __slots__ = ()

    def __del__(self) -> None:
        """Return the buffer to the pool. If the pool is full, drop the oldest sizes."""
        buffer = self.base
        if not isinstance(buffer, ctypes.Array):  # this is a view of a block, or an array computed from one
            return
        size = len(buffer)
        while sum([nbytes * len(buffers) for nbytes, buffers in list(_free.items())]) + size > POOL_BYTES:
            _free.pop(next(iter(_free)), None)
        _free.setdefault(size, []).append(buffer)


def _pooled(size: int) -> Any:
    """Take a buffer from the pool, or allocate one that starts with a cache line."""
    try:
        return _free[size].pop()
    except (KeyError, IndexError):
        memory: Any = np.empty(size + LINE, np.uint8)
        return (ctypes.c_char * size).from_buffer(memory, -memory.ctypes.data % LINE)
