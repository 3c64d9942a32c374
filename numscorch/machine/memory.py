"""Memory: views of strided tensors, and a guard against results that can't fit."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import NumscorchError, SizeError
from ..ir.format import CSF, CSR, Format, named_formats
from .buffer_pool import LARGEST, SMALLEST, room

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
SPACE = 24  # bytes of a workspace for each value: listed, marked or hashed, and the value
LINE = 64  # bytes of a line of the cache
COORDINATE = 8  # bytes of a coordinate while entries are made
ASK_FROM = 1 << 30  # bytes from which an allocation is held against the limit


def flat(tensor: torch.Tensor) -> np.ndarray:
    """A 1-D view of everything that a strided tensor reaches; a copy only of a lazily conjugated one."""
    if tensor.is_conj():
        return flat(tensor.conj()).conj()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    view: np.ndarray = torch.as_strided(tensor, (span,), (1,)).numpy()
    return view


def address(array: np.ndarray) -> int:
    """Where an array without gaps starts."""
    start: int = array.__array_interface__["data"][0]
    return start


def aligned(shape: Sequence[int], dtype: Any, zeroed: bool = False) -> np.ndarray:
    """Memory that starts at a line of the cache, so that no register of a row crosses one; where it is large, it is used again.

    >>> aligned((2, 3), np.float32).ctypes.data % LINE
    0
    """
    itemsize = np.dtype(dtype).itemsize
    if SMALLEST <= prod(shape) * itemsize <= LARGEST:
        buffer = room(tuple(shape), dtype)
        if zeroed:
            buffer.fill(0)
        return buffer
    memory = (np.zeros if zeroed else np.empty)(prod(shape) + LINE // itemsize, dtype)
    start = -memory.ctypes.data % LINE // itemsize
    return memory[start : start + prod(shape)].reshape(shape)


def check_memory(shape: Sequence[int], itemsize: int, where: object) -> None:
    """Refuse a dense result that is larger than the memory limit.

    Raises:
        SizeError: with the sizes, and the way to a sparse result.
    """
    sparse = CSR if len(shape) == 2 and shape[0] * 8 <= ASK_FROM else CSF(len(shape))
    way_out = f"a sparse result is asked for by format=, as format={spelled(sparse)}"
    check_bytes(prod(shape) * itemsize, f"the dense result {'x'.join(map(str, shape))}", where, way_out)


def check_workspace(values: int, each: int, where: str, other: str) -> None:
    """Refuse workspaces of so many values in all that are larger than the memory limit; ``other`` is the kind to try then.

    Raises:
        SizeError: with the sizes.
    """
    check_bytes(values * SPACE, f"the workspace of {each} values", where, f'schedule="workspace({other})" collects rows otherwise')


def compressed_instead(order: int) -> str:
    """What to do about a format that stores more than entries.

    >>> compressed_instead(2), compressed_instead(1)
    ('use compressed levels, which store just the entries, as in ns.DCSR', "use compressed levels, which store just the entries, as in 's'")
    """
    return f"use compressed levels, which store just the entries, as in {spelled(CSF(order))}"


def spelled(format: Format) -> str:
    """A format as it is written in a call."""
    return f"ns.{format.name}" if format.name in named_formats(format.order) else repr(format.name)


def check_bytes(size: int, what: str, where: object, way_out: str) -> None:
    """Refuse to allocate more than the limit: ``NUMSCORCH_MEMORY_LIMIT``, or else half of the memory that is free.

    Raises:
        SizeError: with both sizes.
    """
    if size > ASK_FROM and size > limit():
        raise SizeError(
            f"{what} takes {size / 2**30:.3g} GiB, but the limit is {limit() / 2**30:.3g} GiB: NUMSCORCH_MEMORY_LIMIT sets another\n"
            f"  {where}     {way_out}"
        )


def check_entries(count: int, order: int, itemsize: int, what: str, where: object, way_out: str) -> None:
    """Refuse to make so many entries, each a value and a coordinate for each dimension, if they are larger than the memory limit.

    Raises:
        SizeError: with both sizes.
    """
    size = count * (itemsize + COORDINATE * order)
    if size > ASK_FROM:
        check_bytes(size, f"{what}, of {count} entries,", where, way_out)


def limit() -> int:
    """Bytes that one allocation may take."""
    asked = os.environ.get("NUMSCORCH_MEMORY_LIMIT")
    return parse_size(asked, "NUMSCORCH_MEMORY_LIMIT") if asked else available() // 2


def available() -> int:
    """Bytes of memory that are free, or can be freed."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62


def parse_size(text: str, name: str) -> int:
    """A number of bytes, as 200000000, 200M or 2G.

    Raises:
        NumscorchError: it is none.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([KMG]?)B?\s*", text.upper())
    if match is None:
        raise NumscorchError(f"{name} is {text!r}: give a number of bytes, as in 200000000, 200M or 2G")
    return int(match[1]) * UNITS[match[2]]


def size_in_words(count: int) -> str:
    """Bytes in the largest unit of which there is at least one.

    >>> size_in_words(12), size_in_words(1_230_000)
    ('12 bytes', '1.2 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
