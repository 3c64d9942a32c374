"""Matrices and tensors of the benchmarks: from files if a data folder is given, else generated ones with similar rows.

``--data FOLDER`` or ``NUMSCORCH_BENCH_DATA`` names a folder with subfolders ``matrices`` (.mtx), ``dlmc`` (.smtx), ``graphs`` (.npz)
and ``tensors`` (.tns), each file plain or gzipped. ``NUMSCORCH_BENCH_SETS`` lists the subfolders to read matrices from, by default
``matrices,dlmc,graphs``. A folder without these subfolders is read recursively, such as a download from SuiteSparse, DLMC or FROSTT.
``unreadable`` lists files without a suitable tensor. ``selection.py`` selects the matrices for each kernel.
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
QUICK = "NUMSCORCH_BENCH_QUICK"  # set by --quick before the benchmark modules are imported
FOLDERS = ("matrices", "dlmc", "graphs")
MANY = 512  # tensors created at once; more than a benchmark has turns
TNS = (".tns", ".tns.gz")


@dataclass(frozen=True)
class Case:
    """A tensor and its name in the records."""

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
    """A float32 CSR matrix with int32 indices and random values; values of the file are ignored."""

    @cached_property
    def in_torch(self) -> torch.Tensor:
        """A torch CSR tensor that shares the arrays."""
        return self.tensor.to_torch()

    def in_torch_as(self, dtype: torch.dtype) -> torch.Tensor:
        """A torch CSR tensor with indices of this dtype."""
        return in_torch(self.tensor, dtype)

    @property
    def arrays(self) -> tuple[torch.Tensor, ...]:
        """Row pointers and column indices."""
        return self.tensor.pattern.arrays[1]

    @property
    def density(self) -> float:
        """Share of stored entries."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @property
    def is_square(self) -> bool:
        """Whether the numbers of rows and columns are equal."""
        return self.shape[0] == self.shape[1]

    def as_mask(self) -> Matrix:
        """The same pattern with values of 1."""
        return Matrix(self.name, self.tensor.with_values(torch.ones(self.nnz)))

    def rolled(self, by: int) -> ns.SparseTensor:
        """The matrix with its rows rolled down cyclically: the same row lengths at other positions."""
        pos, crd = (array.numpy() for array in self.arrays)
        by = min(by, self.shape[0])
        starts = np.concatenate([[0], np.cumsum(np.roll(np.diff(pos), by))])
        places = np.roll(crd, self.nnz - int(pos[-1 - by]))
        return ns.from_csr(starts.astype(pos.dtype), places, self.tensor.values, self.shape)

    def padded(self, rows: int, columns: int) -> Matrix:
        """The matrix padded with empty rows and columns to a multiple of the block size."""
        pos, crd = self.arrays
        below, beside = -self.shape[0] % rows, -self.shape[1] % columns
        shape = self.shape[0] + below, self.shape[1] + beside
        return Matrix(self.name, ns.from_csr(torch.cat([pos, pos[-1:].expand(below)]), crd, self.tensor.values, shape))

    def products(self, transposed: bool = False) -> int:
        """Number of multiplications in the product A A or A A^T."""
        pos, crd = (array.numpy() for array in self.arrays)
        in_columns = np.bincount(crd, minlength=self.shape[1])
        return int(in_columns @ (in_columns if transposed else np.diff(pos)))


def each_fresh(A: ns.SparseTensor) -> Iterator[ns.SparseTensor]:
    """Copies of a tensor with new patterns, which have no cached conversions or costs.

    Many copies are created at once, so that their creation is not timed, as for the tensors of peers.
    """
    while True:
        copies = [ns.SparseTensor(Pattern(A.format, A.pattern.shape, A.pattern.arrays), A.values) for _ in range(MANY)]
        while copies:
            yield copies.pop()  # no reference is kept, so the copy is freed together with its caches


def dense(*shape: int, seed: int = 1) -> torch.Tensor:
    """A dense operand with normally distributed random values."""
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
    """The matrix with this name, from a file or generated; cached per process."""
    source = _matrices()[name] if name in _matrices() else generated.MATRICES[name]()
    return Matrix(name, _with_random_values(source.to(ns.CSR)))


@cache
def tensor(name: str) -> Case:
    """The tensor with this name, from a file or generated, in CSF."""
    source = _tensors()[name] if name in _tensors() else generated.TENSORS[name]()
    return Case(name, _with_random_values(source).to(ns.CSF(source.ndim)))


def unreadable() -> dict[str, str]:
    """Files without a suitable matrix or tensor, and the reasons."""
    return {name: why for sources in (_matrix_files(), _tensor_files()) for name, why in _read(sources)[1].items()}


def _with_random_values(tensor: ns.SparseTensor) -> ns.SparseTensor:
    return tensor.with_values(dense(tensor.nnz, seed=0))


def _matrices() -> Mapping[str, ns.SparseTensor]:
    """The matrices of the files, by name."""
    return _read(_matrix_files())[0]


def _tensors() -> Mapping[str, ns.SparseTensor]:
    return _read(_tensor_files())[0]


@cache
def _read(files: tuple[Path, ...]) -> tuple[dict[str, ns.SparseTensor], dict[str, str]]:
    """Tensors of the files by unique names, and the reason for each unsuitable file."""
    tensors: dict[str, ns.SparseTensor] = {}
    reasons: dict[str, str] = {}
    for file in files:
        name = _short(file) if _short(file) not in tensors else f"{file.parent.name}/{_short(file)}"
        try:
            tensors[name] = _fitting(ns.load(file, dtype=torch.float32), is_matrix=suffix_of(file) not in TNS)
        except (ns.NumscorchError, OSError, ValueError, EOFError) as error:
            reasons[file.name] = " ".join(str(error).split())
    return tensors, reasons


def _fitting(content: Any, is_matrix: bool) -> ns.SparseTensor:
    """Content of a file, if it is a suitable sparse tensor.

    Raises:
        ValueError: the content is not a sparse tensor, or its order does not match the file type.
    """
    if not isinstance(content, ns.SparseTensor):
        raise ValueError(f"it holds a {type(content).__name__}, no sparse tensor")
    if is_matrix != (content.ndim == 2):
        raise ValueError(
            f"it holds a tensor of order {content.ndim}: matrices are .mtx, .smtx and .npz files, and .tns files have order 3 and more"
        )
    return content


@cache
def _matrix_files() -> tuple[Path, ...]:
    folders = [part.strip() for part in os.environ.get(SETS, ",".join(FOLDERS)).split(",")]
    return tuple(file for file in _files(folders) if suffix_of(file) not in (None, *TNS))


@cache
def _tensor_files() -> tuple[Path, ...]:
    return tuple(file for file in _files(["tensors"]) if suffix_of(file) in TNS)


def _files(folders: Sequence[str]) -> list[Path]:
    """Files of these subfolders of the data folder; all its files if it has none of the known subfolders.

    Raises:
        FileNotFoundError: the data folder does not exist or has no readable file.
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
