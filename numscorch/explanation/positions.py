"""The coordinates at given positions of a pattern, found from the values upwards, in time proportional to the number of positions.

Conversions unpack complete levels. This module evaluates the loop IR of the level functions (``Level.coordinate``, ``Level.bounds``,
``Level.present``) with numpy for the given positions only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..ir.level import Level, Mode, Segment
from ..ir.loop import BinOp, Call, Choose, Const, Expr, Load, TableLoad, Var
from ..tensors.packing import coordinates, dimension_table
from ..tensors.pattern import Pattern

Values = Mapping[str, Any]
NUMPY_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne},
    **{"and": np.logical_and, "or": np.logical_or},
}
INDEX_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": lambda *args: reduce(np.minimum, args),
    "max": lambda *args: reduce(np.maximum, args),
    "abs": np.abs,
    "int64": lambda value: np.asarray(value, dtype=np.int64),
}
PARENT, POSITION = Var("parent"), Var("position")


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths from the root to k stored values.

    ``positions`` and ``coordinates`` have an array of length k per level; ``table`` holds the coordinates in each dimension, (ndim, k).
    """

    leaves: np.ndarray
    positions: tuple[np.ndarray, ...]
    coordinates: tuple[np.ndarray, ...]
    table: np.ndarray


def paths_to(pattern: Pattern, leaves: np.ndarray) -> Paths | None:
    """The paths to stored values, without padding; None if a user-defined level can't be evaluated.

    Args:
        pattern: the index arrays.
        leaves: positions in the array of values, in ascending order.

    Shape:
        ``leaves`` (k,), ``table`` (ndim, k') with k' <= k.

    >>> import numscorch as ns, torch
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]), ns.CSR)
    >>> paths_to(A.pattern, np.array([0, 2])).table.tolist()
    [[0, 1], [1, 1]]
    """
    try:
        positions = _positions(pattern, leaves)
        values, mask = _coordinates(pattern, positions)
    except UnsupportedError:
        return None
    columns = [np.broadcast_to(values[f"coordinate{at}"], leaves.shape) for at in range(len(positions))]
    entries = np.flatnonzero(mask)
    table, inside = dimension_table(pattern, [column[entries] for column in columns], entries)
    return Paths(leaves[inside], tuple(p[inside] for p in positions), tuple(c[inside] for c in columns), table)


def table_of(pattern: Pattern, leaves: np.ndarray) -> np.ndarray:
    """The coordinates of stored values, of shape (ndim, k); those of all values if a user-defined level can't be evaluated."""
    paths = paths_to(pattern, leaves)
    return coordinates(pattern).numpy() if paths is None else paths.table


def _positions(pattern: Pattern, leaves: np.ndarray) -> list[np.ndarray]:
    """The position in each level above the given values."""
    positions = [leaves] if pattern.format.levels else []
    for at in range(len(pattern.format.levels) - 1, 0, -1):
        positions.insert(0, _parents(pattern, at, positions[0]))
    return positions


def _parents(pattern: Pattern, at: int, positions: np.ndarray) -> np.ndarray:
    """The positions in the level above: by ``pos``, or by division if all parents have the same number of children.

    Raises:
        UnsupportedError: a user-defined level has neither.
    """
    level, counts, arrays = pattern.format.levels[at], pattern.counts, pattern.level_arrays(at)
    if "pos" in level.arrays:
        return np.searchsorted(arrays[level.arrays.index("pos")], positions, side="right") - 1
    if not len(positions):
        return positions
    children, size = counts[at] // max(counts[at - 1], 1), pattern.format.sizes(pattern.shape)[at]
    if children < 1 or level.count(arrays, 3 * counts[at - 1], size) != 3 * counts[at]:
        raise UnsupportedError(f"the parents of the positions of {level} are not known")
    return positions // children


def _coordinates(pattern: Pattern, positions: list[np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
    """The coordinates of each level, by name, and a mask of the positions that hold an entry."""
    sizes, above = pattern.format.sizes(pattern.shape), np.zeros(1, dtype=np.int64)
    mask = np.ones(len(positions[-1]) if positions else 1, dtype=bool)
    values: dict[str, Any] = {f"size{at}": size for at, size in enumerate(sizes)}
    variables = tuple(map(Var, values))
    for at, level in enumerate(pattern.format.levels):
        mode = Mode(f"A{at + 1}", at, variables, tuple(Var(f"coordinate{n}") for n in range(at)), Segment(PARENT))
        values |= {f"{mode.name}_{name}": array for name, array in zip(level.arrays, pattern.level_arrays(at), strict=True)}
        values |= {PARENT.name: above, POSITION.name: positions[at]}
        values[f"coordinate{at}"] = np.asarray(evaluated(level.coordinate(mode, POSITION), values), dtype=np.int64)
        mask &= _holds_entry(level, mode, values)
        above = positions[at]
    return values, mask


def _holds_entry(level: Level, mode: Mode, values: Values) -> Any:
    """A mask of the positions that hold an entry."""
    present = level.present(mode, POSITION)
    mask = True if present is None else evaluated(present, values)
    if level.gaps and not level.full:
        start, end = (evaluated(bound, values) for bound in level.bounds(mode))
        mask &= (values[POSITION.name] >= start) & (values[POSITION.name] < end)
    return mask


def evaluated(expr: Expr, values: Values) -> Any:
    """Evaluate an expression of loop IR with arrays in place of its variables.

    Raises:
        UnsupportedError: the expression calls a routine that exists only in kernels.

    >>> evaluated(Var("p") % 3, {"p": np.array([2, 3])}).tolist()
    [2, 0]
    """
    match expr:
        case Var(name):
            return values[name]
        case Const(value):
            return value
        case Load(array, index):
            return values[array.name][evaluated(index, values)]
        case BinOp(op, left, right):
            return NUMPY_OPERATORS[op](evaluated(left, values), evaluated(right, values))
        case Call(function, args):
            if function not in INDEX_FUNCTIONS:
                raise UnsupportedError(f"{function} is a kernel routine: numpy can't evaluate it")
            return INDEX_FUNCTIONS[function](*(evaluated(arg, values) for arg in args))
        case Choose(condition, value, otherwise):
            return np.where(evaluated(condition, values), evaluated(value, values), evaluated(otherwise, values))
        case TableLoad(_, numbers, index):
            return np.array(numbers)[evaluated(index, values)]
