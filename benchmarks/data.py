"""The matrices that are multiplied: real ones where there are some, else a few with the same kinds of rows.

``NUMSCORCH_BENCH_DATA`` names a folder with subfolders ``matrices`` (.mtx), ``dlmc`` (.smtx), ``graphs``
(.npz) and ``tensors`` (.tns), each file plain or gzipped. The kernels here take matrices: those in the
folders that ``NUMSCORCH_BENCH_SETS`` lists, by default ``matrices,dlmc``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch

import numscorch as ns
from numscorch.io import suffix_of

FOLDER, SETS = "NUMSCORCH_BENCH_DATA", "NUMSCORCH_BENCH_SETS"


@dataclass(frozen=True)
class Matrix:
    """A float32 CSR matrix with int32 indices; its values are random, whatever the file holds."""

    name: str
    tensor: ns.SparseTensor

    @property
    def nnz(self) -> int:
        """Number of stored values."""
        return self.tensor.nnz

    @cached_property
    def in_torch(self) -> torch.Tensor:
        """The same arrays as torch's CSR tensor."""
        return self.in_torch_as(torch.int32)

    def in_torch_as(self, dtype: torch.dtype) -> torch.Tensor:
        """Torch's CSR tensor with indices of this dtype."""
        pos, crd = (array.to(dtype) for array in self.tensor.pattern.arrays[1])
        return torch.sparse_csr_tensor(pos, crd, self.tensor.values, self.tensor.shape, check_invariants=False)

    def as_mask(self) -> Matrix:
        """The pattern with values 1."""
        return Matrix(self.name, self.tensor.with_values(torch.ones(self.nnz)))


@cache
def names() -> tuple[str, ...]:
    """The names of the matrices, in order."""
    return tuple(_sources())


@cache
def matrix(name: str) -> Matrix:
    """A matrix by its name; parsed once in a process."""
    tensor = _sources()[name]().to(ns.CSR)
    values = torch.randn(tensor.nnz, generator=torch.Generator().manual_seed(0))
    return Matrix(name, tensor.with_values(values))


@cache
def _sources() -> dict[str, Callable[[], ns.SparseTensor]]:
    """What reads or makes each matrix."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return GENERATED
    files = [file for part in os.environ.get(SETS, "matrices,dlmc").split(",") for file in sorted((Path(folder) / part.strip()).glob("*"))]
    files = [file for file in files if suffix_of(file) not in (None, ".tns", ".tns.gz")]
    if not files:
        raise FileNotFoundError(f"{FOLDER}={folder} holds no .mtx, .smtx or .npz file in the folders of {SETS}")
    return {_short(file): (lambda file=file: ns.load(file)) for file in files}  # type: ignore[misc]


def _short(file: Path) -> str:
    return file.name[: -len(suffix_of(file) or "")]


# -- without data -------------------------------------------------------------------------------------


def uniform(rows: int, columns: int, in_row: int) -> ns.SparseTensor:
    """About the same number of nonzeros in every row, anywhere: a pruned weight."""
    return _random_rows(np.random.default_rng(0), np.full(rows, in_row), columns)


def power_law(size: int, nnz: int) -> ns.SparseTensor:
    """A few rows hold much of the matrix, most rows little: a social graph."""
    generator = np.random.default_rng(1)
    weights = 1.0 / (1.0 + generator.permutation(size)) ** 0.8
    return _random_rows(generator, generator.poisson(weights / weights.sum() * nnz), size)


def banded(size: int, half_width: int) -> ns.SparseTensor:
    """Nonzeros near the diagonal: a mesh."""
    rows = np.repeat(np.arange(size), 2 * half_width + 1)
    columns = rows + np.tile(np.arange(-half_width, half_width + 1), size)
    inside = (columns >= 0) & (columns < size)
    return _csr(rows[inside], columns[inside], (size, size))


def _random_rows(generator: np.random.Generator, in_row: np.ndarray, columns: int) -> ns.SparseTensor:
    rows = np.repeat(np.arange(len(in_row)), in_row)
    return _csr(rows, generator.integers(0, columns, len(rows)), (len(in_row), columns))


def _csr(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> ns.SparseTensor:
    return ns.from_coo(np.stack([rows, columns]), np.ones(len(rows), np.float32), shape, ns.CSR, coalesce=True)


GENERATED: dict[str, Callable[[], ns.SparseTensor]] = {
    "uniform-small": lambda: uniform(200, 200, 5),
    "uniform-weight": lambda: uniform(512, 2048, 205),
    "uniform-large": lambda: uniform(10_000, 10_000, 20),
    "power-law": lambda: power_law(20_000, 300_000),
    "banded": lambda: banded(20_000, 5),
}
