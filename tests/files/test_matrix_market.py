"""Matrix Market files."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random

import pytest
import torch

import numscorch as ns
from numscorch.files import readers
from numscorch.files.text import Text, by_scipy


def test_a_skew_symmetric_file_has_no_diagonal(tmp_path: Path, interpreted: None) -> None:
    path = tmp_path / "A.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 5\n3 3 1\n")
    with pytest.raises(ns.FormatError, match="entry 3 3"):
        ns.load(path)


PLAIN = {
    "real": ("coordinate real general\n% a comment\n3 4 3", "1 4 0.1\r\n3 1 -2.5E+1\n2 2 .5\n"),
    "unsorted, with repeated entries": ("coordinate real general\n3 3 4", "3 1 1\n1 2 2\n3 1 4\n\n1 1 0\n"),
    "wide numbers": ("coordinate real general\n1 3 3", "1 1 0.1234567890123456789\n1 2 1e400\n1 3 1e-400\n"),
    "integer": ("coordinate integer general\n2 2 3", "1 1 9007199254740993\n2 1 -3\n1 2 0\n"),
    "unsigned": ("coordinate unsigned-integer general\n2 2 2", "1 1 9223372036854775807\n2 1 3\n"),
    "pattern": ("coordinate pattern symmetric\n3 3 2", "2 1\n3 3\n"),
    "complex": ("coordinate complex hermitian\n3 3 2", "2 1 1 -2\n3 3 4 0\n"),
    "symmetric": ("coordinate real symmetric\n3 3 3", "2 1 -5\n3 3 1e-3\n3 1 7.25\n"),
    "skew-symmetric": ("coordinate real skew-symmetric\n3 3 2", "2 1 -5\n3 1 7\n"),
    "array": ("array real general\n2 3", "1\n0\n-2.5\n4\n5\n6e2\n"),
    "array, symmetric": ("array integer symmetric\n2 2", "1\n2\n3\n"),
    "array, complex": ("array complex general\n1 2", "1 2\n0 -3\n"),
    "no entries": ("coordinate real general\n2 3 0", ""),
    "double": ("coordinate double general\n2 2 1", "2 2 0.5\n"),
    "aligned": ("coordinate real general\n10 2 2", " 1  1\t0.5 \n10  2\t1.5\n"),
    "not finite": ("coordinate real general\n2 2 2", "1 1 nan\n2 2 -inf\n"),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
def test_scipys_parser_and_numpys_give_the_same(name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, text = tmp_path / f"A{suffix}", "%%MatrixMarket matrix {}\n{}".format(*PLAIN[name]).encode()
    path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    by_scipy = ns.load(path)
    monkeypatch.setattr(readers, "by_scipy", lambda *arguments: None)
    by_numpy = ns.load(path)
    assert by_scipy.dtype == by_numpy.dtype
    assert torch.equal(by_scipy.indices(), by_numpy.indices())
    assert torch.equal(by_scipy.values.nan_to_num(2.0), by_numpy.values.nan_to_num(2.0))


@pytest.mark.parametrize("line", ["1 1 3 4", "1 1 3abc", "1 1 1D2", "1 1 3\0", "1 1", "1.5 1 2", "3 1 2", "1 1 2 % comment", "1 1 1,5"])
@pytest.mark.parametrize("field", ["real", "integer"])
def test_lines_that_scipy_would_misread_are_refused(line: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(f"%%MatrixMarket matrix coordinate {field} general\n2 2 2\n2 2 1\n{line}\n")
    with pytest.raises(ns.FormatError, match="line 4: "):
        ns.load(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", ""], ids=repr)
def test_any_token_is_read_alike_by_both_parsers(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, draw, is_found = tmp_path / "A.mtx", Random(0), 0
    for _ in range(300):
        token = "".join(draw.choices("0123456789.+-eE", k=draw.randint(1, 6)))
        line = draw.choice([f"1 2 {token}", f"1 2{token} 3"])
        path.write_bytes(f"%%MatrixMarket matrix coordinate real general\n50 50 2\n1 1 5\n{line}{end}".encode())
        results = []
        for parser in (by_scipy, lambda *arguments: None):
            monkeypatch.setattr(readers, "by_scipy", parser)
            try:
                results.append(ns.load(path).to_dense())
            except ns.FormatError:
                results.append(None)
        assert (results[0] is None) == (results[1] is None), line
        assert results[0] is None or torch.equal(*results), line
        is_found += results[0] is not None
    assert is_found > 30 or end == "\r"


NAMED = {
    "a field": ("coordinate float general\n1 1 1\n1 1 1\n", "because of 'float'"),
    "a symmetry": ("coordinate real triangular\n1 1 1\n1 1 1\n", "because of 'triangular'"),
    "a real hermitian matrix": ("coordinate real hermitian\n1 1 1\n1 1 1\n", "because of 'hermitian'"),
    "a word": ("coordinate real general\n2 2 1\n1 2 0,5\n", "each line holds 3 numbers, but '0,5' is not one"),
    "a large unsigned integer": ("coordinate unsigned-integer general\n1 1 1\n1 1 18446744073709551615\n", "pass dtype=torch.float64"),
}


@pytest.mark.parametrize("name", NAMED)
def test_errors_name_the_wrong_word(name: str, tmp_path: Path) -> None:
    (tmp_path / "A.mtx").write_text(f"%%MatrixMarket matrix {NAMED[name][0]}")
    with pytest.raises(ns.FormatError, match=NAMED[name][1]):
        ns.load(tmp_path / "A.mtx")


@pytest.mark.parametrize("name", ["A.mtx", "A.tns"])
def test_packed_files_without_the_suffix_are_unpacked(name: str, tmp_path: Path) -> None:
    A = ns.from_torch(torch.eye(3), ns.COO(2))
    ns.save(A, tmp_path / f"{name}.gz")
    (tmp_path / f"{name}.gz").rename(tmp_path / name)
    assert torch.equal(ns.load(tmp_path / name).to_dense(), torch.eye(3))


def test_fractions_in_a_file_of_integers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_text("%%MatrixMarket matrix coordinate integer general\n2 2 1\n1 1 1.5\n")
    with pytest.raises(ns.FormatError, match=r"holds the value 1\.5"):
        ns.load(path)


@pytest.mark.parametrize("text", ["coordinate real general\n2 2 2\n1 1 0.5\n2 1 -3e-1\n", "array real general\n1 2\n0.5\n-3E-1\n"])
def test_plain_files_are_parsed_by_scipy(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(f"%%MatrixMarket matrix {text}")
    monkeypatch.setattr(Text, "table", None)
    assert ns.load(path).values.tolist() == torch.tensor([0.5, -0.3]).tolist()
