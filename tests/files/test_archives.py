"""Saved tensors are loaded unchanged, in every format and data type; broken archives are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compositions import compositions
from storable import storable

import numscorch as ns
from numscorch.frontend.datatypes import STORED
from numscorch.ir.format import Format

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("fmt", compositions(), ids=str)
def test_every_format(fmt: Format, tmp_path: Path) -> None:
    dense = storable(fmt)[0]
    A = ns.from_torch(dense, fmt)
    ns.save(A, tmp_path / "a.npz")
    B = ns.load(tmp_path / "a.npz")
    assert (B.format, B.shape, B.dtype, B.pattern.index_dtype) == (A.format, A.shape, A.dtype, A.pattern.index_dtype)
    assert torch.equal(B.values, A.values)
    for arrays, loaded in zip(A.pattern.arrays, B.pattern.arrays, strict=True):
        assert all(map(torch.equal, arrays, loaded))


@pytest.fixture(params=[".npz", ".safetensors"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One path for each kind of file that keeps formats and data types."""
    if request.param == ".safetensors":
        pytest.importorskip("safetensors", reason="its files are tested where it is installed")
    return tmp_path / f"a{request.param}"


@pytest.mark.parametrize("fmt", [ns.COO(2), ns.DCSR, ns.BCSR(2, 2), ns.ELL, ns.Format("(i, j) -> (i: dense, j: hash)")], ids=str)
def test_formats_and_index_arrays(fmt: Format, path: Path) -> None:
    A = ns.from_torch(torch.eye(4), fmt)
    ns.save(A, path)
    B = ns.load(path)
    assert (B.format, B.shape, B.dtype) == (A.format, A.shape, A.dtype)
    arrays = [[array for level in tensor.pattern.arrays for array in level] for tensor in (A, B)]
    assert all(map(torch.equal, *arrays))


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_data_type(dtype: torch.dtype, path: Path) -> None:
    A = ns.from_torch(torch.eye(3)).with_values(torch.tensor([1, 2, 3]).to(dtype))
    if dtype == torch.complex128 and path.suffix == ".safetensors":
        with pytest.raises(ns.UnsupportedError, match=r"a\.safetensors can't hold torch\.complex128 values: save the tensor as \.npz"):
            ns.save(A, path)
        assert not path.exists()
        return
    ns.save(A, str(path))
    B = ns.load(path)
    assert B.dtype == dtype
    assert torch.equal(B.values, A.values)


SAVED = {"csr": (ns.CSR, torch.float32), "coo": (ns.COO(2), torch.float64), "blocks": (ns.BCSR(1, 2), torch.bfloat16)}


@pytest.mark.parametrize("name", SAVED)
def test_files_of_version_0_1_are_read(name: str, path: Path) -> None:
    A = ns.load(Path(__file__).parents[1] / "data" / "saved" / f"{name}_0_1{path.suffix}")
    assert (A.format, A.dtype) == SAVED[name]
    assert A.to_dense().tolist() == [[0.0, 2.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, -4.0, 0.0]]


@pytest.mark.parametrize("dense", [torch.tensor(3.0), torch.zeros(0, 4), torch.zeros(2, 0, 3)], ids=lambda t: str(tuple(t.shape)))
def test_empty_tensors_and_numbers(dense: torch.Tensor, path: Path) -> None:
    ns.save(ns.from_torch(dense), path)
    assert torch.equal(ns.load(path).to_dense(), dense)


def test_loading_in_another_format_and_data_type(path: Path) -> None:
    wide = ns.from_csr(torch.tensor([0, 1]), torch.tensor([1]), torch.ones(1, dtype=torch.float64, requires_grad=True), (1, 2))
    ns.save(wide, path)
    A = ns.load(path, ns.COO(2), dtype=torch.float32)
    assert (A.format, A.dtype, A.pattern.index_dtype, A.requires_grad) == (ns.COO(2), torch.float32, "int64", False)


def test_safetensors_loads_saved_tensors(tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch", reason="its files are tested where it is installed")
    A = ns.from_torch(torch.eye(3, dtype=torch.bfloat16))
    path = tmp_path / "a.safetensors"
    ns.save(ns.nn.Parameter(A), path)
    arrays = files.load_file(path)
    assert torch.equal(arrays.pop("values"), A.values)
    assert sorted(arrays) == ["level2_crd", "level2_pos"]
    with files.safe_open(path, "pt") as opened:
        assert opened.metadata() == {"numscorch_format": str(ns.CSR), "shape": "3 3", "dtype": "bfloat16"}


def test_broken_and_other_safetensors_are_refused(tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch", reason="its files are tested where it is installed")
    path = tmp_path / "a.safetensors"
    ns.save(ns.from_torch(torch.eye(3)), path)
    whole = path.read_bytes()
    for broken in (whole[:-4], b"junk", whole.replace(b'"3 3"', b'"3 x"')):
        path.write_bytes(broken)
        with pytest.raises(ns.FormatError, match="is not a whole"):
            ns.load(path)
    path.write_bytes(whole.replace(b'"3 3"', b'"3 2"'))
    with pytest.raises(ns.FormatError, match=r"crd\[2\] = 2 is outside dimension"):
        ns.load(path)
    files.save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(ns.FormatError, match=r"holds no SparseTensor of numscorch: read it with safetensors\.torch\.load_file"):
        ns.load(path)


def test_saving_without_safetensors_installed_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ns.UnsupportedError, match=r"isn't installed: pip install safetensors, or use \.npz"):
        ns.save(ns.from_torch(torch.eye(2)), tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.h5", "a.csv", "a.CSV.gz", "a.npy", "a.json"])
def test_suffixes_of_other_programs_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ns.FormatError, match=r"ns\.save cannot write \.\w+ files, only \.mtx, .*: use one of these, or write A\.indices\(\)"
    ):
        ns.save(ns.from_torch(torch.eye(2)), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("edges.csv", b"0,1\n1,2\n", r"numpy\.loadtxt or pandas, then call ns\.from_coo.*ns\.adj_t"),
        ("edges", b"0 1\n", r"call ns\.from_coo"),
        ("a.h5", b"\x89HDF\r\n", r"h5py"),
        ("a.npy", b"\x93NUMPY", r"ns\.from_torch\(torch\.from_numpy"),
        ("empty.pt", b"", r"ns\.load cannot read"),
    ],
)
def test_files_of_other_programs_are_refused(name: str, content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ns.FormatError, match=text):
        ns.load(tmp_path / name)


def test_torchs_files_are_loaded_with_any_suffix(tmp_path: Path) -> None:
    for name, is_zip in (("a.csv", True), ("b", False)):
        torch.save({"x": 1}, tmp_path / name, _use_new_zipfile_serialization=is_zip)
        assert ns.load(tmp_path / name) == {"x": 1}


def test_pt_files_use_torchs_options(tmp_path: Path) -> None:
    ns.save(ns.from_torch(torch.eye(2)), tmp_path / "a.pt")
    read = ns.load(tmp_path / "a.pt", weights_only=False)
    assert type(read) is ns.SparseTensor
    assert torch.equal(read.to_dense(), torch.eye(2))
    with pytest.raises(ns.UnsupportedError, match=r"other arguments are torch\.save's"):
        ns.save(read, tmp_path / "a.npz", pickle_protocol=2)


@pytest.mark.parametrize("name", ["a", "a.xyz", "a.mxt"])
def test_unknown_suffixes_use_torchs_format(name: str, tmp_path: Path) -> None:
    ns.save(ns.from_torch(torch.eye(2)), tmp_path / name)
    assert torch.equal(ns.load(tmp_path / name).to_dense(), torch.eye(2))
    (tmp_path / name).write_text("text")
    with pytest.raises(ns.FormatError, match=r"ns\.load cannot read .*, only .*and files of torch\.save under any other name"):
        ns.load(tmp_path / name)


def test_dicts_are_saved_by_torch(tmp_path: Path) -> None:
    ns.save({"weight": torch.ones(2)}, tmp_path / "a.pt")
    assert torch.equal(torch.load(tmp_path / "a.pt")["weight"], torch.ones(2))


def test_a_failed_save_keeps_the_old_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    ns.save(ns.from_torch(torch.eye(2)), path)
    before = path.read_bytes()
    monkeypatch.setattr(np.lib.format, "write_array", lambda *args, **kwargs: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        ns.save(ns.from_torch(torch.eye(3)), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda arrays: arrays.pop(name)


def replaced(**other: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda arrays: arrays.update(other)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no level": (without("level2_crd"), "has no array 'level2_crd', which its format needs: it has numscorch_format"),
    "no shape": (without("shape"), "has no array 'shape'"),
    "format": (replaced(numscorch_format="dense and so on"), "unknown format"),
    "dimensions": (replaced(shape=np.array([2, 2, 2])), "holds the shape (2, 2, 2), but its format CSR has 2 dimensions"),
    "coordinate": (replaced(level2_crd=np.array([0, 7], dtype=np.int32)), "crd[1] = 7 is outside dimension 1 of size 2"),
    "start": (replaced(level2_pos=np.array([0, 5, 2], dtype=np.int32)), "pos may not decrease"),
    "floats": (replaced(level2_pos=np.array([0.0, 1.0, 2.0])), "holds pos of compressed with shape (3,) and dtype torch.float64"),
    "table": (replaced(level2_crd=np.zeros((2, 1), dtype=np.int32)), "holds crd of compressed with shape (2, 1)"),
    "values": (replaced(values=np.ones(3, dtype=np.float32)), "holds values of shape (3,), but its pattern stores 2"),
    "data type": (replaced(dtype="float64"), "holds values of float32, but declares float64"),
    "text": (replaced(level2_crd=np.array(["a", "b"])), "can't convert np.ndarray of type numpy.str_"),
    "no data type": (replaced(dtype="nn"), "holds values of float32, but declares nn"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_archives_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    ns.save(ns.from_torch(torch.eye(2)), path)
    arrays = dict(np.load(path))
    change, text = BROKEN[name]
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(ns.FormatError) as caught:
        ns.load(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".mtx", ".tns", ".smtx", ".csv"])
@pytest.mark.parametrize("obj", [{"w": torch.ones(2)}, torch.ones(2, 2), torch.eye(2).to_sparse_csr()], ids=["dict", "dense", "csr"])
def test_other_objects_are_not_written_under_suffixes_of_sparse_tensors(obj: object, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    with pytest.raises(ns.FormatError, match=r"holds a SparseTensor; save .*to a \.pt file$" if suffix != ".csv" else "csv"):
        ns.save(obj, path)
    assert not path.exists()
