"""What generated source calls besides intrinsics: element-wise functions, sorting, searching and hashing, in plain Python.

Numba compiles them into the kernel that calls them.  Un-jitted kernels sort with
numpy, and take the functions from ``ir.functions``, which don't raise where the machine's answer is an infinity or NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import config

from ..ir.function_table import FUNCTIONS, WHOLE
from ..ir.hash_table import MULTIPLIER
from . import intrinsics
from .pipeline import Linked
from .scattering import FAN, LEVELS

GOLDEN = 0x278DDE6E5FD29F05  # 2**62 divided by the golden ratio: multiples of it lie evenly around the circle
LOW = (1 << 62) - 1
SHORT = 24  # values that insertion sorts faster
FEW = 8  # coordinates that insertion sorts faster than bits do
SCAN = 4  # coordinates that are looked at in the time that one bit is set and found again
WORDS = 16  # of bits, in that time
F = TypeVar("F", bound=Callable[..., Any])
lowest_bit = cast("Callable[[int], int]", intrinsics.lowest_bit)
on_stack = cast("Callable[[int], Any]", intrinsics.on_stack)


def jitted(function: F) -> F:
    """The function, compiled where a kernel calls it."""
    if config.DISABLE_JIT:
        return function
    return cast(F, Linked(function))


EVALUATED = {name: function.evaluate for name, function in FUNCTIONS.items() if name != "abs"}  # which Python has
ELEMENTWISE = {name: jitted(function) for name, function in (EVALUATED | WHOLE).items()}


def __getattr__(name: str) -> Any:
    """An element-wise function, which generated source imports by its name."""
    if name in ELEMENTWISE:
        return ELEMENTWISE[name]
    raise AttributeError(f"module {__name__} has no {name}")


@jitted
def truth(condition: Any, one: Any) -> Any:
    """1 where the condition holds, else 0, of the type of ``one``."""
    return one if condition else one - one


@jitted
def outranked(row: Any, at: int, m: int, size: int) -> Any:
    """How many values of a place's block of m in a row are larger than its own, by absolute values; of equal ones those behind it.

    NaN is larger than none, and none is larger than it.
    """
    first, magnitude, count = at // m * m, abs(row[at]), 0
    for other in range(first, at):
        count += abs(row[other]) > magnitude
    for other in range(at + 1, min(first + m, size)):
        count += abs(row[other]) >= magnitude
    return count


@jitted
def seek(crd: Any, start: int, end: int, coordinate: int) -> Any:
    """The first of the ordered positions start, ..., end - 1 whose coordinate isn't less; end if there is none.

    Steps double until they are past it, and what lies between is halved: the time grows with the
    logarithm of how far it is, so that many near searches cost no more than one walk.
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
def exchange(keys: Any, values: Any, a: int, b: int) -> None:
    """Exchange two keys, and their values where there are any."""
    keys[a], keys[b] = keys[b], keys[a]
    if values is not None:
        values[a], values[b] = values[b], values[a]


@jitted
def move(keys: Any, values: Any, a: int, b: int) -> None:
    """Copy a key from one place to another, and its value where there are any."""
    keys[b] = keys[a]
    if values is not None:
        values[b] = values[a]


@jitted
def insertion_sort(keys: Any, values: Any, start: int, end: int) -> None:
    """Sort a short keys[start:end] in place, and values with it."""
    for at in range(start + 1, end):
        key, value, place = keys[at], keys[at] if values is None else values[at], at
        while place > start and keys[place - 1] > key:
            move(keys, values, place - 1, place)
            place -= 1
        keys[place] = key
        if values is not None:
            values[place] = value


@jitted
def partition(keys: Any, values: Any, start: int, end: int) -> tuple[int, int]:
    """Exchange until no key before ``low`` is greater than one after ``high``, by the median of three; returns both."""
    left, middle, right = keys[start], keys[(start + end) // 2], keys[end - 1]
    pivot = max(min(left, middle), min(max(left, middle), right))
    low, high = start, end - 1
    while low <= high:
        while keys[low] < pivot:
            low += 1
        while keys[high] > pivot:
            high -= 1
        if low <= high:
            exchange(keys, values, low, high)
            low += 1
            high -= 1
    return low, high


@jitted
def sort(keys: Any, values: Any, start: int, end: int) -> None:
    """Sort keys[start:end] in place by quicksort, and values with it unless they are None.

    The parts that wait are kept in a list of their own: Numba can't load a recursive function from its cache.
    """
    if end - start <= SHORT:
        insertion_sort(keys, values, start, end)
        return
    waiting = on_stack(2 * 64)  # the shorter part is sorted first, so that at most log2(n) wait
    depth = 0
    while True:
        while end - start > SHORT:
            low, high = partition(keys, values, start, end)
            left_is_short = high + 1 - start < end - low
            waiting[2 * depth] = low if left_is_short else start
            waiting[2 * depth + 1] = end if left_is_short else high + 1
            start, end = (start, high + 1) if left_is_short else (low, end)
            depth += 1
        insertion_sort(keys, values, start, end)
        if depth == 0:
            return
        depth -= 1
        start, end = waiting[2 * depth], waiting[2 * depth + 1]


@jitted
def ordered(listed: Any, mark: Any, stamp: int, count: int, size: int) -> None:
    """Put the listed coordinates in order: a look at every mark where many are set, at bits where fewer are, a sort where few are."""
    if count * SCAN > size:
        at = 0
        for coordinate in range(size):
            listed[at] = coordinate  # overwritten unless it is marked
            at += mark[coordinate] == stamp
            if at == count:
                break
    elif count > FEW and size < 64 * WORDS * count:
        by_bits(listed, count, size)
    else:
        sort(listed, None, 0, count)


@jitted
def by_bits(listed: Any, count: int, size: int) -> None:
    """Put less than half of all coordinates in order: each sets a bit in the list's unused end, where they are found in order."""
    first = size - (size + 63) // 64
    for word in range(first, size):
        listed[word] = 0
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
    """Put the listed coordinates in order, and their values with them."""
    sort(listed, values, 0, count)


@jitted
def carry(parts: Any, values: Any, first: int, size: int, number: int) -> None:
    """Empty the places of a block's sums, and every ``FAN`` blocks those of the blocks, into the places of the next level.

    ``parts`` has ``LEVELS`` times ``size`` places: for the sums of one block, of ``FAN`` blocks, and so on.
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
    """Zeros in ``size`` places."""
    for at in range(first, first + size):
        values[at] = 0


@jitted
def emptied(table: Any, bound: int) -> int:
    """Make room for so many insertions, at most half of it used, and say how many binary digits its places have."""
    bits = 1
    while 1 << bits < 2 * bound:
        bits += 1
    for slot in range(1 << bits):
        table[slot] = -1
    return bits


@jitted
def insert(table: Any, listed: Any, bits: int, count: int, coordinate: int) -> int:
    """The place of a coordinate in the list; a new one goes to its end (Knuth, volume 3, section 6.4: Fibonacci hashing)."""
    slot = (coordinate * GOLDEN & LOW) >> (62 - bits)
    while table[slot] >= 0 and listed[table[slot]] != coordinate:
        slot = (slot + 1) & ((1 << bits) - 1)
    if table[slot] < 0:
        table[slot] = count
        listed[count] = coordinate
    return table[slot]  # type: ignore[no-any-return]


@jitted
def entered(crd: Any, start: int, end: int, coordinate: int) -> int:
    """The place of a new coordinate in the hash table from start to end, a power of two of places of which some hold -1."""
    last = end - start - 1
    slot = ((coordinate * MULTIPLIER) >> 16) & last
    while crd[start + slot] >= 0:
        slot = (slot + 1) & last
    crd[start + slot] = coordinate
    return start + slot


@jitted
def padded(crd: Any, values: Any, start: int, end: int, width: int, each: int) -> None:
    """Put ordered entries, of ``each`` values, where they belong among ``width``: the smallest coordinates that are free fill the gaps."""
    free = start + width  # from here on, all places have what belongs there
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
    """Zeros from start to end, at the coordinates which are these places, counted from the first."""
    for place in range(start, end):
        crd[place] = place - first
        for value in range(place * each, (place + 1) * each):
            values[value] = 0
