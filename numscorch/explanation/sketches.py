"""Sketches: the data that pages draw of a tensor. A sketch takes a few KB and doesn't keep the tensor alive.

The picture of a pattern is a raster: entry counts per cell of a grid over a matrix, exact or estimated from a sample. ``spy`` plots it.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from dataclasses import dataclass, field
from itertools import repeat
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import SizeError, UnsupportedError
from ..frontend.requests import Operand
from ..ir.format import Format
from ..ir.parts import name_of
from ..tensors.packing import entry_count, has_gaps
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .positions import paths_to, table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST = 8  # entries shown of an array
LEAVES = 5  # values shown in the coordinate tree
CELLS = 96  # cells per side of the picture
COUNTED = 1 << 20  # positions up to which the entries of a padded format are counted
SAMPLE = 1 << 15  # upper bound of the entries that a picture samples
CHUNK = 1 << 18  # positions looked up at once (a few MB)
BLUE = (47, 111, 222)  # RGB; legible on white and on black
FEWEST, MOST = 64, 1024  # cells along the longer side of a matplotlib picture


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

    @property
    def base64(self) -> str:
        """The PNG as text, for a page."""
        return b64encode(self.png).decode()


@dataclass(frozen=True, slots=True)
class Sketch:
    """A tensor's format with the arrays of its levels, its first values, and a picture of its pattern."""

    format: Format
    shape: tuple[int, ...]
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
    values = Array("vals", str(A.dtype).removeprefix("torch."), len(A._values), _numbers(A._values))
    size = A._values.nbytes + sum(array.nbytes for level in pattern.arrays for array in level)
    return Sketch(pattern.format, pattern.shape, levels_of(pattern), values, _leaves(A), _picture(pattern), _entries(pattern), size)


def sketch_of(operand: Any) -> Sketch | None:
    """The sketch of an operand of explain; None for a dense tensor or a format."""
    return sketch(operand) if isinstance(operand, SparseTensor) else None


def levels_of(tensor: Pattern | Operand) -> tuple[LevelSketch, ...]:
    """The levels of a pattern, or of an operand's description, whose arrays are known by name only."""
    fmt, counts = tensor.format, tensor.counts or repeat(None)
    levels = zip(fmt.parts, fmt.levels, fmt.sizes(tensor.shape), counts, strict=False)
    return tuple(
        LevelSketch(
            str(part),
            str(level),
            size,
            count,
            tuple(map(_array, level.arrays, tensor.level_arrays(at) if isinstance(tensor, Pattern) else repeat(None))),
        )
        for at, (part, level, size, count) in enumerate(levels)
    )


def _array(name: str, array: np.ndarray | None) -> Array:
    if array is None:
        return Array(name, "", 0, ())
    return Array(name, str(array.dtype), len(array), tuple(map(str, array[:FIRST].tolist())))


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
    steps = np.stack([paths.positions, paths.coordinates], axis=2).swapaxes(0, 1)[:LEAVES].tolist()  # by leaf and level
    leaves = zip(paths.leaves[:LEAVES].tolist(), steps, strict=True)
    return tuple(Leaf(tuple(map(tuple, path)), values[leaf] if leaf < len(values) else "?") for leaf, path in leaves)


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


@dataclass(frozen=True, slots=True)
class Raster:
    """Entry counts per cell of a grid; estimates if ``sampled``."""

    counts: np.ndarray
    shape: tuple[int, int]
    sampled: bool = False

    @property
    def room(self) -> float:
        """The average number of matrix elements per cell."""
        return prod(map(float, self.shape)) / max(self.counts.size, 1)

    def shades(self) -> np.ndarray:
        """Each cell's shade on a logarithmic scale, from 0 (empty) to 1 (the fullest cell)."""
        most = float(self.counts.max(initial=0))
        if most == 0 or self.room <= 1:
            return (self.counts > 0).astype(np.float64)
        return np.where(self.counts > 0, 0.3 + 0.7 * np.log1p(self.counts) / np.log1p(most), 0.0)

    def png(self) -> bytes:
        """The raster as a PNG in one colour of varying opacity, which suits any background."""
        height, width = self.counts.shape
        pixels = np.zeros((height, width + 1), dtype=np.uint8)  # each row starts with its filter type: 0, none
        pixels[:, 1:] = np.rint(self.shades() * 255)
        header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
        parts = (b"IHDR", header), (b"PLTE", bytes(BLUE) * 256), (b"tRNS", bytes(range(256))), (b"IDAT", zlib.compress(pixels.tobytes(), 6))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def plane(shape: tuple[int, ...]) -> tuple[int, int]:
    """The numbers of rows and columns drawn: the last two dimensions. A vector is one row.

    >>> plane((7, 3, 4)), plane((5,)), plane(())
    ((3, 4), (1, 5), (1, 1))
    """
    rows, columns = (1, 1, *shape)[-2:]
    return rows, columns


def exact_raster(pattern: Pattern, cells: int) -> Raster:
    """Count every entry, in a grid of at most ``cells`` cells per side.

    >>> import numscorch as ns, torch
    >>> exact_raster(ns.from_torch(torch.eye(4), ns.CSR).pattern, 2).counts.tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    grid = _grid(plane(pattern.shape), cells)
    for start in range(0, pattern.nnz, CHUNK):
        leaves = np.arange(start, min(start + CHUNK, pattern.nnz))
        table = table_of(pattern, leaves)
        _count(grid, table, pattern.shape)
        if table.shape[1] > len(leaves):  # the table holds all entries
            break
    return Raster(grid, plane(pattern.shape))


def sampled_raster(pattern: Pattern, cells: int, most: int = SAMPLE) -> Raster:
    """Estimate the counts from a stratified sample of at most ``most`` entries; the draws are seeded."""
    if pattern.nnz <= most:
        return exact_raster(pattern, cells)
    grid = _grid(plane(pattern.shape), cells)
    edges = np.linspace(0, pattern.nnz, most + 1)
    leaves = (edges[:-1] + np.random.default_rng(0).random(most) * np.diff(edges)).astype(np.int64)
    table = table_of(pattern, np.minimum(leaves, pattern.nnz - 1))
    is_sample = table.shape[1] <= most
    _count(grid, table, pattern.shape)
    return Raster(grid * (pattern.nnz / most) if is_sample else grid, plane(pattern.shape), is_sample)


def _grid(sizes: tuple[int, int], cells: int) -> np.ndarray:
    """An empty grid with the matrix's aspect ratio, limited to 1 : 8."""
    scale = min(cells / max(*sizes, 1), 1.0)
    return np.zeros([max(round(size * scale), min(size, cells // 8), 1) for size in sizes])


def _count(grid: np.ndarray, table: np.ndarray, shape: tuple[int, ...]) -> None:
    rows, columns = [*np.zeros((2, table.shape[1]), dtype=np.int64), *table][-2:]
    grid += np.histogram2d(rows, columns, bins=grid.shape, range=[(0, max(size, 1)) for size in plane(shape)])[0]


def spy(pattern: Pattern, ax: Axes | None = None, **kwargs: Any) -> Axes:
    """Plot where a pattern stores entries; see :meth:`SparseTensor.spy`.

    Raises:
        SizeError: the tensor has no dimensions.
        UnsupportedError: matplotlib isn't installed.
    """
    if not pattern.shape:
        raise SizeError("spy draws where a tensor stores entries, and a tensor without dimensions has only one element: print it")
    try:
        from matplotlib import pyplot
        from matplotlib.colors import LogNorm
    except ImportError as error:
        raise UnsupportedError(
            "spy draws with matplotlib, which isn't installed: pip install matplotlib, or numscorch[examples]"
        ) from error
    ax = pyplot.gca() if ax is None else ax
    raster = exact_raster(pattern, _cells(ax))
    counts = raster.counts[: raster.shape[0], : raster.shape[1]]  # a side of size 0 has no cells
    depth = prod(max(size, 1) for size in pattern.shape[:-2])  # elements projected onto each element of the drawn plane
    shares = np.ma.masked_equal(counts / max(raster.room * depth, 1.0), 0)
    rows, columns = (max(size, 1) for size in raster.shape)
    aspect = "equal" if max(rows, columns) <= 8 * min(rows, columns) else "auto"
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    drawn: dict[str, Any] = {"cmap": "Blues", "interpolation": "nearest", "origin": "upper", "aspect": aspect, "extent": extent}
    if not kwargs.keys() & {"norm", "vmin", "vmax"} and shares.count():
        drawn["norm"] = LogNorm(float(shares.min()) / 3, float(shares.max()))  # a third: the emptiest cell stays visible
    ax.imshow(shares, **(drawn | kwargs))
    order = len(pattern.shape)
    ax.xaxis.tick_top()  # the columns are at the top, as with matplotlib's spy
    ax.xaxis.set_label_position("top")
    ax.set(xlabel=name_of(order - 1), ylabel=name_of(order - 2) if order > 1 else ax.get_ylabel())
    if order < 2 or not raster.shape[0]:
        ax.set_yticks([])
    if not raster.shape[1]:
        ax.set_xticks([])
    return ax


def _cells(ax: Axes) -> int:
    """The number of cells along the longer side: fewer than the axes have pixels, so that none is skipped."""
    box = ax.get_window_extent()
    return int(min(max(0.7 * min(box.width, box.height), FEWEST), MOST))
