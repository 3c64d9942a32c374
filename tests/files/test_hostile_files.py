"""Malformed files and files with false sizes are refused before memory for their contents is allocated."""

from __future__ import annotations

import gzip
import io
import random
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")

BANNER = "%%MatrixMarket matrix coordinate real general\n"
HUGE = 10**18
LIMIT = 96 << 20  # bytes; one piece of a file takes 16 MB


def save_changed(path: Path, **changed: Any) -> Path:
    """Saves an archive of a small CSR matrix with some arrays replaced."""
    ns.save(ns.from_torch(torch.eye(3)), path)
    arrays = dict(np.load(path)) | changed
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def load_error(path: Path, error: type[Exception] = ns.FormatError, **options: Any) -> str:
    """The error message of loading a file. Loading must not allocate much memory before it fails."""
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            ns.load(path, **options)
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()
    return str(caught.value)


TEXTS = {
    "entries beyond the file": ("a.mtx", f"{BANNER}2 2 {HUGE}\n1 1 1\n", f"announces {HUGE} entries, but 1 follow: is the file cut short?"),
    "fewer entries announced": (
        "a.mtx",
        f"{BANNER}2 2 1\n1 1 1\n2 2 1\n2 1 1\n",
        "line 4: the header announces 1 entries, but 3 follow: remove",
    ),
    "no entries announced": ("a.mtx", f"{BANNER}2 2 0\n\n1 1 1\n", "line 4: the header announces 0 entries, but 1 follow: remove"),
    "more numbers than an array has": (
        "a.mtx",
        f"{BANNER.replace('coordinate', 'array')}1 2\n1\n2\n\n3\n",
        "line 6: the header announces 2 entries, but 3 follow",
    ),
    "negative entries": ("a.mtx", f"{BANNER}2 2 -1\n", "can't read the sizes '2 2 -1'"),
    "sizes of twenty digits": ("a.mtx", f"{BANNER}{'9' * 20} 2 0\n", "can't read the sizes '99999999999999999999 2 0'"),
    "an array of any size": ("a.mtx", f"{BANNER.replace('coordinate', 'array')}{HUGE} {HUGE}\n1\n", f"announces {HUGE**2} entries, but 1"),
    "a triangle of any size": (
        "a.mtx",
        f"%%MatrixMarket matrix array real symmetric\n{HUGE} {HUGE}\n1\n",
        f"announces {HUGE * (HUGE + 1) // 2} entries, but 1 follow",
    ),
    "index 0": ("a.tns", "1 1 1\n0 1 1\n", "line 2: index 0 in dimension 0 is out of range: indices are integers from 1 upwards"),
    "index -1": ("a.mtx", f"{BANNER}2 2 1\n-1 1 1\n", "line 3: index -1 in dimension 0 is out of range"),
    "index inf": ("a.tns", "1 inf 1\n", "line 1: index inf in dimension 1 is out of range"),
    "index nan": ("a.tns", "nan 1 1\n", "line 1: index nan in dimension 0 is out of range"),
    "an index that int64 can't hold": ("a.tns", "99999999999999999999 1 1\n", "line 1: index 1e+20 in dimension 0 is out of range"),
    "an index that float64 rounds": ("a.tns", "9007199254740993.0 1 1\n", "line 1: index 9.0072e+15 in dimension 0 is out of range"),
    "letters": ("a.tns", "1 1 ٣\n", "line 1: can't read '1 1 ٣': each line holds 3 numbers"),
    "letters of the header": (
        "a.mtx",
        "%%MatrixMarket matrix coordinate réal general\n",
        "coordinate réal general' is not a MatrixMarket header",
    ),
    "sizes in other digits": ("a.mtx", f"{BANNER}\uff12 2 0\n", "can't read the sizes '\uff12 2 0'"),
    "a NUL": ("a.mtx", f"{BANNER}2 2 1\n1 1\x001\n", "line 3: can't read '1 1\\x001'"),
    "hexadecimal": ("a.tns", "1 1 0x10\n", "line 1: can't read '1 1 0x10'"),
    "offsets beyond the file": (
        "a.smtx",
        f"{HUGE}, 3, 1\n0 1\n0\n",
        f"2 row offsets, but the sizes on the first line require {HUGE + 1}",
    ),
    "columns beyond the file": (
        "a.smtx",
        f"1, 3, {HUGE}\n0 {2**53}\n0\n",
        f"there are 1 column indices, but the sizes on the first line require {HUGE}",
    ),
    "negative columns": ("a.smtx", "1, -3, 1\n0 1\n0\n", "can't read the sizes '1, -3, 1'"),
    "offsets of nan": ("a.smtx", "1, 3, 1\n0 nan\n0\n", "the row offsets contain a word that is not an integer"),
    "another suffix": ("a.tns", f"{BANNER}2 2 1\n1 1 1\n", "line 1: can't read '%%MatrixMarket matrix coordinate real general'"),
    "another suffix, the other way": ("a.mtx", "# shape: 2 2\n1 1 1\n", "line 1: '# shape: 2 2' is not a MatrixMarket header"),
    "text as an archive": ("a.npz", f"{BANNER}2 2 1\n1 1 1\n", "is not a whole .npz archive"),
    "text as gzip": ("a.mtx.gz", f"{BANNER}2 2 1\n1 1 1\n", "is not a whole gzip file"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_invalid_text_files(name: str, tmp_path: Path) -> None:
    file, text, expected = TEXTS[name]
    (tmp_path / file).write_bytes(text.encode())
    message = load_error(tmp_path / file)
    assert expected in message
    assert file in message


@pytest.mark.parametrize("suffix", [".mtx", ".tns", ".smtx", ".mtx.gz", ".tns.gz", ".smtx.gz", ".npz"])
@pytest.mark.parametrize("seed", range(4))
def test_binary_garbage(suffix: str, seed: int, tmp_path: Path) -> None:
    garbage = np.random.default_rng(seed).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(garbage) if suffix.endswith(".gz") else garbage)
    assert path.name in load_error(path)


@pytest.mark.parametrize("suffix", [".mtx.gz", ".tns.gz", ".smtx.gz", ".npz"])
def test_truncated_compressed_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    ns.save(ns.from_torch(torch.eye(3)), path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        assert "is not a whole" in load_error(path)


def test_long_lines_are_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx.gz"
    path.write_bytes(gzip.compress(b"%" * (100 << 20), 1))
    assert "line 1: expected the %%MatrixMarket header, but this line has more than 1048576 bytes" in load_error(path)
    path.write_bytes(gzip.compress(f"{BANNER}2 2 1\n".encode() + b"1" * (100 << 20), 1))
    assert "line 3: a line has more than 16777216 bytes: each line holds one entry" in load_error(path)


# ---- shapes larger than any memory


def test_huge_shapes(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx"
    path.write_text(f"{BANNER}{HUGE} {HUGE} 1\n{HUGE} {HUGE - 1} 1\n")
    assert "use compressed levels" in load_error(path, ns.SizeError)
    A = ns.load(path, ns.COO(2))
    assert (tuple(A.shape), A.indices().tolist()) == ((HUGE, HUGE), [[HUGE - 1], [HUGE - 2]])
    assert ns.load(path, ns.DCSR).indices().tolist() == [[HUGE - 1], [HUGE - 2]]
    (tmp_path / "a.tns").write_text(f"# shape: {HUGE} 2\n{HUGE - 1} 1 1\n")
    assert ns.load(tmp_path / "a.tns").indices().tolist() == [[HUGE - 2], [0]]
    assert "storing" in load_error(tmp_path / "a.tns", ns.SizeError, format="dd")


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_archives_of_scipy_with_huge_shapes(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    sp.save_npz(path, sp.csr_array(np.eye(3)).asformat(layout))
    np.savez(path, **dict(np.load(path)) | {"shape": np.array([HUGE, HUGE])})
    load_error(path, ns.NumscorchError)


# ---- archives


LEVELS: dict[str, tuple[dict[str, Any], str]] = {
    "pos that decreases": ({"level2_pos": np.array([0, 2, 1, 3], np.int32)}, "pos may not decrease"),
    "pos that starts late": ({"level2_pos": np.array([1, 1, 2, 3], np.int32)}, "pos"),
    "pos beyond crd": ({"level2_pos": np.array([0, 1, 2, 9], np.int32)}, "pos"),
    "crd out of range": ({"level2_crd": np.array([0, 1, 3], np.int32)}, "crd[2] = 3 is outside dimension 1 of size 3"),
    "negative crd": ({"level2_crd": np.array([0, -1, 2], np.int32)}, "crd[1] = -1 is outside dimension 1 of size 3"),
    "sizes beyond pos": ({"shape": np.array([HUGE, 3])}, "pos has 4 entries"),
    "negative sizes": ({"shape": np.array([-3, 3])}, "sizes start at 0"),
    "a shape of floats": ({"shape": np.array([3.0, 3.0])}, "shape has shape (2,) and dtype float64: it must hold integers"),
    "pickled values": ({"values": np.array([None, 1, 2])}, "is not a whole .npz archive of plain arrays"),
    "pickled levels": ({"level2_crd": np.array([print], dtype=object)}, "is not a whole .npz archive of plain arrays"),
    "a format that is none": ({"numscorch_format": np.array("CSR" * 50)}, "unknown"),
    "a format of other levels": ({"numscorch_format": np.array("COO(2)")}, "has no array 'level1_pos'"),
}


@pytest.mark.parametrize("name", LEVELS)
def test_invalid_levels(name: str, tmp_path: Path) -> None:
    changed, expected = LEVELS[name]
    message = load_error(save_changed(tmp_path / "a.npz", **changed))
    assert expected in message
    assert "a.npz" in message


def test_an_array_header_larger_than_its_file(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (HUGE,)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("numscorch_format.npy", header.getvalue() + b"\0" * 8)
    assert f"numscorch_format.npy declares ({HUGE},) values, but has" in load_error(tmp_path / "a.npz")


def test_archives_that_unpack_beyond_the_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numscorch.machine.memory.ASK_FROM", 1 << 20)
    monkeypatch.setenv("NUMSCORCH_MEMORY_LIMIT", "2M")
    np.savez_compressed(tmp_path / "a.npz", format="csr", data=np.zeros(1 << 20))
    assert "the unpacked archive takes" in load_error(tmp_path / "a.npz", ns.SizeError)
    (tmp_path / "a.smtx.gz").write_bytes(gzip.compress(b"1, 1, 1\n0 1\n" + b" " * (40 << 20), 1))
    assert "the data unpacked so far takes" in load_error(tmp_path / "a.smtx.gz", ns.SizeError)


SCIPYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "rows out of range": ("coo", {"row": np.array([0, 1, 7], np.int32)}, "entry 2 has coordinate 7 in dimension 0, which has size 3"),
    "lengths that differ": ("coo", {"row": np.array([0, 1], np.int32)}, "holds 2 rows, but 3 columns"),
    "no columns": ("coo", {"col": None}, "has no array 'col', which its format needs"),
    "starts that decrease": ("csr", {"indptr": np.array([0, 2, 1, 3], np.int32)}, "pos may not decrease"),
    "floats for indices": ("csc", {"indices": np.array([0.5, 1, 2])}, "indices has shape (3,) and dtype float64: it must hold integers"),
    "letters for values": ("csr", {"data": np.array(["a", "b", "c"])}, "they must be numbers, shape (nnz,)"),
    "a table of values": ("coo", {"data": np.ones((3, 1))}, "holds values of shape (3, 1)"),
    "a shape of one": ("coo", {"shape": np.array([3])}, "holds the shape (3,), but a coo matrix has 2 dimensions"),
    "a number for a shape": ("csr", {"shape": np.array(3)}, "shape has shape () and dtype int64"),
}


@pytest.mark.parametrize("name", SCIPYS)
def test_invalid_archives_of_scipy(name: str, tmp_path: Path) -> None:
    layout, changed, expected = SCIPYS[name]
    path = tmp_path / "a.npz"
    sp.save_npz(path, sp.csr_matrix(np.eye(3)).asformat(layout))
    np.savez(path, **{key: array for key, array in (dict(np.load(path)) | changed).items() if array is not None})
    assert expected in load_error(path, ns.NumscorchError)


# ---- damaged archives


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(kind: str, path: Path) -> Path:
    """An archive of each kind that ``load`` reads."""
    if kind == "numscorch":
        ns.save(ns.from_torch(torch.eye(3)), path)
    elif kind == "graph":
        np.savez(path, edge_index=np.array([[0, 1], [1, 0]]), labels=np.array([0, 1, 0]))
    else:
        sp.save_npz(path, sp.csr_array(np.eye(3)).asformat(kind), compressed=False)
    return path


SYMBOLS = b"',()<>|{}[]: 0123456789fibcOVSUmMx?-"


@pytest.mark.parametrize("is_valid_zip", [True, False])
@pytest.mark.parametrize("kind", ["numscorch", "graph", "csr", "coo"])
def test_damaged_archives_raise_errors_of_numscorch(kind: str, is_valid_zip: bool, tmp_path: Path, scale: Callable[[int], int]) -> None:
    """NumPy's own errors of damaged headers include SyntaxError, TypeError, TokenError and SystemError."""
    rng, path = random.Random(f"{kind} {is_valid_zip}"), archive_of(kind, tmp_path / "a.npz")
    whole, parts = path.read_bytes(), members(path)
    for _ in range(scale(8000)):
        name = rng.choice(list(parts))
        content = bytearray(parts[name] if is_valid_zip else whole)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(min(len(content), 100)) if is_valid_zip else rng.randrange(len(content))
            content[at] = rng.choice((rng.randrange(256), rng.choice(SYMBOLS)))
        if is_valid_zip:
            with zipfile.ZipFile(path, "w") as archive:
                for other, unchanged in parts.items():
                    archive.writestr(other, bytes(content) if other == name else unchanged)
        else:
            path.write_bytes(content)
        with suppress(ns.NumscorchError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ns.load(path)


HEADERS = {
    "a leading zero": b"{'descr': '<08', 'fortran_order': False, 'shape': (3,), }",
    "a missing brace": b" 'descr': '<f8', 'fortran_order': False, 'shape': (3,), ",
    "bytes for a key": b"{'descr': '<f8', 'fortran_order': False,b'shape': (3,), }",
    "an open parenthesis": b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,, }",
    "a bracket": b"{'descr': '<m8[', 'fortran_order': False, 'shape': (3,), }",
    "a tuple": b"{'descr': ('<f8',), 'fortran_order': False, 'shape': (3,), }",
    "objects in a record": b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (3,), }",
    "nothing": b"",
}


@pytest.mark.parametrize("name", HEADERS)
def test_damaged_headers_of_arrays(name: str, tmp_path: Path) -> None:
    path = archive_of("csr", tmp_path / "a.npz")
    parts = members(path)
    header = HEADERS[name].ljust(117) + b"\n"
    parts["data.npy"] = parts["data.npy"][:8] + len(header).to_bytes(2, "little") + header + bytes(24)
    with zipfile.ZipFile(path, "w") as archive:
        for other, content in parts.items():
            archive.writestr(other, content)
    assert "a.npz" in load_error(path, ns.NumscorchError)


def test_errors_of_numpy_itself_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy raises SystemError for some damaged headers."""

    def fail(*given: object, **options: object) -> None:
        raise SystemError("error return without exception set")

    path = archive_of("csr", tmp_path / "a.npz")
    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", fail)
    assert "is not a whole .npz archive of plain arrays (error return without exception set)" in load_error(path)
