"""Matrices and tensors for tests of products in every format: generated with realistic structure, or real.

``NUMSCORCH_BENCH_DATA`` names the folder of real data, as for ``benchmarks``. Its subfolders ``matrices``, ``dlmc``,
``graphs`` and ``tensors`` contain .mtx, .smtx, .npz and .tns files, plain or gzipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch

import numscorch as ns
from numscorch.files.load import suffix_of

FOLDER = "NUMSCORCH_BENCH_DATA"

# Each line adds a format to every test.
MATRICES: dict[str, ns.Format] = {
    "CSR": ns.CSR,
    "CSC": ns.CSC,
    "COO": ns.COO(2),
    "DCSR": ns.DCSR,
    "DCSC": ns.DCSC,
}
RESULTS: dict[str, ns.Format | str] = {
    "CSR": ns.CSR,
    "CSC": ns.CSC,
    "COO": ns.COO(2),
    "DCSR": ns.DCSR,
    "dense": "dense",
}
TENSORS: dict[str, Callable[[int], ns.Format]] = {
    "COO": ns.COO,
    "CSF": ns.CSF,
    "one dense level": lambda order: ns.Format("d" + "s" * (order - 1)),
    "two dense levels": lambda order: ns.Format("dd" + "s" * (order - 2)),
    "CSF from the last mode": lambda order: ns.Format("s" * order, tuple(reversed(range(order)))),
    "one dense level, rotated": lambda order: ns.Format("d" + "s" * (order - 1), (*range(1, order), 0)),
}


def stored(indices: np.ndarray, shape: Sequence[int]) -> ns.SparseTensor:
    """COO tensor of small integers, so that products are exact in any order of summation."""
    table = np.unique(np.asarray(indices), axis=1)
    values = np.random.default_rng(table.shape[1]).choice([-2.0, -1.0, 1.0, 2.0, 3.0], table.shape[1])
    return ns.from_coo(table, values, tuple(shape), ns.COO(len(shape)))


# -- generated tensors: small ones for serial kernels, and large ones for parallel kernels at full scale


def power_law(shape: Sequence[int], nnz: int) -> ns.SparseTensor:
    """Power-law counts in each mode, with some empty slices: a social graph, ratings."""
    generator = np.random.default_rng(0)
    weights = [1 / (1.0 + generator.permutation(size)) for size in shape]
    return stored(np.stack([generator.choice(len(w), nnz, p=w / w.sum()) for w in weights]), shape)


def banded(size: int, half_width: int) -> ns.SparseTensor:
    """Entries near the diagonal: a mesh."""
    rows, columns = np.indices((size, size))
    return stored(np.argwhere(abs(rows - columns) <= half_width).T, (size, size))


def pruned(rows: int, columns: int, density: float) -> ns.SparseTensor:
    """Uniformly random entries: a pruned weight."""
    return stored(np.argwhere(np.random.default_rng(1).random((rows, columns)) < density).T, (rows, columns))


def facts(entities: int, relations: int, nnz: int) -> ns.SparseTensor:
    """Entity x relation x entity: a knowledge graph with a short middle mode."""
    generator = np.random.default_rng(2)
    return stored(np.stack([generator.integers(0, size, nnz) for size in (entities, relations, entities)]), (entities, relations, entities))


GENERATED: dict[str, Callable[[], ns.SparseTensor]] = {
    "power law": lambda: power_law((150, 150), 700),
    "banded": lambda: banded(90, 3),
    "pruned": lambda: pruned(32, 48, 0.3),
    "pruned to nothing": lambda: pruned(64, 32, 0.0),
    "large: power law": lambda: power_law((2000, 2000), 30_000),
}
GENERATED_TENSORS: dict[str, Callable[[], ns.SparseTensor]] = {
    "ratings": lambda: power_law((30, 40, 20), 1200),
    "facts": lambda: facts(60, 7, 900),
    "no facts": lambda: facts(20, 5, 0),
    "large: ratings": lambda: power_law((300, 900, 40), 30_000),
}


# -- real data


def files(*folders: str) -> list[str]:
    """Readable files of the subfolders; empty without data."""
    root = os.environ.get(FOLDER)
    paths = [file for folder in folders for file in sorted((Path(root) / folder).glob("*"))] if root else []
    return [str(file.relative_to(root)) for file in paths if root and suffix_of(file)]


@cache
def loaded(name: str) -> ns.SparseTensor:
    """A generated or real tensor by name; cached within the process."""
    make = (GENERATED | GENERATED_TENSORS).get(name)
    if make is not None:
        return make()
    tensor = ns.load(Path(os.environ[FOLDER]) / name)
    return stored(tensor.indices().numpy(), tensor.shape)


@lru_cache(maxsize=8)
def numbers(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """A dense matrix of small integers."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-3, 4, (rows, columns)).astype(np.float64))
