"""The intrinsics in plain Python, for kernels that run uncompiled with a check at every access.

A checked pointer raises outside its array, so each uncompiled run is also a bounds check. A NumPy array would accept a
negative index, with which the compiled kernel reads memory outside the array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numpy as np

from ..ir.function_table import FUNCTIONS, WHOLE, nonzero


class Checked:
    """A 1-D array that raises IndexError unless 0 <= index < size."""

    def __init__(self, array: np.ndarray):
        self.array = array.reshape(-1)

    def check(self, index: int, count: int = 1) -> int:
        """Return the index if ``count`` values from it on lie in the array; otherwise raise IndexError."""
        if not index >= 0 or index + count > self.array.size:
            raise IndexError(f"{count} values from {index} on lie outside an array of {self.array.size}")
        return int(index)

    def __getitem__(self, index: int) -> Any:
        return self.array[self.check(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self.array[self.check(index)] = value


def load(array: Checked, index: int, lanes: int, count: int = 1, left: int | None = None) -> np.ndarray:
    """array[index : index + lanes * count], with a row for each register if there are several.

    ``left`` is the number of lanes to load into the last register; its other lanes are 0.
    """
    tile = np.zeros(lanes * count, array.array.dtype)
    used = lanes * (count - 1) + (lanes if left is None else min(left, lanes))
    tile[:used] = array.array[array.check(index, used) : index + used]
    return shaped(tile, lanes)


def lanes_in_use(tile: np.ndarray, left: int | None) -> int:
    """Return the number of lanes in use: all lanes, but only ``left`` lanes of the last register unless that is None."""
    return tile.size if left is None else tile.size - tile.shape[-1] + left


def shaped(values: np.ndarray, lanes: int) -> np.ndarray:
    """Return values as a tile: one register, or a row for each register, so that NumPy broadcasts a register over larger tiles."""
    return values if values.size == lanes else values.reshape(-1, lanes)


def store(array: Checked, index: int, value: np.ndarray, left: int | None = None) -> None:
    """array[index : index + lanes * count] = value. ``left``: how many lanes of the last register are stored."""
    used = lanes_in_use(value, left)
    array.array[array.check(index, used) : index + used] = value.reshape(-1)[:used]


def prefetch(array: Checked, index: int) -> None:
    """Do nothing: a prefetch has no effect on values."""


def splat(value: Any, lanes: int, count: int = 1) -> np.ndarray:
    """Return a tile with one value in every lane."""
    return shaped(np.full(lanes * count, value), lanes)


def dot(a: Any, b: Any, total: np.ndarray) -> np.ndarray:
    """Return the register ``total`` plus the products of the registers of a and b, added in order."""
    return accumulate(total, a * b)


def dots(a: Any, b: Any, c: Any, d: Any, e: Any, total: np.ndarray) -> np.ndarray:
    """Return a tile of four registers: ``total`` plus the products of a with b, c, d and e, each added as by ``dot``."""
    return np.stack([dot(a, other, register) for other, register in zip((b, c, d, e), total, strict=True)])


def accumulate(total: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return the register ``total`` plus the registers of a tile, added in order."""
    return sum(value.reshape(-1, total.size), total)


def hsum(value: np.ndarray) -> Any:
    """Return the sum of a tile's values: registers are added pairwise, then the lanes of one register."""
    registers = list(value.reshape(-1, value.shape[-1]))
    while len(registers) > 1:
        pairs = [left + right for left, right in zip(registers[::2], registers[1::2], strict=False)]
        registers = pairs + registers[2 * len(pairs) :]
    return registers[0].sum()


def gather(array: Checked, base: int, stride: int, crd: Checked, position: int, lanes: int) -> np.ndarray:
    """array[base + stride * crd[position : position + lanes]]"""
    return np.array([array[base + stride * int(crd[position + lane])] for lane in range(lanes)])


def appended(
    values: Checked, crd: Checked, position: int, coordinate: int, value: np.ndarray, kept: np.ndarray, left: int | None = None
) -> int:
    """Append the kept lanes and their coordinates; return the next position. There must be room for all lanes.

    ``left`` is the number of lanes of the last register to append.
    """
    count = lanes_in_use(value, left)
    (lanes,) = (np.broadcast_to(kept, value.shape).reshape(-1)[:count] != 0).nonzero()
    for array, source in ((values, value.reshape(-1)[lanes]), (crd, coordinate + lanes)):
        array.array[array.check(position, count) : position + len(lanes)] = source
    return int(position) + len(lanes)


def largest(value: np.ndarray, n: int, m: int, left: int | None = None) -> np.ndarray:
    """Return 1 where a lane is one of the n largest of its block of m, and 0 elsewhere. Among equal lanes, later lanes come first.

    Lanes of the last register from ``left`` on are less than any other.
    """
    sizes = np.abs(value.reshape(-1))
    sizes[lanes_in_use(value, left) :] = -1
    blocks = sizes.reshape(-1, 1, m)
    lanes = blocks.swapaxes(1, 2)
    behind = np.triu(np.ones((m, m), bool), 1)
    ranks = ((blocks > lanes) | ((blocks == lanes) & behind)).sum(2)
    return (ranks < n).astype(value.dtype).reshape(value.shape)


def transpose(source: Checked, at: int, apart: int, target: Checked, to: int, between: int, lanes: int) -> None:
    """target[to + between * c + r] = source[at + apart * r + c] for r and c below lanes"""
    for row in range(lanes):
        for column in range(lanes):
            target[to + between * column + row] = source[at + apart * row + column]


def padded(crd: Checked, values: Checked, start: int, end: int, width: int, each: int) -> None:
    """Spread sorted entries over ``width`` places; the smallest free coordinates fill the gaps, with zeros."""
    number, coords = np.arange(end - start), crd.array[start:end].copy()
    coordinates, rows = crd.array[start : start + width], values.array[start * each : (start + width) * each].reshape(width, each)
    stored, places = rows[: len(coords)].copy(), np.minimum(coords, width - len(coords) + number)
    coordinates[:], rows[:] = np.arange(width), 0
    coordinates[places], rows[places] = coords, stored


def ordered_pairs(listed: Checked, values: Checked, count: int) -> None:
    """Sort the listed coordinates, and their values with them."""
    order = np.argsort(listed.array[:count])
    for part in (listed.array, values.array):
        part[:count] = part[:count][order]


def keep_largest(listed: Checked, values: Checked, count: int, most: int, beside: int, packed: int) -> int:
    """Keep the entries of largest magnitude in a list, of equal ones those with the largest coordinates; return their number."""
    coordinates = listed.array[:count].copy()
    terms = values.array[:count].copy() if beside else values.array[coordinates]
    kept = np.lexsort((coordinates, abs(terms).astype(np.float32) if packed else abs(terms)))[max(count - most, 0) :]
    listed.array[: len(kept)] = coordinates[kept]
    if beside:
        values.array[: len(kept)] = terms[kept]
    return len(kept)


def combined(listed: Checked, values: Checked, count: int) -> int:
    """Sort the listed coordinates, sum the values of equal ones in the order of insertion; return the number of distinct ones.

    There must be room for twice ``count`` places.
    """
    for part in (listed, values):
        part.check(0, 2 * count)
    coordinates, places = np.unique(listed.array[:count], return_inverse=True)
    terms = values.array[:count].copy()
    listed.array[: len(coordinates)] = coordinates
    values.array[: len(coordinates)] = 0
    np.add.at(values.array, places, terms)
    return len(coordinates)


def seek(crd: Checked, start: int, end: int, coordinate: int) -> int:
    """Return the first position with at least this coordinate; raise ValueError if the searched part is not sorted."""
    part = crd.array[crd.check(start, max(end - start, 0)) : end]
    if np.any(part[1:] < part[:-1]):
        raise ValueError(f"coordinates from {start} to {end} are not in order")
    return start + int(np.searchsorted(part, coordinate))


def stored_product(row: Any, value: Any) -> Any:
    """Return row * value, and 0 where no bit of ``row`` is set."""
    return np.where((row == 0) & ~np.signbit(row), row, row * value)


def run_as_python(scope: Mapping[str, Any]) -> Callable[..., None]:
    """Return a kernel as plain Python. ``TWINS`` replace the intrinsics; routines without a twin run uncompiled.

    Args:
        scope: the globals of the kernel's file.
    """
    uncompiled = {name: getattr(value, "py_func", value) for name, value in scope.items()}
    plain: dict[str, Any] = {**uncompiled, **TWINS}
    plain |= {name: FunctionType(scope[name].__code__, plain) for name in ("body", "finish", "kernel") if name in scope}

    def run(*args: Any) -> None:
        with np.errstate(all="ignore"):  # as in machine code, x / 0 is infinite
            plain["kernel"](*(Checked(array) if isinstance(array, np.ndarray) else array for array in args))

    return run


def compared(test: np.ufunc) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a comparison that yields 1 or 0 in the data type of its operands."""
    return lambda a, b: test(a, b).astype(a.dtype)


REGISTERED: dict[str, Any] = {
    "div": np.divide,
    "eq": compared(np.equal),
    "exponentials": np.exp,
    "ge": compared(np.greater_equal),
    "gt": compared(np.greater),
    "hmax": np.max,
    "hmin": np.min,
    "larger": np.maximum,
    "le": compared(np.less_equal),
    "lt": compared(np.less),
    "magnitudes": np.abs,
    "ne": compared(np.not_equal),
    "relus": lambda a: np.where(a <= 0, a.dtype.type(0), a),
    "roots": np.sqrt,
    "selected": lambda condition, a, b: np.where(condition != 0, a, b),
    "sigmoids": lambda a: 1 / (1 + np.exp(-a)),
    "smaller": np.minimum,
    "sub": np.subtract,
}
TWINS: dict[str, Any] = {
    "accumulate": accumulate,
    "appended": appended,
    "combined": combined,
    "keep_largest": keep_largest,
    "largest": largest,
    "add": lambda a, b: a + b,
    "carray": lambda array, shape: array.array.reshape(shape),
    "at_most": lambda a, b: -1 if a <= b else 0,
    "dot": dot,
    "dots": dots,
    "every": lambda array, index, at, step, lanes: load(array, index, step * lanes)[at::step],
    "first_lanes": lambda new, old, count: np.where(np.arange(len(old)) < count, new, old),
    "fma": lambda a, b, c: a * b + c,
    "gather": gather,
    "hsum": hsum,
    "hsums": lambda *registers: np.array([hsum(register) for register in np.stack(registers).reshape(-1, registers[0].shape[-1])]),
    "load": load,
    "rolled": int,
    "masked": lambda value, mask: value if mask else type(value)(0),
    "mul": lambda a, b: a * b,
    "nonzero": nonzero,
    "shifted": lambda array, offset: Checked(array.array[array.check(offset, 0) :]),
    "padded": padded,
    "ordered_pairs": ordered_pairs,
    "ordered": lambda listed, mark, stamp, count, size: listed.array[:count].sort(),
    "pointer": lambda array: array if isinstance(array, Checked) else Checked(array),
    "seek": seek,
    "prange": range,
    "splat": splat,
    "store": store,
    "stored_product": stored_product,
    "prefetch": prefetch,
    "transpose": transpose,
    "wrapping_add": lambda a, b: a + b,
    "wrapping_mul": lambda a, b: a * b,
    "wrapping_sub": lambda a, b: a - b,
    **{name: function.evaluate for name, function in FUNCTIONS.items()},
    **WHOLE,
    **REGISTERED,
}
