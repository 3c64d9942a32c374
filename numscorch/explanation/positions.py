"""Which coordinates lie at given positions of a pattern, found from the values upwards: a sample of entries costs no more than itself.

Conversions unpack whole levels. Here the level functions (``Level.coordinate``, ``Level.bounds``, ``Level.present``), which answer in
loop IR, are evaluated with numpy for as many positions as are asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..ir.level import Level, Mode, Segment
from ..ir.loop import BinOp, Call, Choose, Const, Expr, Load, TableLoad, Var
from ..tensors.packing import coordinates
from ..tensors.pattern import Pattern

Values = Mapping[str, Any]
NUMPY_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne},
    **{"and": np.logical_and, "or": np.logical_or},
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": lambda *args: reduce(np.minimum, args),
    "max": lambda *args: reduce(np.maximum, args),
    "abs": np.abs,
    "int64": lambda value: np.asarray(value, dtype=np.int64),
}
PARENT, POSITION = Var("parent"), Var("position")


@dataclass(frozen=True, slots=True)
class Paths:
    """The way from the root to some values: for each level its positions and coordinates, and the coordinates of the dimensions."""

    leaves: np.ndarray
    positions: tuple[np.ndarray, ...]
    coordinates: tuple[np.ndarray, ...]
    table: np.ndarray


def paths_to(pattern: Pattern, leaves: np.ndarray) -> Paths | None:
    """The paths to values, less those that hold no entry or lie outside; None where a level of one's own doesn't tell them.

    Args:
        pattern: the index arrays.
        leaves: places of values, in order.

    Shape:
        ``leaves`` (k,), ``table`` (ndim, k') with k' <= k.

    >>> import numscorch as ns, torch
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]), ns.CSR)
    >>> paths_to(A.pattern, np.array([0, 2])).table.tolist()
    [[0, 1], [1, 1]]
    """
    positions = _positions(pattern, leaves)
    if positions is None:
        return None
    try:
        values, kept = _coordinates(pattern, positions)
    except UnsupportedError:  # a level of one's own that calls what only kernels have
        return None
    columns = [np.broadcast_to(values[f"coordinate{at}"], leaves.shape) for at in range(len(positions))]
    table = np.zeros((len(pattern.shape), len(leaves)), dtype=np.int64)
    for part, column in zip(pattern.format.parts, columns, strict=True):
        if part.minus is None:
            table[part.dimension] += column * part.divisor
    kept &= (table < np.array(pattern.shape, dtype=np.int64)[:, None]).all(axis=0)
    if kept.all():
        return Paths(leaves, tuple(positions), tuple(columns), table)
    return Paths(leaves[kept], tuple(p[kept] for p in positions), tuple(c[kept] for c in columns), table[:, kept])


def table_of(pattern: Pattern, leaves: np.ndarray) -> np.ndarray:
    """The coordinates of values, of shape (ndim, k); of all of the pattern where a level of one's own keeps them from being looked up."""
    paths = paths_to(pattern, leaves)
    return coordinates(pattern).numpy() if paths is None else paths.table


def arrays_of(pattern: Pattern) -> list[tuple[np.ndarray, ...]]:
    """The index arrays of each level; within torch's transforms, too, where no view of a tensor can be taken."""
    views = iter(pattern.views)
    return [tuple(islice(views, len(level))) for level in pattern.arrays]


def _positions(pattern: Pattern, leaves: np.ndarray) -> list[np.ndarray] | None:
    """The positions in each level on the way to values."""
    positions, at = [leaves], len(pattern.format.levels) - 1
    while at > 0:
        parents = _parents(pattern, at, positions[0])
        if parents is None:
            return None
        positions.insert(0, parents)
        at -= 1
    return positions if pattern.format.levels else []


def _parents(pattern: Pattern, at: int, positions: np.ndarray) -> np.ndarray | None:
    """The positions in the level above: by ``pos``, or because each of them has equally many below it."""
    level, counts, arrays = pattern.format.levels[at], pattern.counts, arrays_of(pattern)[at]
    if "pos" in level.arrays:
        return _starting_before(arrays[level.arrays.index("pos")], positions)
    if not len(positions):
        return positions
    each, size = counts[at] // max(counts[at - 1], 1), pattern.format.sizes(pattern.shape)[at]
    if each < 1 or level.count(arrays, 3 * counts[at - 1], size) != 3 * counts[at]:
        return None
    return positions if each == 1 else positions // each


def _starting_before(pos: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """For each of some positions, which are in order, whose they are."""
    if not len(positions):
        return positions
    first, last = np.searchsorted(pos, (positions[0], positions[-1]), side="right")
    if len(positions) != positions[-1] - positions[0] + 1:
        parents: np.ndarray = first - 1 + np.searchsorted(pos[first:last], positions, side="right")
        return parents
    lengths = np.diff(np.clip(pos[first - 1 : last + 1], positions[0], positions[-1] + 1))  # a run of them: no search is needed
    return np.repeat(np.arange(first - 1, first - 1 + len(lengths)), lengths)


def _coordinates(pattern: Pattern, positions: list[np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
    """The coordinate of each level, by name, and which positions hold an entry."""
    sizes, above = pattern.format.sizes(pattern.shape), np.zeros(1, dtype=np.int64)
    kept = np.ones(len(positions[-1]) if positions else 1, dtype=bool)
    stored = arrays_of(pattern)
    values: dict[str, Any] = {f"size{at}": size for at, size in enumerate(sizes)}
    for at, level in enumerate(pattern.format.levels):
        mode = _mode(at, len(sizes))
        values |= {f"{mode.name}_{name}": array for name, array in zip(level.arrays, stored[at], strict=True)}
        values |= {PARENT.name: above, POSITION.name: positions[at]}
        coordinate = evaluated(level.coordinate(mode, POSITION), values)
        values[f"coordinate{at}"] = np.asarray(coordinate, dtype=np.int64)
        kept &= _holds(level, mode, values)
        above = positions[at]
    return values, kept


def _mode(at: int, levels: int) -> Mode:
    """A level as its functions see it, with names that :func:`evaluated` looks up."""
    sizes = tuple(Var(f"size{n}") for n in range(levels))
    return Mode(f"A{at + 1}", at, sizes, tuple(Var(f"coordinate{n}") for n in range(at)), Segment(PARENT))


def _holds(level: Level, mode: Mode, values: Values) -> Any:
    """Which positions hold something."""
    present = level.present(mode, POSITION)
    held = True if present is None else evaluated(present, values)
    if level.gaps and not level.full:
        start, end = (evaluated(bound, values) for bound in level.bounds(mode))
        held &= (values[POSITION.name] >= start) & (values[POSITION.name] < end)
    return held


def evaluated(expr: Expr, values: Values) -> Any:
    """An expression of loop IR for arrays of numbers in place of its variables.

    Raises:
        UnsupportedError: it calls a routine that only kernels have.

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
            if function not in FUNCTIONS:
                raise UnsupportedError(f"{function} is a routine of kernels")
            return FUNCTIONS[function](*(evaluated(arg, values) for arg in args))
        case Choose(condition, value, otherwise):
            return np.where(evaluated(condition, values), evaluated(value, values), evaluated(otherwise, values))
        case TableLoad(_, numbers, index):
            return np.array(numbers)[evaluated(index, values)]
