"""Sketches: the data that pages draw of a tensor. A sketch takes a few KB and doesn't keep the tensor alive.

A tensor's levels and arrays as an HTML list, and its first values as a coordinate tree in SVG.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import torch

from ..frontend.operand import Operand
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


STEP, ROW, LEFT = 47, 46, 100  # pixels between leaves, between levels, and for the level names
RADIUS = 13  # of a node, in pixels
LONGEST = 15  # characters of a level's name beside the tree


def level_list(levels: Sequence[LevelSketch], values: Array | None = None, name: str = "") -> str:
    """An HTML list of the levels (extent, number of positions, arrays), outermost first, and of the values.

    If ``name`` is given, arrays get the names that they have in the kernel that reads the tensor by this name.

    >>> print(level_list((LevelSketch("i", "dense", 4, 4),)))
    <ol class="levels"><li><b>i: dense</b> <span>4 coordinates, 4 positions</span></li></ol>
    """
    items = []
    for at, level in enumerate(levels):
        counts = f"{_count(level.size, 'coordinate')}" + ("" if level.positions is None else f", {_count(level.positions, 'position')}")
        arrays = "".join(_array(f"{name}{at + 1}_{array.name}" if name else array.name, array) for array in level.arrays)
        items.append(f"<li><b>{escape(f'{level.part}: {level.name}')}</b> <span>{counts}</span>{arrays}</li>")
    if values is not None:
        array_name = f"{name}_{values.name}" if name else values.name
        items.append(f"<li><b>values</b>{_array(array_name, values)}</li>")
    return f'<ol class="levels">{"".join(items)}</ol>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _array(name: str, array: Array) -> str:
    if not array.dtype:
        return f'<div class="array"><code>{escape(name)}</code></div>'
    shown = escape(str(array)) if array.first or not array.length else "[...]"
    return f'<div class="array"><code>{escape(name)} {shown}</code> <span>{escape(array.dtype)}, {array.length:,}</span></div>'


def tree(drawn: Sketch) -> str:
    """The coordinate tree of the first stored values as an SVG picture, with one node per position.

    Source:
        Chou, Kjolstad, Amarasinghe, "Format Abstraction for Sparse Tensor Algebra Compilers", OOPSLA 2018, figure 4.
    """
    if not drawn.leaves:
        return ""
    depth, count = len(drawn.levels), len(drawn.leaves)
    width, height = LEFT + STEP * count + 10, ROW * (depth + 1) + 8
    places = _places(drawn.leaves, depth)
    parts = [_label(at, f"{level.part}: {level.name}") for at, level in enumerate(drawn.levels)] + [_label(depth, "values")]
    edges = dict.fromkeys((at, leaf.path[at][0], leaf.path[at + 1][0]) for leaf in drawn.leaves for at in range(depth - 1))
    parts += [_line(*places[at, upper], *places[at + 1, lower]) for at, upper, lower in edges]
    parts += [_line(*places[depth - 1, leaf.path[-1][0]], _x(at), _y(depth)) for at, leaf in enumerate(drawn.leaves)]
    nodes = {(at, position): coordinate for leaf in drawn.leaves for at, (position, coordinate) in enumerate(leaf.path)}
    parts += [_node(*places[key], str(coordinate)) for key, coordinate in nodes.items()]
    parts += [_value(_x(at), _y(depth), leaf.value) for at, leaf in enumerate(drawn.leaves)]
    caption = f"The first {count} stored values and their coordinates, level by level"
    return (
        f'<svg class="tree" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{caption}"><title>{caption}</title>{"".join(parts)}</svg>'
    )


def _places(leaves: Sequence[Leaf], depth: int) -> dict[tuple[int, int], tuple[float, float]]:
    """The x and y of each node, centred above the values below it."""
    below: dict[tuple[int, int], list[int]] = {}
    for place, leaf in enumerate(leaves):
        for at, (position, _) in enumerate(leaf.path):
            below.setdefault((at, position), []).append(place)
    return {key: (sum(map(_x, centres)) / len(centres), _y(key[0])) for key, centres in below.items()}


def _x(place: int) -> float:
    return LEFT + STEP * (place + 0.5)


def _y(level: int) -> float:
    return ROW * (level + 0.5) + 4


def _label(at: int, text: str) -> str:
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f'<text x="0" y="{_y(at) + 4:g}" class="name">{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:g}" y1="{y + RADIUS:g}" x2="{to_x:g}" y2="{to_y - RADIUS:g}"/>'


def _node(x: float, y: float, text: str) -> str:
    width = max(2 * RADIUS, 7.5 * len(text) + 10)
    box = f'<rect x="{x - width / 2:g}" y="{y - RADIUS:g}" width="{width:g}" height="{2 * RADIUS}" rx="{RADIUS}"/>'
    return f'{box}<text x="{x:g}" y="{y + 4:g}" class="node">{escape(text)}</text>'


def _value(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y + 4:g}" class="leaf">{escape(text if len(text) <= 6 else text[:5] + "…")}</text>'


def picture(drawn: Picture, name: str) -> str:
    """The picture of a pattern with its caption. Its sides are at least 24 pixels."""
    scale = max(1, 192 // max(drawn.width, drawn.height))
    width, height = (max(scale * size, 24) for size in (drawn.width, drawn.height))
    png = b64encode(drawn.png).decode()
    return (
        f'<figure><img src="data:image/png;base64,{png}" width="{width}" height="{height}" alt="{escape(f"Where {name} stores entries")}">'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>"
    )
