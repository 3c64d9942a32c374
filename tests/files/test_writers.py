"""Text files are loaded as they were saved, replaced atomically, and show progress on request."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from compositions import compositions
from storable import storable

import numscorch as ns
from numscorch.files import text, writers
from numscorch.frontend.datatypes import STORED
from numscorch.ir.format import Format
from numscorch.machine.progress import Progress

pytestmark = pytest.mark.usefixtures("interpreted")

SUFFIXES = (".mtx", ".mtx.gz", ".tns", ".tns.gz")
REAL = [dtype for dtype in STORED if not dtype.is_complex]
FLOATS = torch.tensor(
    [0.0, -0.0, 1.0, -1.5, 1e22, 0.1, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308], dtype=torch.float64
)


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """Extreme values of a data type."""
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if not dtype.is_floating_point:
        return torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max, 0, -1, 7], dtype=dtype)
    info = torch.finfo(dtype)
    limits = torch.tensor([info.max, info.min, info.tiny, info.smallest_normal / 2, info.eps], dtype=dtype)
    noise = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.cat([FLOATS.to(dtype), limits, noise.to(dtype)])


def column(values: torch.Tensor) -> ns.SparseTensor:
    n = len(values)
    return ns.from_coo([list(range(0, 3 * n, 3)), [1] * n], values, (3 * n, 2), ns.CSR)


def same(A: ns.SparseTensor, B: ns.SparseTensor) -> bool:
    """Whether all values are bitwise equal; all NaNs are equal."""
    left, right = A.values.detach().view(-1), B.values
    if A.dtype.is_floating_point:
        left, right = torch.nan_to_num(left, 77.0, torch.inf, -torch.inf), torch.nan_to_num(right, 77.0, torch.inf, -torch.inf)
        if not torch.equal(torch.signbit(left), torch.signbit(right)):
            return False
    return A.shape == B.shape and A.dtype == B.dtype and torch.equal(left, right) and torch.equal(A.indices(), B.indices())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_every_data_type_is_loaded_as_saved(dtype: torch.dtype, suffix: str, tmp_path: Path) -> None:
    A = column(extremes(dtype))
    ns.save(A, tmp_path / f"a{suffix}")
    assert same(A, ns.load(tmp_path / f"a{suffix}", ns.CSR, dtype=dtype))


def test_float32_values_are_not_rounded_twice(tmp_path: Path) -> None:
    """The shortest text of this number, read as float64 first, is rounded to a neighbour."""
    values = torch.from_numpy(np.array([0x15AE43FD], dtype=np.uint32).view(np.float32))
    assert float(str(values.numpy()[0])) != values.item()
    assert torch.tensor(float(str(values.numpy()[0])), dtype=torch.float64).float() != values[0]
    ns.save(column(values), tmp_path / "a.tns")
    assert same(column(values), ns.load(tmp_path / "a.tns", ns.CSR))


def test_values_that_would_be_rounded_twice_are_found() -> None:
    """All float32 values of some exponents, among them subnormal ones, and values whose text is next to a middle."""
    bits = np.array([0x15AE43FD], dtype=np.uint32)
    for first in (0x15AE0000, 0x3F800000 - (1 << 15), 0x7F7F0000, 0x00000001, 0x007F8000):
        values = np.arange(first, first + (1 << 16), dtype=np.uint32).view(np.float32)
        values = values[np.isfinite(values)]
        wrong = values.astype("S32").astype(np.float64).astype(np.float32) != values
        assert writers.are_read(values) == (not wrong.any())
        bits = np.concatenate([bits, values[wrong].view(np.uint32)])
    assert not any(writers.are_read(value[None]) for value in bits.view(np.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_files_have_the_same_values_with_and_without_scipy(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    A = column(extremes(dtype))
    ns.save(A, tmp_path / "a.mtx")
    monkeypatch.setattr(writers, "_by_scipy", lambda *arguments: None)
    ns.save(A, tmp_path / "b.mtx")
    texts = [(tmp_path / name).read_text().splitlines()[1:] for name in ("a.mtx", "b.mtx")]
    first, second = ([[float(word) for word in line.split()] for line in lines] for lines in texts)
    assert np.array_equal(np.array(first[1:]), np.array(second[1:]), equal_nan=True)
    assert first[0] == second[0]
    assert same(A, ns.load(tmp_path / "b.mtx", ns.CSR, dtype=dtype))


def test_random_bits_of_float32(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
    A = column(torch.from_numpy(bits))
    ns.save(A, tmp_path / "a.mtx")
    assert same(A, ns.load(tmp_path / "a.mtx"))


@pytest.mark.parametrize("fmt", compositions(), ids=str)
def test_every_format_is_loaded_as_saved(fmt: Format, tmp_path: Path) -> None:
    dense = storable(fmt)[0]
    A = ns.from_torch(dense, fmt)
    ns.save(A, tmp_path / "a.tns")
    B = ns.load(tmp_path / "a.tns", fmt, dtype=A.dtype)
    assert (B.nnz, B.shape) == (A.nnz, A.shape)
    assert torch.equal(B.to_dense(), dense)


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (0, 3), (3, 0, 2), (2, 1, 2, 1, 2)])
def test_tensors_of_any_rank_and_empty_tensors(shape: tuple[int, ...], tmp_path: Path) -> None:
    A = ns.from_torch(torch.ones(shape) * torch.arange(float(torch.Size(shape).numel())).reshape(shape))
    ns.save(A, tmp_path / "a.tns")
    B = ns.load(tmp_path / "a.tns")
    assert B.shape == A.shape
    assert torch.equal(B.to_dense(), A.to_dense())


def test_explicit_zeros_are_kept(tmp_path: Path) -> None:
    A = column(torch.zeros(3))
    ns.save(A, tmp_path / "a.mtx")
    assert ns.load(tmp_path / "a.mtx").nnz == 3


def test_huge_coordinates(tmp_path: Path) -> None:
    A = ns.from_coo([[10**18 - 1, 10**18], [2, 0]], [1.0, 2.0], (10**18 + 1, 3))
    ns.save(A, tmp_path / "a.tns")
    assert same(A, ns.load(tmp_path / "a.tns"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_scipy_reads_the_same(dtype: torch.dtype, tmp_path: Path) -> None:
    A = ns.from_torch(torch.arange(-6, 6).reshape(3, 4).to(dtype))
    ns.save(A, tmp_path / "a.mtx.gz")
    assert np.array_equal(scipy.io.mmread(tmp_path / "a.mtx.gz").toarray(), A.to_dense().numpy())


@pytest.mark.parametrize("suffix", [".mtx", ".npz"])
def test_parameters(suffix: str, tmp_path: Path) -> None:
    layer = ns.nn.SparseLinear(3, 3, pattern=torch.eye(3))
    ns.save(layer.weight, tmp_path / f"a{suffix}")
    assert torch.equal(ns.load(tmp_path / f"a{suffix}").values, layer.weight.values)


# ---- patterns


@pytest.mark.parametrize("suffix", [".smtx", ".smtx.gz"])
@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR])
@pytest.mark.parametrize("shape", [(4, 5), (0, 3), (3, 0)])
def test_patterns(suffix: str, format: Any, shape: tuple[int, int], tmp_path: Path) -> None:
    A = ns.from_torch((torch.arange(shape[0] * shape[1]).reshape(shape) % 3 == 0).double(), format)
    ns.save(A, tmp_path / f"a{suffix}")
    B = ns.load(tmp_path / f"a{suffix}", format, dtype=torch.float64)
    assert torch.equal(B.to_dense(), A.to_dense())


def test_smtx_refuses_values_other_than_1(tmp_path: Path) -> None:
    A = column(torch.tensor([1.0, 2.0, 0.0]))
    with pytest.raises(ns.FormatError, match=r"2 of 3 stored values are not 1, such as 2\.0: save the tensor as \.mtx, or A\.with_values"):
        ns.save(A, tmp_path / "a.smtx")
    assert not list(tmp_path.iterdir())
    ns.save(A.with_values(torch.ones_like(A.values)), tmp_path / "a.smtx")
    assert torch.equal(ns.load(tmp_path / "a.smtx").indices(), A.indices())


@pytest.mark.parametrize(
    ("name", "tensor", "error", "message"),
    [
        ("a.mtx", torch.ones(2, 2, 2), ns.FormatError, "a.mtx: .mtx files hold matrices, but the tensor has 3 dimensions: save it as .tns"),
        ("a.smtx.gz", torch.ones(2), ns.FormatError, "a.smtx.gz: .smtx files hold matrices, but the tensor has 1 dimensions"),
        ("a.tns", torch.tensor(1.0), ns.FormatError, "the tensor has no dimensions: save it as .npz"),
        ("a.mtx", torch.eye(2, dtype=torch.complex64), ns.UnsupportedError, "torch.complex64 values are not written as text"),
    ],
)
def test_tensors_that_text_cannot_hold(name: str, tensor: torch.Tensor, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        ns.save(ns.from_torch(tensor), tmp_path / name)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


# ---- atomic replacement


@pytest.mark.parametrize("suffix", [".mtx", ".tns.gz"])
def test_a_failed_save_keeps_the_old_file(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"a{suffix}"
    ns.save(ns.from_torch(torch.eye(2)), path)
    before = path.read_bytes()
    monkeypatch.setattr(writers, "ENTRIES", 2)
    monkeypatch.setattr(writers, "entry_lines", lambda indices, values, shape: b"1 1 1\n" if len(values) == 2 else 1 // 0)
    with pytest.raises(ZeroDivisionError):
        ns.save(ns.from_torch(torch.eye(3)), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_permissions_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.mtx", tmp_path / "link.mtx"
    ns.save(ns.from_torch(torch.eye(2)), real)
    real.chmod(0o640)
    link.symlink_to(real)
    ns.save(ns.from_torch(torch.eye(3)), link)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert tuple(ns.load(real).shape) == (3, 3)


def test_missing_folders_and_folders_in_place_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ns.save(ns.from_torch(torch.eye(2)), tmp_path / "none" / "a.mtx")
    (tmp_path / "a.mtx").mkdir()
    with pytest.raises(OSError, match="is not a regular file"):
        ns.save(ns.from_torch(torch.eye(2)), tmp_path / "a.mtx")


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.mtx.gz", "b.mtx.gz"):
        ns.save(ns.from_torch(torch.eye(2)), tmp_path / name)
    assert (tmp_path / "a.mtx.gz").read_bytes() == (tmp_path / "b.mtx.gz").read_bytes()


# ---- in pieces


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".smtx"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_pieces_of_any_size(size: int, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    A = column(torch.ones(40) if suffix == ".smtx" else torch.arange(1.0, 41.0))
    monkeypatch.setattr(writers, "ENTRIES", size)
    ns.save(A, tmp_path / f"a{suffix}")
    monkeypatch.setattr(text, "PIECE", max(size, 32))
    assert same(A, ns.load(tmp_path / f"a{suffix}", ns.CSR))


def test_errors_count_lines_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE", 32)
    lines = ["# of entries", "1 1 1", "", *["2 2 2 # as before"] * 30]
    for bad, message in (("2 x 2", r"line 34: can't read '2 x 2'"), ("2 0 2", r"line 34: index 0 in dimension 1")):
        (tmp_path / "a.tns").write_text("\n".join([*lines, bad, "3 3 3"]))
        with pytest.raises(ns.FormatError, match=message):
            ns.load(tmp_path / "a.tns")


def test_integers_and_floats_in_different_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE", 32)
    A = column(torch.tensor([1] * 10 + [2**62 + 1] + [3] * 10))
    ns.save(A, tmp_path / "a.mtx")
    assert same(A, ns.load(tmp_path / "a.mtx", dtype=torch.int64))


# ---- progress


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".smtx", ".npz"])
def test_the_progress_bar_is_shown_on_request(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"a{suffix}"
    A = ns.from_torch(torch.eye(3))
    for progress in (None, False):
        ns.save(A, path, progress=progress)
        ns.load(path, progress=progress)
    assert capsys.readouterr() == ("", "")
    ns.save(A, path, progress=True)
    ns.load(path, progress=True)
    output = capsys.readouterr().err
    full = "#" * 30
    assert f"writing {path.name}  [{full}] 100%\n" in output
    assert output.endswith(f"reading {path.name}  [{full}] 100%\n")


def test_the_progress_bar_is_shown_by_default_for_large_files_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        for size in (0, 1 << 30):
            assert Progress("reading", 10, size=size).shown is (terminal and size > 0)
    assert not Progress("reading", 0, shown=True).shown


def test_the_progress_bar_stops_at_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), Progress("reading", 10, shown=True) as progress:
        progress.reach(5)
        progress.reach(1 // 0)
    assert capsys.readouterr().err.endswith(" 50%\n")


def test_torchs_options_are_refused_for_other_files(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        ns.save(torch.ones(2), tmp_path / "a.pt", progress=True)
    with pytest.raises(ns.UnsupportedError, match=r"takes just progress=: other arguments are torch\.save's"):
        ns.save(ns.from_torch(torch.eye(2)), tmp_path / "a.mtx", _use_new_zipfile_serialization=True)
