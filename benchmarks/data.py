"""The matrices and tensors that are measured: real ones where there are some, else a few with the same kinds of rows.

``NUMSCORCH_BENCH_DATA`` names a folder with subfolders ``matrices`` (.mtx), ``dlmc`` (.smtx), ``graphs``
(.npz) and ``tensors`` (.tns), each file plain or gzipped. Matrices are those in the folders that
``NUMSCORCH_BENCH_SETS`` lists, by default ``matrices,dlmc,graphs``. Which of them a kernel is measured on
says ``selection.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import torch

import numscorch as ns
from numscorch.io import suffix_of
from numscorch.pattern import Pattern

from . import generated

FOLDER, SETS = "NUMSCORCH_BENCH_DATA", "NUMSCORCH_BENCH_SETS"
MANY = 512  # more than a benchmark has turns
TNS = (".tns", ".tns.gz")


@dataclass(frozen=True)
class Case:
    """A tensor and the name that its records have."""

    name: str
    tensor: ns.SparseTensor

    @property
    def nnz(self) -> int:
        """Number of stored values."""
        return self.tensor.nnz

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of every dimension."""
        return tuple(self.tensor.shape)


@dataclass(frozen=True)
class Matrix(Case):
    """A float32 CSR matrix with int32 indices; its values are random, whatever the file holds."""

    @cached_property
    def in_torch(self) -> torch.Tensor:
        """The same arrays as torch's CSR tensor."""
        return self.tensor.to_torch()

    def in_torch_as(self, dtype: torch.dtype) -> torch.Tensor:
        """Torch's CSR tensor with indices of this dtype."""
        pos, crd = (array.to(dtype) for array in self.arrays)
        return torch.sparse_csr_tensor(pos, crd, self.tensor.values, self.tensor.shape, check_invariants=False)

    @property
    def arrays(self) -> tuple[torch.Tensor, ...]:
        """Where rows start, and the column of each value."""
        return self.tensor.pattern.arrays[1]

    @property
    def is_square(self) -> bool:
        """Whether it can be multiplied by itself."""
        return self.shape[0] == self.shape[1]

    def as_mask(self) -> Matrix:
        """The pattern with values 1."""
        return Matrix(self.name, self.tensor.with_values(torch.ones(self.nnz)))

    def rolled(self, by: int) -> ns.SparseTensor:
        """The matrix with its rows moved down, those at the end to the top: the same kind of matrix, elsewhere."""
        pos, crd = (array.numpy() for array in self.arrays)
        by = min(by, self.shape[0])
        moved = np.concatenate([[0], np.cumsum(np.roll(np.diff(pos), by))])
        places = np.roll(crd, self.nnz - int(pos[-1 - by]))
        return ns.from_csr(moved.astype(pos.dtype), places, self.tensor.values, self.shape)

    def padded(self, rows: int, columns: int) -> Matrix:
        """The matrix with empty rows and columns added, so that blocks of this size divide it."""
        pos, crd = self.arrays
        below, beside = -self.shape[0] % rows, -self.shape[1] % columns
        shape = self.shape[0] + below, self.shape[1] + beside
        return Matrix(self.name, ns.from_csr(torch.cat([pos, pos[-1:].expand(below)]), crd, self.tensor.values, shape))

    def products(self, transposed: bool = False) -> int:
        """How many multiplications A A takes, or A A^T."""
        pos, crd = (array.numpy() for array in self.arrays)
        in_columns = np.bincount(crd, minlength=self.shape[1])
        return int(in_columns @ (in_columns if transposed else np.diff(pos)))


def each_fresh(A: ns.SparseTensor) -> Iterator[ns.SparseTensor]:
    """The same tensor again and again, each time with a pattern that remembers nothing, neither other formats nor costs.

    They are made many at a time, as peers' tensors are made before they are measured.
    """
    while True:
        made = [ns.SparseTensor(Pattern(A.format, A.pattern.shape, A.pattern.arrays), A.values) for _ in range(MANY)]
        while made:
            yield made.pop()  # which nothing holds then: what it remembers is freed with it


def dense(*shape: int, seed: int = 1) -> torch.Tensor:
    """A dense operand of random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@cache
def names() -> tuple[str, ...]:
    """The names of the matrices, in order."""
    return tuple(_sources())


@cache
def tensor_names() -> tuple[str, ...]:
    """The names of the tensors of order 3 and more, in order."""
    return tuple(_tensor_sources())


@cache
def matrix(name: str) -> Matrix:
    """A matrix by its name, a generated one too; parsed once in a process."""
    tensor = (generated.MATRICES | _sources())[name]().to(ns.CSR)
    return Matrix(name, _with_random_values(tensor))


@cache
def tensor(name: str) -> Case:
    """A tensor by its name, in CSF."""
    stored = _tensor_sources()[name]()
    return Case(name, _with_random_values(stored).to(ns.CSF(stored.ndim)))


def _with_random_values(tensor: ns.SparseTensor) -> ns.SparseTensor:
    return tensor.with_values(dense(tensor.nnz, seed=0))


@cache
def _sources() -> dict[str, Callable[[], ns.SparseTensor]]:
    """What reads or makes each matrix."""
    if not os.environ.get(FOLDER):
        return generated.MATRICES
    folders = [part.strip() for part in os.environ.get(SETS, "matrices,dlmc,graphs").split(",")]
    return _readers([file for file in _files(folders) if suffix_of(file) not in (None, *TNS)], folders)


@cache
def _tensor_sources() -> dict[str, Callable[[], ns.SparseTensor]]:
    """What reads or makes each tensor."""
    if not os.environ.get(FOLDER):
        return generated.TENSORS
    return _readers([file for file in _files(["tensors"]) if suffix_of(file) in TNS], ["tensors"])


def _files(folders: Sequence[str]) -> list[Path]:
    root = Path(os.environ[FOLDER])
    return [file for folder in folders for file in sorted((root / folder).glob("*"))]


def _readers(files: Sequence[Path], folders: Sequence[str]) -> dict[str, Callable[[], ns.SparseTensor]]:
    if not files:
        raise FileNotFoundError(f"{FOLDER}={os.environ[FOLDER]} holds no file to read in {', '.join(folders)}")
    return {_short(file): partial(ns.load, file) for file in files}


def _short(file: Path) -> str:
    return file.name[: -len(suffix_of(file) or "")]
