"""Buffer pool: freed results of 128 KiB to 64 MiB are reused for new results of about the same size (256 MiB at most).

The system allocates each page at its first write, which takes longer than the kernel that writes it. Addresses are
multiples of 64, so that a row of 16 floats occupies a single cache line.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

SMALLEST = 1 << 17  # bytes of the smallest pooled buffer; glibc maps new pages for larger ones, and returns them when they are freed
LARGEST = 1 << 26  # bytes of the largest pooled buffer
POOL_BYTES = 1 << 28  # maximum number of bytes in the pool
LINE = 64  # bytes of a cache line

Memory = tuple[np.ndarray, int]  # a buffer and the address of its first cache line
_free: dict[int, list[Memory]] = {}  # by size; pop and append need no lock and are safe during garbage collection


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
    return np.asarray(Block(rounded_up(size), shape, element.str)) if SMALLEST <= size <= LARGEST else np.empty(shape, element)


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


class Block:
    """The owner of a pooled buffer. ``np.asarray`` of it is an array whose views keep the buffer alive.

    Args:
        size: bytes of the buffer, rounded up.
        shape: the shape of the array.
        typestr: the data type in NumPy's array interface, such as ``<f4``.
    """

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, size: int, shape: tuple[int, ...], typestr: str):
        self.memory = memory = _pooled(size)
        self.__array_interface__: dict[str, Any] = {"version": 3, "shape": shape, "typestr": typestr, "data": (memory[1], False)}

    def __del__(self) -> None:
        """Return the buffer to the pool. If the pool is full, drop the oldest sizes."""
        size = self.memory[0].nbytes - LINE
        while sum([nbytes * len(buffers) for nbytes, buffers in list(_free.items())]) + size > POOL_BYTES:
            _free.pop(next(iter(_free)), None)
        _free.setdefault(size, []).append(self.memory)


def _pooled(size: int) -> Memory:
    """Take a buffer from the pool, or allocate one that has this size from its first cache line on."""
    try:
        return _free[size].pop()
    except (KeyError, IndexError):
        memory = np.empty(size + LINE, np.uint8)
        return memory, memory.ctypes.data + -memory.ctypes.data % LINE
