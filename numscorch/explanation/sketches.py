"""Sketches: the data that pages draw of a tensor. A sketch takes a few KB and doesn't keep the tensor alive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..frontend.requests import Operand
from ..ir.format import Format
from ..ir.parts import name_of
from ..tensors.packing import entry_count, has_gaps
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .positions import arrays_of, paths_to
from .rasters import plane, sampled_raster

FIRST = 8  # entries shown of an array
LEAVES = 5  # values shown in the coordinate tree
CELLS = 96  # cells per side of the picture
COUNTED = 1 << 20  # positions up to which the entries of a padded format are counted


@dataclass(frozen=True, slots=True)
class Array:
    """An array's name, data type and length, and its first entries as text."""

    name: str
    dtype: str
    length: int
    first: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{', '.join(self.first)}{', ...' if self.length > len(self.first) else ''}]"


@dataclass(frozen=True, slots=True)
class LevelSketch:
    """A level: the part of a dimension that it stores, its format, its extent, its number of positions (if known), and its arrays."""

    part: str
    name: str
    size: int
    positions: int | None
    arrays: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A stored value, and the position and coordinate in each level of its path."""

    path: tuple[tuple[int, int], ...]
    value: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG of the pattern in the last two dimensions."""

    png: bytes = field(repr=False)
    width: int
    height: int
    caption: str


@dataclass(frozen=True, slots=True)
class Sketch:
    """A tensor's format with the arrays of its levels, its first values, and a picture of its pattern."""

    format: Format
    shape: tuple[int, ...]
    dtype: str
    levels: tuple[LevelSketch, ...]
    values: Array
    leaves: tuple[Leaf, ...]
    picture: Picture | None
    entries: int | None
    bytes: int


def sketch(A: SparseTensor) -> Sketch:
    """The sketch of a tensor, in O(1). Padded formats of up to 2**20 positions also count their entries, in linear time.

    >>> import numscorch as ns
    >>> drawn = sketch(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]), ns.CSR))
    >>> [str(array) for level in drawn.levels for array in level.arrays], str(drawn.values)
    (['[0, 1, 3]', '[1, 0, 1]'], '[2, 3, 4]')
    >>> [(leaf.path, leaf.value) for leaf in drawn.leaves]
    [(((0, 0), (0, 1)), '2'), (((1, 1), (1, 0)), '3'), (((1, 1), (2, 1)), '4')]
    """
    pattern = A.pattern
    first = _numbers(A._values)
    values = Array("vals", str(A.dtype).removeprefix("torch."), len(A._values), first)
    stored = [array for level in pattern.arrays for array in level]
    size = sum(array.nbytes for array in stored) + A._values.nbytes
    return Sketch(
        pattern.format, pattern.shape, values.dtype, _levels(pattern), values, _leaves(A), _picture(pattern), _entries(pattern), size
    )


def sketch_of(operand: Any) -> Sketch | None:
    """The sketch of an operand of explain; None for a dense tensor or a format."""
    return sketch(operand) if isinstance(operand, SparseTensor) else None


def levels_of(operand: Operand) -> tuple[LevelSketch, ...]:
    """The levels of an operand's description, without arrays."""
    fmt = operand.format
    counts = operand.counts or (None,) * len(fmt.levels)
    named = zip(fmt.parts, fmt.levels, fmt.sizes(operand.shape), counts, strict=True)
    return tuple(
        LevelSketch(str(part), str(level), size, count, tuple(Array(name, "", 0, ()) for name in level.arrays))
        for part, level, size, count in named
    )


def _levels(pattern: Pattern) -> tuple[LevelSketch, ...]:
    levels, fmt, stored = [], pattern.format, arrays_of(pattern)
    for at, (part, level, size) in enumerate(zip(fmt.parts, fmt.levels, fmt.sizes(pattern.shape), strict=True)):
        arrays = tuple(
            Array(name, str(array.dtype), len(array), tuple(map(str, array[:FIRST].tolist())))
            for name, array in zip(level.arrays, stored[at], strict=True)
        )
        levels.append(LevelSketch(str(part), str(level), size, pattern.counts[at], arrays))
    return tuple(levels)


def _numbers(values: torch.Tensor, most: int = FIRST, digits: int = 4) -> tuple[str, ...]:
    """The first values as text; empty for tensors without readable memory, for example inside torch's transforms."""
    if type(values) not in (torch.Tensor, torch.nn.Parameter) or torch._C._functorch.maybe_current_level() is not None:
        return ()
    first = values.detach()[:most]
    return tuple(f"{number:.{digits}g}" if isinstance(number, float | complex) else str(number) for number in first.tolist())


def _leaves(A: SparseTensor) -> tuple[Leaf, ...]:
    """The first stored values with their paths; empty if the paths can't be found."""
    pattern, values = A.pattern, _numbers(A._values, 8 * LEAVES, 3)
    paths = paths_to(pattern, np.arange(min(pattern.nnz, 8 * LEAVES)))  # more than are shown: some may be padding
    if paths is None or not pattern.format.levels:
        return ()
    leaves = []
    for at, leaf in enumerate(paths.leaves[:LEAVES]):
        steps = zip(paths.positions, paths.coordinates, strict=True)
        path = tuple((int(position[at]), int(coordinate[at])) for position, coordinate in steps)
        leaves.append(Leaf(path, values[leaf] if leaf < len(values) else "?"))
    return tuple(leaves)


def _entries(pattern: Pattern) -> int | None:
    """The number of stored entries, or None if counting them would take long."""
    if has_gaps(pattern) and pattern.nnz > COUNTED and "entry count" not in pattern.derived:
        return None
    return entry_count(pattern)


def _picture(pattern: Pattern) -> Picture | None:
    if not pattern.shape or 0 in pattern.shape:
        return None
    raster = sampled_raster(pattern, CELLS)
    height, width = raster.counts.shape
    return Picture(raster.png(), width, height, _caption(pattern, raster.room, raster.sampled))


def _caption(pattern: Pattern, room: float, sampled: bool) -> str:
    order = len(pattern.shape)
    rows, columns = plane(pattern.shape)
    axes = f"{name_of(order - 2)} downwards, {name_of(order - 1)} to the right" if order > 1 else "i to the right"
    over = f", over all {', '.join(map(name_of, range(order - 2)))}" if order > 2 else ""
    scale = f"; a dot covers about {room:,.0f} elements, and darker dots hold more entries" if room > 1 else ""
    return f"{rows:,} x {columns:,}: {axes}{over}{scale}{', from a sample of the entries' if sampled else ''}"
