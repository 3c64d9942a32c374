"""Routines that generated source calls besides intrinsics: element-wise functions, sorting, searching and hashing.

They are written in plain Python, which Numba compiles into the calling kernel. Uncompiled kernels sort with NumPy instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import config
from numpy import float32, int32, int64

from ..ir.function_table import FUNCTIONS, WHOLE
from ..ir.hash_table import MULTIPLIER
from . import intrinsics
from .long_sums import FAN, LEVELS
from .numba_passes import Linked

GOLDEN = 0x278DDE6E5FD29F05  # 2**62 divided by the golden ratio; its multiples are evenly spaced modulo 2**62
LOW = (1 << 62) - 1  # mask of the low 62 bits
SHORT = 24  # number of keys up to which insertion sort is fastest
FEW = 8  # number of coordinates up to which sorting is faster than a bitmap
SCAN = 4  # marks that can be scanned in the time of setting and finding one bit of a bitmap
TILE = 8  # keys whose ranks stay in registers while all other keys are compared with them
RANKED = 128  # number of keys up to which sorting them by rank is faster than quicksort
WORDS = 16  # words of a bitmap that can be scanned in the same time
F = TypeVar("F", bound=Callable[..., Any])
lowest_bit = cast("Callable[[int], int]", intrinsics.lowest_bit)
on_stack = cast("Callable[[int], Any]", intrinsics.on_stack)


def jitted(function: F) -> F:
    """Make a function compile when a kernel that calls it compiles."""
    return function if config.DISABLE_JIT else cast(F, Linked(function))


EVALUATED = {name: function.evaluate for name, function in FUNCTIONS.items() if name != "abs"}  # abs is a builtin
ELEMENTWISE = {name: jitted(function) for name, function in (EVALUATED | WHOLE).items()}


def __getattr__(name: str) -> Any:
    """Return an element-wise function, for generated source that imports it by name."""
    if name in ELEMENTWISE:
        return ELEMENTWISE[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@jitted
def truth(condition: Any, one: Any) -> Any:
    """Return 1 if the condition holds, else 0, in the type of ``one``."""
    return one if condition else type(one)(0)


@jitted
def outranked(row: Any, at: int, m: int, size: int) -> Any:
    """Count the values that rank above ``row[at]`` in its block of m: those larger in magnitude, and equal values after it.

    NaN ranks above no value, and no value ranks above NaN.
    """
    first, magnitude, count = at // m * m, abs(row[at]), 0
    for other in range(first, at):
        count += abs(row[other]) > magnitude
    for other in range(at + 1, min(first + m, size)):
        count += abs(row[other]) >= magnitude
    return count


@jitted
def seek(crd: Any, start: int, end: int, coordinate: int) -> Any:
    """Return the first of the sorted positions start, ..., end - 1 whose coordinate is not less, or end if there is none.

    This is a galloping search: steps double until they pass the coordinate, then bisection finds it. The time is logarithmic
    in the distance, so many searches over short distances cost no more than one walk.
    """
    step, low = 1, start
    while low < end and crd[low] < coordinate:
        start, low = low + 1, low + step
        step *= 2
    end = min(low, end)
    while start < end:
        middle = (start + end) // 2
        if crd[middle] < coordinate:
            start = middle + 1
        else:
            end = middle
    return start


@jitted
def insertion_sort(keys: Any, values: Any, start: int, end: int) -> None:
    """Sort keys[start:end] in place by insertion, and the values with the keys unless they are None."""
    for at in range(start + 1, end):
        key, value, place = keys[at], keys[at] if values is None else values[at], at
        while place > start and keys[place - 1] > key:
            keys[place] = keys[place - 1]
            if values is not None:
                values[place] = values[place - 1]
            place -= 1
        keys[place] = key
        if values is not None:
            values[place] = value


@jitted
def partition(keys: Any, values: Any, start: int, end: int) -> tuple[int, int]:
    """Partition keys by the median of three, until no key before ``low`` is greater than a key after ``high``; return both."""
    left, middle, right = keys[start], keys[(start + end) // 2], keys[end - 1]
    pivot = max(min(left, middle), min(max(left, middle), right))
    low, high = start, end - 1
    while low <= high:
        while keys[low] < pivot:
            low += 1
        while keys[high] > pivot:
            high -= 1
        if low <= high:
            keys[low], keys[high] = keys[high], keys[low]
            if values is not None:
                values[low], values[high] = values[high], values[low]
            low += 1
            high -= 1
    return low, high


@jitted
def sort(keys: Any, values: Any, start: int, end: int) -> None:
    """Sort keys[start:end] in place by quicksort, and the values with the keys unless they are None.

    An explicit stack replaces recursion, because Numba can't load a recursive function from its cache.
    """
    if end - start <= SHORT:
        insertion_sort(keys, values, start, end)
        return
    stack = on_stack(2 * 64)  # sorting the shorter part first bounds the depth by log2(n)
    depth = 0
    while True:
        while end - start > SHORT:
            low, high = partition(keys, values, start, end)
            left_is_short = high + 1 - start < end - low
            stack[2 * depth] = low if left_is_short else start
            stack[2 * depth + 1] = end if left_is_short else high + 1
            start, end = (start, high + 1) if left_is_short else (low, end)
            depth += 1
        insertion_sort(keys, values, start, end)
        if depth == 0:
            return
        depth -= 1
        start, end = stack[2 * depth], stack[2 * depth + 1]


@jitted
def ordered(listed: Any, mark: Any, stamp: int, count: int, size: int) -> None:
    """Sort the listed coordinates: scan all marks if many are set, use a bitmap if fewer are, and sort if few are."""
    if count * SCAN > size:
        at = 0
        for coordinate in range(size):
            listed[at] = coordinate  # overwritten unless the coordinate is marked
            at += mark[coordinate] == stamp
            if at == count:
                break
    elif count > FEW and size < 64 * WORDS * count:
        by_bits(listed, count, size)
    else:
        sort(listed, None, 0, count)


@jitted
def by_bits(listed: Any, count: int, size: int) -> None:
    """Sort less than half of all coordinates with a bitmap in the unused end of the list."""
    first = size - (size + 63) // 64
    empty_places(listed, first, size - first)
    for at in range(count):
        coordinate = listed[at]
        listed[first + (coordinate >> 6)] |= 1 << (coordinate & 63)
    at = 0
    for word in range(first, size):
        bits = listed[word]
        base = (word - first) << 6
        while bits != 0:
            listed[at] = base + lowest_bit(bits)
            bits &= bits - 1
            at += 1


@jitted
def ordered_pairs(listed: Any, values: Any, count: int) -> None:
    """Sort the listed coordinates, and their values with them."""
    sort(listed, values, 0, count)


@jitted
def ranks_above(listed: Any, values: Any, at: int, other: int, beside: int, packed: int) -> Any:
    """Whether the entry at one place of a list has a larger magnitude than another, or the same and a larger coordinate; NaN is largest."""
    if packed:
        return listed[at] > listed[other]
    first, second = abs(values[at if beside else listed[at]]), abs(values[other if beside else listed[other]])
    if first == second or (first != first and second != second):
        return listed[at] > listed[other]
    return first > second or first != first


@jitted
def exchange(listed: Any, values: Any, at: int, other: int, beside: int) -> None:
    """Exchange two entries of a list."""
    listed[at], listed[other] = listed[other], listed[at]
    if beside:
        values[at], values[other] = values[other], values[at]


@jitted
def sift(listed: Any, values: Any, at: int, size: int, beside: int, packed: int) -> None:
    """Move an entry of a heap below all entries that rank lower; the root of the heap ranks lowest."""
    while 2 * at + 1 < size:
        lowest = 2 * at + 1
        if lowest + 1 < size:
            lowest += ranks_above(listed, values, lowest, lowest + 1, beside, packed)
        if ranks_above(listed, values, lowest, at, beside, packed):
            return
        exchange(listed, values, at, lowest, beside)
        at = lowest


@jitted
def keep_largest(listed: Any, values: Any, count: int, most: int, beside: int, packed: int) -> int:
    """Keep the ``most`` entries of largest magnitude in a list, of equal ones those with the largest coordinates; return their number.

    The values lie ``beside`` their coordinates, or in a dense row. If ``packed``, they are compared as float32, and coordinates have at
    most 32 bits: the bits of a magnitude and a coordinate form a key while entries are compared. O(count log most).
    """
    if count <= most:
        return count
    if packed:
        for at in range(count):
            bits = float32(abs(values[at if beside else listed[at]])).view(int32)
            listed[at] = int64(bits) << 32 | listed[at]
    for at in range(most // 2 - 1, -1, -1):
        sift(listed, values, at, most, beside, packed)
    for at in range(most, count):
        if ranks_above(listed, values, at, 0, beside, packed):
            exchange(listed, values, at, 0, beside)
            sift(listed, values, 0, most, beside, packed)
    if packed:
        for at in range(most):
            listed[at] &= (1 << 32) - 1
    return most


@jitted
def combined(listed: Any, values: Any, count: int) -> int:
    """Sort the listed coordinates, sum the values of equal ones in the order of insertion, and return the number of distinct ones.

    A coordinate and its position in the list form a key. Few keys are sorted by their ranks: the rank of a key is the number of
    smaller keys, which is a sum of comparisons in SIMD registers. The lists have room for twice ``count`` places.
    """
    bits = 1
    while 1 << bits < count:
        bits += 1
    if count <= RANKED:
        keys, ranks = on_stack(RANKED), on_stack(RANKED)
        for at in range(count):
            keys[at] = listed[at] << bits | at
        for first in range(0, count, TILE):
            empty_places(ranks, first, TILE)
            for other in range(count):
                for at in range(first, first + TILE):
                    ranks[at] += keys[other] < keys[at]
        for at in range(count):
            listed[ranks[at]] = keys[at]
    else:
        for at in range(count):
            listed[at] = listed[at] << bits | at
        sort(listed, None, 0, count)
    for at in range(count):
        values[count + at] = values[at]
    kept, last = 0, -1
    for at in range(count):
        coordinate, value = listed[at] >> bits, values[count + (listed[at] & ((1 << bits) - 1))]
        if coordinate == last:
            values[kept - 1] += value
        else:
            listed[kept], values[kept] = coordinate, value
            kept, last = kept + 1, coordinate
    return kept


@jitted
def carry(parts: Any, values: Any, first: int, size: int, number: int) -> None:
    """Move the sums of a block to the first level of ``parts``; every ``FAN`` blocks, move the sums of a level to the next level.

    ``parts`` has ``LEVELS`` levels of ``size`` places each. ``number`` is the number of blocks so far.
    """
    for at in range(size):
        parts[at] += values[first + at]
        values[first + at] = 0
    level = 1
    while level < LEVELS and number % FAN == 0:
        number //= FAN
        for at in range(level * size, (level + 1) * size):
            parts[at] += parts[at - size]
            parts[at - size] = 0
        level += 1


@jitted
def collect(parts: Any, values: Any, first: int, size: int) -> None:
    """Add the sums of all levels to the values."""
    for level in range(LEVELS):
        for at in range(size):
            values[first + at] += parts[level * size + at]


@jitted
def empty_places(values: Any, first: int, size: int) -> None:
    """Set ``size`` values from ``first`` on to zero."""
    for at in range(first, first + size):
        values[at] = 0


@jitted
def emptied(table: Any, bound: int) -> int:
    """Clear a hash table for ``bound`` insertions, at most half full, and return the number of bits of its indices."""
    bits = 1
    while 1 << bits < 2 * bound:
        bits += 1
    for slot in range(1 << bits):
        table[slot] = -1
    return bits


@jitted
def insert(table: Any, listed: Any, bits: int, count: int, coordinate: int) -> int:
    """Return a coordinate's place in the list; a new coordinate is appended (Knuth, volume 3, section 6.4: Fibonacci hashing)."""
    slot = (int(coordinate) * GOLDEN & LOW) >> (62 - bits)  # uncompiled kernels pass NumPy integers, which would overflow
    while table[slot] >= 0 and listed[table[slot]] != coordinate:
        slot = (slot + 1) & ((1 << bits) - 1)
    if table[slot] < 0:
        table[slot] = count
        listed[count] = coordinate
    return table[slot]


@jitted
def entered(crd: Any, start: int, end: int, coordinate: int) -> int:
    """Enter a new coordinate into the hash table from start to end and return its position.

    The size of the table is a power of two, and free places hold -1.
    """
    last = end - start - 1
    slot = ((int(coordinate) * MULTIPLIER) >> 16) & last
    while crd[start + slot] >= 0:
        slot = (slot + 1) & last
    crd[start + slot] = coordinate
    return start + slot


@jitted
def padded(crd: Any, values: Any, start: int, end: int, width: int, each: int) -> None:
    """Spread sorted entries of ``each`` values over ``width`` places; the smallest free coordinates fill the gaps, with zeros."""
    free = start + width  # all places from here on are final
    for place in range(end - 1, start - 1, -1):
        coordinate = crd[place]
        target = start + min(coordinate, width - (end - place))
        if target != place:
            crd[target] = coordinate
            for value in range(each):
                values[target * each + value] = values[place * each + value]
        fill(crd, values, start, target + 1, free, each)
        free = target
        if target == place:
            return
    fill(crd, values, start, start, free, each)


@jitted
def fill(crd: Any, values: Any, first: int, start: int, end: int, each: int) -> None:
    """Fill the places from start to end with zeros. Their coordinates are their distances from ``first``."""
    for place in range(start, end):
        crd[place] = place - first
        for value in range(place * each, (place + 1) * each):
            values[value] = 0
