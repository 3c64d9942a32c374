"""Archives that are mapped into memory: equal tensors, private writes, and alignment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.files.archives import read_arrays

pytestmark = pytest.mark.usefixtures("interpreted")

FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 2), ns.ELL, ns.Format("(i, j) -> (i: dense, j: hash)")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, torch.bool, torch.complex64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_mapped_tensors_are_equal(fmt: ns.Format, dtype: torch.dtype, tmp_path: Path) -> None:
    full = (torch.rand(6, 8) < 0.4).to(dtype)
    A = ns.from_torch(full, fmt)
    ns.save(A, tmp_path / "a.npz")
    B = ns.load(tmp_path / "a.npz", mmap=True)
    assert B.format == A.format and B.dtype == dtype
    assert torch.equal(B.to_dense(), full)
    mapped = read_arrays(tmp_path / "a.npz", mapped=True)
    assert all(isinstance(array, np.memmap) and array.ctypes.data % 64 == 0 for array in mapped.values() if array.ndim and array.size)


def test_writes_are_private(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    ns.save(ns.from_torch(torch.eye(3)), path)
    mapped = ns.load(path, mmap=True)
    mapped.values.mul_(2)
    assert torch.equal(mapped.to_dense(), 2 * torch.eye(3))
    assert torch.equal(ns.load(path).to_dense(), torch.eye(3))


def test_compressed_and_misaligned_arrays_are_read(tmp_path: Path) -> None:
    A = ns.from_torch(torch.eye(3))
    ns.save(A, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as archive:
        arrays = dict(archive)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    np.savez(tmp_path / "c.npz", **arrays)
    for name in ("b.npz", "c.npz"):
        assert torch.equal(ns.load(tmp_path / name, mmap=True).to_dense(), torch.eye(3))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 2\n")
    np.savez(tmp_path / "graph.npz", edge_index=np.array([[0], [1]]))
    for name in ("a.mtx", "graph.npz"):
        with pytest.raises(ns.FormatError, match="leave it out"):
            ns.load(tmp_path / name, mmap=True)
