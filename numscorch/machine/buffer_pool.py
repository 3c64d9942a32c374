"""Reuse: the memory of a large result that nobody holds any more is given to the next one of about its size.

The system hands out memory a page at a time, each at its first write, which takes longer than a kernel that writes it. Addresses are
multiples of 64, so that a row of 16 floats lies in one line of the cache.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

SMALLEST = 1 << 20  # bytes from which memory is used again: below, it costs more than it saves
LARGEST = 1 << 26  # of one result: larger ones go back to the system
POOL_BYTES = 1 << 28  # bytes that are kept for results to come
LINE = 64

Memory = tuple[np.ndarray, int]  # with the address of its first line
_free: dict[int, list[Memory]] = {}  # by size; pop and append need no lock, and may be called while memory is collected


def room(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array that isn't written yet, as ``np.empty`` makes; when the last view of it dies, its memory is kept.

    >>> first = room((600, 600), np.float32)
    >>> address = first.ctypes.data
    >>> del first
    >>> room((600, 599), np.float32).ctypes.data == address, address % 64
    (True, 0)
    """
    kind = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else shape
    size = rounded_up(prod(shape) * kind.itemsize)
    return np.asarray(Block(size, shape, kind.str)) if SMALLEST <= size <= LARGEST else np.empty(shape, kind)


def rounded_up(size: int) -> int:
    """The next size of which memory is kept: eighths of powers of two.

    >>> rounded_up(100_000), rounded_up(1 << 20)
    (106496, 1048576)
    """
    step = 1 << max(size.bit_length() - 4, 0)
    return -(-size // step) * step


def release() -> None:
    """Give back to the system what is kept."""
    _free.clear()


class Block:
    """What owns memory while an array of it, or a view, lives: that array is ``np.asarray`` of it.

    Args:
        size: how much memory, rounded up.
        shape: the array's.
        kind: its data type as numpy's array interface spells it, as ``<f4``.
    """

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, size: int, shape: tuple[int, ...], kind: str):
        self.memory = memory = _pooled(size)
        self.__array_interface__: dict[str, Any] = {"version": 3, "shape": shape, "typestr": kind, "data": (memory[1], False)}

    def __del__(self) -> None:
        _give_back(self.memory)


def _pooled(size: int) -> Memory:
    """Memory of this size behind the first line's start."""
    try:
        return _free[size].pop()
    except (KeyError, IndexError):
        memory = np.empty(size + LINE, np.uint8)
        return memory, memory.ctypes.data + -memory.ctypes.data % LINE


def _give_back(memory: Memory) -> None:
    """Keep memory; past the bound, the sizes that were kept first go."""
    size = memory[0].nbytes - LINE
    while sum([nbytes * len(kept) for nbytes, kept in list(_free.items())]) + size > POOL_BYTES:
        _free.pop(next(iter(_free)), None)
    _free.setdefault(size, []).append(memory)
