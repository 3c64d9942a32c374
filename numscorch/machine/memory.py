"""Memory: flat views of tensors, aligned allocation, and limits on the size of results."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np
import torch

from ..errors import NumscorchError, SizeError
from ..ir.format import CSF, CSR, Format, named_formats
from .buffer_pool import LARGEST, SMALLEST, room
from .threads import workers

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
SPACE = 24  # bytes of a workspace per value: list, mark or hash table, and the value
NO_BYTES = ctypes.c_char * 0  # so that empty arrays have an address, too
COORDINATE = 8  # bytes of a coordinate while entries are created
ASK_FROM = 1 << 30  # bytes above which the limit is checked


def flat(tensor: torch.Tensor) -> np.ndarray:
    """A 1-D view of the memory that a strided tensor spans. A lazily conjugated tensor is copied first."""
    if tensor.is_conj():
        return flat(tensor.conj()).conj()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return torch.as_strided(tensor, (span,), (1,)).numpy()


def address(array: np.ndarray) -> int:
    """The address of a contiguous array, in a quarter of the time of ``array.ctypes.data``.

    Raises:
        TypeError: the array is read-only.
    """
    return ctypes.addressof(NO_BYTES.from_buffer(array))  # type: ignore[arg-type]  # arrays have the buffer protocol


def aligned(size: int, dtype: torch.dtype, zeroed: bool = False) -> torch.Tensor:
    """A 1-D tensor that starts at a cache line, so that no register load crosses one. Large ones come from the buffer pool.

    >>> aligned(6, torch.float32).data_ptr() % 64
    0
    """
    if SMALLEST <= size * dtype.itemsize <= LARGEST:
        memory = torch.from_numpy(room(size * dtype.itemsize, np.uint8)).view(dtype)  # NumPy has no bfloat16
    else:
        memory = torch.empty(size, dtype=dtype, device="cpu")
    return memory.zero_() if zeroed else memory


def check_memory(shape: Sequence[int], itemsize: int, where: object) -> None:
    """Check that a dense result is within the memory limit.

    Raises:
        SizeError: it is larger; the text suggests a sparse result.
    """
    if prod(shape) * itemsize <= ASK_FROM:
        return
    sparse = CSR if len(shape) == 2 and shape[0] * 8 <= ASK_FROM else CSF(len(shape))
    suggestion = f"request a sparse result, as with format={spelled(sparse)}"
    check_bytes(prod(shape) * itemsize, f"the dense result {'x'.join(map(str, shape))}", where, suggestion)


def check_parts(places: int, itemsize: int, where: object, order: int) -> None:
    """Check that a workspace of ``places`` partial sums for each thread is within the memory limit.

    Raises:
        SizeError: it is larger; the text suggests a sparse result of this order.
    """
    if (size := workers() * places * itemsize) > ASK_FROM:
        suggestion = f"request a sparse result, as with format={spelled(CSF(order))}"
        check_bytes(size, f"the workspace of {places} partial sums for each thread", where, suggestion)


def check_workspace(values: int, each: int, where: object, other: str) -> None:
    """Check that the workspaces of a kernel are within the memory limit.

    Args:
        values: number of values of all workspaces.
        each: number of values of one workspace.
        where: the statement, for the error text.
        other: the kind of workspace that the error text suggests.

    Raises:
        SizeError: they are larger than the limit.
    """
    check_bytes(values * SPACE, f"the workspace of {each} values", where, f'schedule="workspace({other})" uses another kind of workspace')


def compressed_instead(order: int) -> str:
    """The suggestion for errors about a format that stores more than its entries, such as a dense one.

    >>> compressed_instead(2), compressed_instead(1)
    ('use compressed levels, which store just the entries, as in ns.DCSR', "use compressed levels, which store just the entries, as in 's'")
    """
    return f"use compressed levels, which store just the entries, as in {spelled(CSF(order))}"


def spelled(format: Format) -> str:
    """The Python expression of a format."""
    return f"ns.{format.name}" if format.name in named_formats(format.order) else repr(format.name)


def check_bytes(size: int, what: str, where: object, suggestion: str) -> None:
    """Check an allocation against the limit: ``NUMSCORCH_MEMORY_LIMIT`` or, by default, half of the available memory.

    Args:
        size: bytes of the allocation.
        what: the object to allocate, for the error text.
        where: the request, for the error text.
        suggestion: the suggestion of the error text.

    Raises:
        SizeError: the allocation exceeds the limit.
    """
    if size > ASK_FROM and size > limit():
        raise SizeError(
            f"{what} takes {size / 2**30:.3g} GiB, but the limit is {limit() / 2**30:.3g} GiB: set NUMSCORCH_MEMORY_LIMIT to change it\n"
            f"  {where}     {suggestion}"
        )


def check_entries(count: int, order: int, itemsize: int, what: str, where: object, suggestion: str) -> None:
    """Check that ``count`` entries, each a value and one coordinate per dimension, are within the memory limit.

    Raises:
        SizeError: they are larger.
    """
    check_bytes(count * (itemsize + COORDINATE * order), f"{what}, of {count} entries,", where, suggestion)


def limit() -> int:
    """The maximum number of bytes of an allocation."""
    text = os.environ.get("NUMSCORCH_MEMORY_LIMIT")
    return parse_size(text, "NUMSCORCH_MEMORY_LIMIT") if text else available() // 2


def available() -> int:
    """The available memory in bytes: free, or reclaimable by the system."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62


def parse_size(text: str, name: str) -> int:
    """Parse a number of bytes, such as 200000000, 200M or 2G; ``name`` is the setting's name for errors.

    Raises:
        NumscorchError: the text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([KMG]?)B?\s*", text.upper())
    if match is None:
        raise NumscorchError(f"{name} is {text!r}: give a number of bytes, as in 200000000, 200M or 2G")
    return int(match[1]) * UNITS[match[2]]
