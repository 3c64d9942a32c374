"""Rasters: entry counts per cell of a grid over a matrix, exact or estimated from a sample, and their rendering as PNG."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from math import prod

import numpy as np

from ..tensors.pattern import Pattern
from .positions import table_of

SAMPLE = 1 << 15  # upper bound of the entries that a picture samples
CHUNK = 1 << 18  # positions looked up at once (a few MB)
BLUE = (47, 111, 222)  # RGB; legible on white and on black


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
    longest = max(*sizes, 1)
    scaled = [max(round(size * min(cells / longest, 1.0)), min(size, cells // 8), 1) for size in sizes]
    return np.zeros(scaled)


def _count(grid: np.ndarray, table: np.ndarray, shape: tuple[int, ...]) -> None:
    """Add entries to their cells."""
    drawn = table[-2:] if len(table) > 1 else [np.zeros(table.shape[1], dtype=np.int64), *table[-1:]]
    if len(table) == 0:
        drawn = [np.zeros(table.shape[1], dtype=np.int64)] * 2
    rows, columns = (_cell(coords, size, cells) for coords, size, cells in zip(drawn, plane(shape), grid.shape, strict=True))
    grid += np.bincount(rows * grid.shape[1] + columns, minlength=grid.size).reshape(grid.shape)


def _cell(coordinates: np.ndarray, size: int, cells: int) -> np.ndarray:
    if size <= cells:
        return coordinates
    return np.minimum((coordinates * (cells / size)).astype(np.int64), cells - 1)
