"""The order of coordinates: tests of it, and sorting of entries by their coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..schedule import tuning
from .modes import as_numpy

KEY_BITS = 63  # bits of a nonnegative int64
INT32_BITS = 32  # with the bit of the sign; NumPy sorts uint32 in half the time of int64


def sorting(columns: list[np.ndarray], sizes: Sequence[int], n: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The stable permutation that sorts n entries lexicographically by these columns, and the sorted columns.

    >>> order, columns = sorting([np.array([1, 0, 1]), np.array([2, 1, 0])], (2, 3), 3)
    >>> order.tolist(), [column.tolist() for column in columns]
    ([1, 2, 0], [[0, 1, 1], [1, 0, 2]])
    """
    if are_in_order(columns):
        return np.arange(n, dtype=np.int32 if n.bit_length() < INT32_BITS else np.int64), columns
    if fit_into_keys(sizes, n):
        columns, order = sorted_columns(columns, sizes)
        return order, columns
    order = np.arange(n)
    for column in reversed(columns):  # torch's stable radix sort is twice as fast as NumPy's
        order = order[as_numpy(torch.sort(torch.from_numpy(column[order]), stable=True).indices)]
    return order, [column[order] for column in columns]


def sorted_columns(columns: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Sort entries lexicographically by columns that :func:`fit_into_keys`.

    The coordinates of an entry and its position are packed into one integer. NumPy sorts plain integers with SIMD, 2 to 12 times as
    fast as torch sorts keys with positions. Few entries are sorted column by column: for 16-bit integers, NumPy has a radix sort.

    Returns:
        The sorted columns, as int32 if that fits and many are sorted, and the stable sorting permutation.

    >>> columns, order = sorted_columns([np.array([1, 0, 1]), np.array([0, 2, 0])], (2, 3))
    >>> [column.tolist() for column in columns], order.tolist()
    ([[0, 1, 1], [2, 0, 0]], [1, 0, 2])
    """
    if len(columns[0]) * len(columns) ** 2 <= tuning.RADIX_SORTED and max(sizes) <= 1 << 16:
        order = columns[-1].astype(np.uint16).argsort(kind="stable")
        for column in columns[-2::-1]:
            order = order.take(column.take(order).astype(np.uint16).argsort(kind="stable"))
        return [column.take(order) for column in columns], order
    widths, bits = _widths_of(sizes), len(columns[0]).bit_length()
    dtype: type[np.integer[Any]] = np.uint32 if sum(widths) + bits <= INT32_BITS else np.int64
    key: Any = columns[0].astype(dtype)  # NumPy's type stubs lack in-place shifts of unsigned integers
    for column, width in zip(columns[1:], widths[1:], strict=True):
        key <<= width
        key |= column.astype(dtype, copy=False)
    key <<= bits
    key |= np.arange(len(key), dtype=dtype)
    for start, end in pairwise(_cuts(columns[0])):
        key[start:end].sort()
    order = _low_bits(key, bits)
    key >>= bits
    ordered = []
    for width in reversed(widths):
        ordered.append(_low_bits(key, width))
        key >>= width
    return ordered[::-1], order


def _cuts(column: np.ndarray) -> list[int]:
    """Bounds of parts that can be sorted one after another, in the cache: places where an ordered first column changes.

    >>> _cuts(np.array([0, 1, 1])), _cuts(np.array([1, 0, 1]))
    ([0, 3], [0, 3])
    """
    firsts = column[:: tuning.SORTED_KEYS]
    is_ordered = len(firsts) > 1 and are_in_order([firsts]) and are_in_order([column])
    return [*(column.searchsorted(firsts).tolist() if is_ordered else [0]), len(column)]


def are_new(ordered: np.ndarray) -> np.ndarray:
    """Whether each of the sorted numbers differs from the preceding one.

    >>> are_new(np.array([3, 3, 5])).tolist()
    [True, False, True]
    """
    is_new = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return is_new


def _low_bits(key: np.ndarray, bits: int) -> np.ndarray:
    """The lowest bits of each integer, as int32 if they fit."""
    low = np.empty(len(key), np.int32 if bits < INT32_BITS else np.int64)
    return np.bitwise_and(key, (1 << bits) - 1, out=low, casting="unsafe")


def fit_into_keys(sizes: Sequence[int], n: int) -> bool:
    """Whether the coordinates of an entry and its number fit into an integer of 63 bits.

    >>> fit_into_keys((1 << 20, 1 << 20), 1 << 22), fit_into_keys((1 << 20, 1 << 20), 1 << 23)
    (True, False)
    """
    return sum(_widths_of(sizes)) + n.bit_length() <= KEY_BITS


def _widths_of(sizes: Sequence[int]) -> list[int]:
    return [max(size - 1, 0).bit_length() for size in sizes]


def in_order(columns: Sequence[np.ndarray], *, strict: bool = True) -> np.ndarray:
    """For each entry except the first, whether its coordinates follow those of the preceding entry lexicographically.

    Without ``strict``, equal coordinates count as ordered.

    >>> in_order([np.array([0, 0, 1, 1]), np.array([3, 5, 0, 0])]).tolist()
    [True, True, False]
    """
    *above, last = columns
    after = last[:-1] < last[1:] if strict else last[:-1] <= last[1:]
    for column in reversed(above):
        after &= column[:-1] == column[1:]
        after |= column[:-1] < column[1:]
    return after


def are_within(column: np.ndarray, size: int) -> bool:
    """Whether all coordinates lie in 0 to ``size - 1``. Read as unsigned integers, negative ones exceed any size.

    >>> [are_within(np.array(column, np.int32), 3) for column in ([0, 2], [3], [-1], [])]
    [True, False, False, True]
    """
    return len(column) == 0 or int(column.view(f"u{column.itemsize}").max()) < size


def are_in_order(columns: Sequence[np.ndarray], chunk: int = 1 << 16) -> bool:
    """Whether entries are ordered lexicographically, with equal coordinates allowed. Stops at the first chunk with a disorder."""
    return all(
        bool(in_order([column[start : start + chunk + 1] for column in columns], strict=False).all())
        for start in range(0, len(columns[0]) if columns else 0, chunk)
    )
