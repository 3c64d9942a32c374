"""Generated matrices and tensors with typical nonzero distributions, and block-pruned weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

import numscorch as ns


def uniform(rows: int, columns: int, in_row: int) -> ns.SparseTensor:
    """A similar number of nonzeros in every row at random columns, such as in a pruned weight."""
    return _random_rows(np.random.default_rng(0), np.full(rows, in_row), columns)


def power_law(size: int, nnz: int) -> ns.SparseTensor:
    """Many nonzeros in a few rows and few in the others, such as in a social graph."""
    generator = np.random.default_rng(1)
    weights = 1.0 / (1.0 + generator.permutation(size)) ** 0.8
    return _random_rows(generator, generator.poisson(weights / weights.sum() * nnz), size)


def full_row(rows: int, columns: int, in_row: int) -> ns.SparseTensor:
    """A full row in the middle, and a few nonzeros in each other row."""
    in_rows = np.full(rows, in_row)
    in_rows[rows // 2] = 0
    tail = _random_rows(np.random.default_rng(2), in_rows, columns).indices().numpy()
    whole = np.stack([np.full(columns, rows // 2), np.arange(columns)])
    coordinates = np.concatenate([tail, whole], axis=1)
    return _csr(coordinates[0], coordinates[1], (rows, columns))


def banded(size: int, half_width: int) -> ns.SparseTensor:
    """Nonzeros near the diagonal, such as in a mesh. Built directly in CSR, which limits the memory for large matrices."""
    rows = np.arange(size, dtype=np.int64)
    first, last = np.maximum(rows - half_width, 0), np.minimum(rows + half_width, size - 1)
    pos = np.concatenate([[0], np.cumsum(last - first + 1)])
    crd = np.arange(pos[-1]) + np.repeat(first - pos[:-1], last - first + 1)
    return ns.from_csr(pos.astype(np.int32), crd.astype(np.int32), torch.ones(int(pos[-1])), (size, size))


def blocks(rows: int, columns: int, size: int, in_row: int) -> ns.SparseTensor:
    """Square dense blocks, ``in_row`` in each block row, such as in a mesh with several unknowns per node."""
    generator = np.random.default_rng(6)
    block_rows = np.repeat(np.arange(rows // size), in_row)
    corners = np.stack([block_rows, generator.integers(0, columns // size, len(block_rows))])
    offsets = np.indices((size, size)).reshape(2, 1, -1)
    coordinates = (corners[:, :, None] * size + offsets).reshape(2, -1)
    return _csr(coordinates[0], coordinates[1], (rows, columns))


def pruned(rows: int, columns: int, density: float) -> ns.SparseTensor:
    """A weight pruned by magnitude, as in DLMC. Outputs differ in scale, so that the nonzeros per row vary."""
    generator = np.random.default_rng(7)
    weight = abs(generator.standard_normal((rows, columns))) * generator.lognormal(0.0, 0.4, (rows, 1))
    coordinates = np.argwhere(weight >= np.quantile(weight, 1 - density)).T
    return _csr(coordinates[0], coordinates[1], (rows, columns))


def hypersparse(size: int, nnz: int) -> ns.SparseTensor:
    """Fewer nonzeros than rows, such as in a part of a large graph."""
    coordinates = np.random.default_rng(8).integers(0, size, (2, nnz))
    return _csr(coordinates[0], coordinates[1], (size, size))


def mostly_empty(rows: int, in_row: int) -> ns.SparseTensor:
    """A square matrix with a similar number of nonzeros in one of ten rows, and none in the others, such as in a part of a graph."""
    in_rows = np.zeros(rows, np.int64)
    in_rows[np.random.default_rng(9).choice(rows, rows // 10, replace=False)] = in_row
    return _random_rows(np.random.default_rng(10), in_rows, rows)


def blocks_of_16(rows: int, columns: int, zeros: float) -> torch.Tensor:
    """A dense weight with a share ``zeros`` of its BCSR(16, 1) blocks set to zero."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(-(-rows // 16), columns, generator=generator) >= zeros
    return torch.randn(rows, columns, generator=generator) * mask.repeat_interleave(16, 0)[:rows]


def ratings(shape: Sequence[int], nnz: int) -> ns.SparseTensor:
    """A tensor with power-law distributed coordinates in each mode, such as ratings by user, item and time."""
    generator = np.random.default_rng(4)
    weights = [1 / (1.0 + generator.permutation(size)) for size in shape]
    indices = np.stack([generator.choice(len(w), nnz, p=w / w.sum()) for w in weights])
    places, values = _entries(indices, shape)
    return ns.from_coo(places.astype(np.int32), values, shape)


def _random_rows(generator: np.random.Generator, in_row: np.ndarray, columns: int) -> ns.SparseTensor:
    rows = np.repeat(np.arange(len(in_row)), in_row)
    return _csr(rows, generator.integers(0, columns, len(rows)), (len(in_row), columns))


def _csr(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> ns.SparseTensor:
    return ns.from_coo(*_entries(np.stack([rows, columns]), shape), shape, ns.CSR)


def _entries(indices: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted unique coordinates and their counts, since older commits require coordinates in this form."""
    flat, counts = np.unique(np.ravel_multi_index(tuple(indices), tuple(shape)), return_counts=True)
    return np.stack(np.unravel_index(flat, tuple(shape))), counts.astype(np.float32)


MATRICES: dict[str, Callable[[], ns.SparseTensor]] = {
    "uniform-small": lambda: uniform(200, 200, 5),
    "uniform-weight": lambda: uniform(512, 2048, 205),
    "uniform-large": lambda: uniform(10_000, 10_000, 20),
    "power-law": lambda: power_law(20_000, 300_000),
    "banded": lambda: banded(20_000, 5),
    "blocks": lambda: blocks(8_000, 8_000, 8, 4),
    "pruned": lambda: pruned(512, 2048, 0.1),
    "hypersparse": lambda: hypersparse(100_000, 10_000),
    "full-row": lambda: full_row(20_000, 20_000, 4),
}
TENSORS: dict[str, Callable[[], ns.SparseTensor]] = {
    "ratings-3": lambda: ratings((3000, 2000, 400), 200_000),
    "ratings-4": lambda: ratings((1000, 800, 400, 50), 50_000),
}
UNIFORM = tuple(name for name in MATRICES if name.startswith("uniform"))
