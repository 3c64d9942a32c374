"""The matrices and tensors that are measured: real ones where there are some, else a few with the same kinds of rows.

``--data FOLDER``, or ``NUMSCORCH_BENCH_DATA``, names a folder with subfolders ``matrices`` (.mtx), ``dlmc`` (.smtx), ``graphs``
(.npz) and ``tensors`` (.tns), each file plain or gzipped; matrices are those in the folders that ``NUMSCORCH_BENCH_SETS`` lists, by
default ``matrices,dlmc,graphs``. A folder without any of these is read as it is, with all folders in it: what was downloaded from
SuiteSparse, DLMC or FROSTT. Files that hold no such tensor are told in ``unreadable``. Which of the matrices a kernel is measured on
says ``selection.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import numscorch as ns
from numscorch.measuring.peers import in_torch

from . import generated
from .compat import Pattern, suffix_of

FOLDER, SETS = "NUMSCORCH_BENCH_DATA", "NUMSCORCH_BENCH_SETS"
QUICK = "NUMSCORCH_BENCH_QUICK"  # set by --quick, before the modules of benchmarks are imported
FOLDERS = ("matrices", "dlmc", "graphs")
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
        return in_torch(self.tensor, dtype)

    @property
    def arrays(self) -> tuple[torch.Tensor, ...]:
        """Where rows start, and the column of each value."""
        return self.tensor.pattern.arrays[1]

    @property
    def density(self) -> float:
        """The share of the entries that is stored."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

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
    return tuple(_matrices() if os.environ.get(FOLDER) else generated.MATRICES)


@cache
def tensor_names() -> tuple[str, ...]:
    """The names of the tensors of order 3 and more, in order."""
    return tuple(_tensors() if os.environ.get(FOLDER) else generated.TENSORS)


@cache
def matrix(name: str) -> Matrix:
    """A matrix by its name, a generated one too; read or made once in a process."""
    stored = _matrices()[name] if name in _matrices() else generated.MATRICES[name]()
    return Matrix(name, _with_random_values(stored.to(ns.CSR)))


@cache
def tensor(name: str) -> Case:
    """A tensor by its name, in CSF."""
    stored = _tensors()[name] if name in _tensors() else generated.TENSORS[name]()
    return Case(name, _with_random_values(stored).to(ns.CSF(stored.ndim)))


def unreadable() -> dict[str, str]:
    """Files that hold no matrix or tensor to measure on, and why."""
    return {name: why for sources in (_matrix_files(), _tensor_files()) for name, why in _read(sources)[1].items()}


def _with_random_values(tensor: ns.SparseTensor) -> ns.SparseTensor:
    return tensor.with_values(dense(tensor.nnz, seed=0))


def _matrices() -> Mapping[str, ns.SparseTensor]:
    """Those that files hold."""
    return _read(_matrix_files())[0]


def _tensors() -> Mapping[str, ns.SparseTensor]:
    return _read(_tensor_files())[0]


@cache
def _read(files: tuple[Path, ...]) -> tuple[dict[str, ns.SparseTensor], dict[str, str]]:
    """What the files hold, by names that differ, and why others can't be measured."""
    read: dict[str, ns.SparseTensor] = {}
    refused: dict[str, str] = {}
    for file in files:
        name = _short(file) if _short(file) not in read else f"{file.parent.name}/{_short(file)}"
        try:
            read[name] = _fitting(ns.load(file), is_matrix=suffix_of(file) not in TNS)
        except (ns.NumscorchError, OSError, ValueError, EOFError) as error:
            refused[file.name] = " ".join(str(error).split())
    return read, refused


def _fitting(stored: Any, is_matrix: bool) -> ns.SparseTensor:
    """What a file holds, if that can be measured.

    Raises:
        ValueError: it is no sparse tensor, or one of another order than such files have.
    """
    if not isinstance(stored, ns.SparseTensor):
        raise ValueError(f"it holds a {type(stored).__name__}, no sparse tensor")
    if is_matrix != (stored.ndim == 2):
        raise ValueError(
            f"it holds a tensor of order {stored.ndim}: matrices are .mtx, .smtx and .npz files, and .tns files have order 3 and more"
        )
    return stored


@cache
def _matrix_files() -> tuple[Path, ...]:
    chosen = [part.strip() for part in os.environ.get(SETS, ",".join(FOLDERS)).split(",")]
    return tuple(file for file in _files(chosen) if suffix_of(file) not in (None, *TNS))


@cache
def _tensor_files() -> tuple[Path, ...]:
    return tuple(file for file in _files(["tensors"]) if suffix_of(file) in TNS)


def _files(folders: Sequence[str]) -> list[Path]:
    """The files of the subfolders; of a folder that has none of ours, all of it.

    Raises:
        FileNotFoundError: there is no such folder, or nothing in it that can be read.
    """
    if not os.environ.get(FOLDER):
        return []
    root = Path(os.environ[FOLDER])
    if not any((root / folder).is_dir() for folder in (*FOLDERS, "tensors")):
        folders = ["**"]
    if not any(suffix_of(file) for file in root.glob("**/*")):
        raise FileNotFoundError(f"{root} holds no file to read: --data takes a folder of .mtx, .smtx, .tns or .npz files, .gz too")
    return [file for folder in folders for file in sorted(root.glob(f"{folder}/*")) if file.is_file()]


def _short(file: Path) -> str:
    return file.name[: -len(suffix_of(file) or "")]
