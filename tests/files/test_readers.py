"""Files are read as their formats define; errors of invalid files name the line."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch

from numscorch import adj_t, load as ns_load, save as ns_save
from numscorch.errors import FormatError, NumscorchError, UnsupportedError
from numscorch.files.load import load, load_graph, suffix_of
from numscorch.files.text import fits_float32
from numscorch.ir.format import COO, CSC, CSF, CSR, dense

pytestmark = pytest.mark.usefixtures("interpreted")

BANNER = "%%MatrixMarket matrix coordinate real general\n"
GRAPH: dict[str, Any] = {
    "edge_index": np.array([[0, 1, 1, 2], [1, 0, 2, 1]]),
    "labels": np.array([0, 1, 0]),
    "train_idx": np.array([0]),
    "val_idx": np.array([1]),
    "test_idx": np.array([2]),
    "feat_indptr": np.array([0, 1, 1, 3]),
    "feat_indices": np.array([1, 0, 1], dtype=np.int32),
    "feat_data": np.array([1, 2, 3], dtype=np.float32),
    "feat_shape": np.array([3, 2]),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write_file


Write = Callable[[str, str], Path]


# ---- Matrix Market


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
def test_matrix_market(write: Write, suffix: str) -> None:
    path = write("a" + suffix, BANNER + "% a comment\n%\n\n 2 3 3\n2 3 1.5e1\n1 2 -2\n1 1 0\n")
    A = load(path)
    assert (A.format, A.dtype, A.nnz) == (CSR, torch.float32, 3)
    assert A.to_dense().tolist() == [[0.0, -2.0, 0.0], [0.0, 0.0, 15.0]]
    assert A.pattern.index_dtype == "int32"


@pytest.mark.parametrize(
    ("banner", "body", "expected"),
    [
        ("coordinate pattern general", "2 2 2\n1 2\n2 2\n", [[0, 1], [0, 1]]),
        ("coordinate integer general", "2 2 1\n2 1 -7\n", [[0, 0], [-7, 0]]),
        ("coordinate real symmetric", "2 2 2\n1 1 4\n2 1 5\n", [[4, 5], [5, 0]]),
        ("coordinate pattern symmetric", "2 2 1\n2 1\n", [[0, 1], [1, 0]]),
        ("coordinate real skew-symmetric", "2 2 1\n2 1 5\n", [[0, -5], [5, 0]]),
        ("COORDINATE Real General", "2 2 1\r\n2\t1  5.\r\n\r\n", [[0, 0], [5, 0]]),
        ("coordinate real general", "2 2 2\n1 1 2\n1 1 3\n", [[5, 0], [0, 0]]),
        ("coordinate real general", "2 2 0\n", [[0, 0], [0, 0]]),
        ("coordinate real general", "0 0 0", []),
        ("array real general", "2 3\n1\n2\n0\n4\n5\n6\n", [[1, 0, 5], [2, 4, 6]]),
        ("array integer symmetric", "2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
        ("array real skew-symmetric", "3 3\n1\n2\n3\n", [[0, -1, -2], [1, 0, -3], [2, 3, 0]]),
    ],
)
def test_fields_and_symmetries(write: Write, banner: str, body: str, expected: list[list[float]]) -> None:
    assert load(write("a.mtx", f"%%MatrixMarket matrix {banner}\n{body}")).to_dense().tolist() == expected


def test_explicit_zeros_and_blank_lines(write: Write) -> None:
    A = load(write("a.mtx", BANNER + "2 2 2\n\n1 1 0.0\n\n2 2 1\n"))
    assert A.values.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind in ("general", "symmetric", "skew-symmetric") for field in ("real", "integer")]
    + [("general", "pattern"), ("symmetric", "pattern")],
)
def test_scipy_reads_the_same(tmp_path: Path, kind: str, field: str) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.integers(-4, 5, size=(9, 9)) * (rng.random((9, 9)) < 0.4)
    if kind != "general":
        matrix = np.tril(matrix, -1) + np.tril(matrix, -1).T * (1 if kind == "symmetric" else -1)
    path = tmp_path / "a.mtx"
    scipy.io.mmwrite(path, sp.coo_array(matrix.astype(float)), field=field, symmetry=kind)
    A = load(path, dtype=torch.float64)
    assert np.array_equal(A.to_dense().numpy(), scipy.io.mmread(path).toarray())


def test_format_and_dtype(write: Write) -> None:
    path = write("a.mtx", BANNER + "2 2 1\n1 2 0.1\n")
    assert load(path, CSC).format == CSC
    assert load(path, "dd").format == dense(2)
    assert load(str(path), dtype=torch.float64).values.tolist() == [0.1]


# ---- FROSTT


def test_tns(write: Write) -> None:
    A = load(write("a.tns.gz", "# a comment\n2 1 3 1.5\n1 1 1 2\n# another\n1 4 1 3 # the last\n"))
    assert (A.format, tuple(A.shape)) == (COO(3), (2, 4, 3))
    assert A.indices().T.tolist() == [[0, 0, 0], [0, 3, 0], [1, 0, 2]]
    assert A.values.tolist() == [2.0, 3.0, 1.5]


def test_shape_of_tns(write: Write) -> None:
    path = write("a.tns", "# shape: 3 4\n1 1 2\n")
    assert tuple(load(path).shape) == (3, 4)
    assert tuple(load(path, shape=(5, 6)).shape) == (5, 6)
    assert tuple(load(write("b.tns", "1 1 2\n"), shape=(5, 6), format="ss").shape) == (5, 6)
    assert load(write("c.tns", "# shape 2x2x2\n"), CSF(3)).nnz == 0


# ---- DLMC


@pytest.mark.parametrize("suffix", [".smtx", ".smtx.gz"])
def test_smtx(write: Write, suffix: str) -> None:
    A = load(write("a" + suffix, "2, 3, 3\n0 2 3 \n2 0 1 \n"))
    assert (A.format, A.nnz) == (CSR, 3)
    assert A.to_dense().tolist() == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    assert load(write("b" + suffix, "2, 3, 0\n0 0 0\n\n"), CSC).nnz == 0


# ---- numpy archives


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_archives_of_scipy(tmp_path: Path, layout: str, kind: Any) -> None:
    matrix = kind(np.array([[0.0, 1.5, 0.0], [2.0, 0.0, 3.0]])).asformat(layout)
    sp.save_npz(tmp_path / "a.npz", matrix)
    A = load(tmp_path / "a.npz", dtype=torch.float64)
    assert A.format == CSR
    assert np.array_equal(A.to_dense().numpy(), matrix.toarray())


def test_archives_of_integers_and_cubes(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "a.npz", sp.csr_array(np.array([[0, 2], [0, 0]])))
    assert load(tmp_path / "a.npz").to_dense().tolist() == [[0.0, 2.0], [0.0, 0.0]]
    cube = np.arange(8.0).reshape(2, 2, 2)
    sp.save_npz(tmp_path / "b.npz", sp.coo_array(cube))
    A = load(tmp_path / "b.npz")
    assert A.format == COO(3)
    assert np.array_equal(A.to_dense().numpy(), cube)


def test_graphs(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez(path, **GRAPH)
    graph = load_graph(path)
    assert graph.adj_t.format == CSR
    assert graph.adj_t.to_dense().tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    assert graph.features is not None
    assert graph.features.to_dense().tolist() == [[0.0, 1.0], [0.0, 0.0], [2.0, 3.0]]
    assert [graph.labels.tolist(), graph.train_idx.tolist(), graph.val_idx.tolist(), graph.test_idx.tolist()] == [[0, 1, 0], [0], [1], [2]]
    assert torch.equal(load(path).to_dense(), graph.adj_t.to_dense())


@pytest.mark.filterwarnings("ignore:1 of 3 edges are repeated")
def test_graphs_have_their_directions(tmp_path: Path) -> None:
    edges = np.array([[0, 1, 0], [1, 2, 1]])
    np.savez(tmp_path / "graph.npz", **(GRAPH | {"edge_index": edges}))
    assert torch.equal(load_graph(tmp_path / "graph.npz").adj_t.to_dense(), adj_t(edges, size=3).to_dense())
    assert torch.equal(load(tmp_path / "graph.npz").to_dense(), adj_t(edges, size=3).to_dense())


def test_graphs_without_features(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez(path, **{name: array for name, array in GRAPH.items() if not name.startswith("feat")})
    assert load_graph(path).features is None


# ---- errors


BAD_TEXT = {
    "no banner": (
        "a.mtx",
        "1 1 1\n1 1 1\n",
        "line 1: '1 1 1' is not a MatrixMarket header: write %%MatrixMarket matrix coordinate real general",
    ),
    "bad field": (
        "a.mtx",
        "%%MatrixMarket matrix coordinate rational general\n",
        "line 1: '%%matrixmarket matrix coordinate rational general'",
    ),
    "no sizes": ("a.mtx", BANNER + "% nothing\n", "line 3: the file ends before the line of sizes"),
    "empty": ("a.mtx", "", "line 1: the file ends before the %%MatrixMarket header"),
    "bad sizes": ("a.mtx", BANNER + "2 2\n", "line 2: can't read the sizes '2 2': write rows columns entries"),
    "negative sizes": ("a.mtx", BANNER + "2 -2 1\n", "line 2: can't read the sizes '2 -2 1'"),
    "truncated": ("a.mtx", BANNER + "2 2 3\n1 1 1\n", "the header announces 3 entries, but 1 follow: is the file cut short?"),
    "too many": ("a.mtx", BANNER + "2 2 1\n1 1 1\n1 2 1\n", "the header announces 1 entries, but 2 follow"),
    "cut line": ("a.mtx", BANNER + "2 2 2\n1 1 1\n1 2\n", "line 4: can't read '1 2': each line holds 3 numbers"),
    "garbage": ("a.mtx", BANNER + "2 2 2\n1 1 1\n1 x 2\n", "line 4: can't read '1 x 2': each line holds 3 numbers"),
    "glued": ("a.mtx", BANNER + "2 2 1\n1 2-3\n", "line 3: can't read '1 2-3': each line holds 3 numbers"),
    "shifted": ("a.mtx", BANNER + "2 2 2\n1 1\n1 2 1 1\n", "line 3: can't read '1 1': each line holds 3 numbers"),
    "zero": (
        "a.mtx",
        BANNER + "2 2 2\n1 1 1\n\n0 1 1\n",
        "line 5: index 0 in dimension 0 is out of range: indices are integers from 1 to 2",
    ),
    "outside": ("a.mtx", BANNER + "2 2 1\n1 3 1\n", "line 3: index 3 in dimension 1 is out of range: indices are integers from 1 to 2"),
    "fraction": ("a.mtx", BANNER + "2 2 1\n1.5 1 1\n", "line 3: index 1.5 in dimension 0 is out of range"),
    "nan": ("a.mtx", BANNER + "2 2 1\nnan 1 1\n", "line 3: index nan in dimension 0 is out of range"),
    "not square": (
        "a.mtx",
        BANNER.replace("general", "symmetric") + "2 3 1\n1 1 1\n",
        "line 2: a symmetric matrix is square, but this one is 2 x 3",
    ),
    "short array": (
        "a.mtx",
        "%%MatrixMarket matrix array real general\n100000000 100000000\n1\n",
        "the header announces 10000000000000000 entries",
    ),
    "no gzip": ("a.tns", "\x1f\x8b", "line 1: without entries, the shape is unknown"),
    "tns, no entries": ("a.tns", "# nothing\n", "without entries, the shape is unknown"),
    "tns, ragged": ("a.tns", "1 1 2\n1 1 1 2\n", "line 2: can't read '1 1 1 2': each line holds 3 numbers"),
    "tns, zero": (
        "a.tns",
        "# from 1\n1 1 2\n1 0 2\n",
        "line 3: index 0 in dimension 1 is out of range: indices are integers from 1 upwards",
    ),
    "tns, comment": ("a.tns", "# shape: two\n1 1 2\n", "line 1: can't read the shape 'two': write # shape: 3 4 5"),
    "tns, order": ("a.tns", "# shape: 3 4 5\n1 1 2\n", "entries have 2 indices, but the shape (3, 4, 5) has 3 dimensions"),
    "tns, outside": ("a.tns", "# shape: 3 4\n1 5 2\n", "line 2: index 5 in dimension 1 is out of range: indices are integers from 1 to 4"),
    "smtx, sizes": ("a.smtx", "2, 3\n0 0 0\n\n", "line 1: can't read the sizes '2, 3': write rows, columns, nnz"),
    "smtx, offsets": ("a.smtx", "2, 3, 1\n0 1\n1\n", "line 2: there are 2 row offsets, but the sizes on the first line require 3"),
    "smtx, falling": ("a.smtx", "2, 3, 1\n0 2 1\n1\n", "line 2: row offsets run from 0 to 1: they must rise from 0 to nnz = 1"),
    "smtx, columns": ("a.smtx", "2, 3, 2\n0 1 2\n1\n", "line 3: there are 1 column indices, but the sizes on the first line require 2"),
    "smtx, outside": ("a.smtx", "2, 3, 1\n0 1 1\n3\n", "line 3: column 3 is out of range: columns go from 0 to 2"),
    "smtx, text": ("a.smtx", "2, 3, 1\n0 1 1\nx\n", "line 3: the column indices contain a word that is not an integer"),
    "smtx, twice": ("a.smtx", "1, 3, 2\n0 2\n1 1\n", "line 3: 1 columns occur twice in one row"),
    "smtx, cut": ("a.smtx", "2, 3, 1\n", "line 2: the file ends before the row offsets"),
    "suffix": ("a.txt", "", "ns.load cannot read a.txt, only .mtx, .mtx.gz"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_broken_files(write: Write, name: str) -> None:
    file, text, message = BAD_TEXT[name]
    with pytest.raises(FormatError) as caught:
        load(write(file, text))
    assert message in str(caught.value)


BROKEN_GZIPS = {
    "no gzip": b"no gzip",
    "cut": gzip.compress(BANNER.encode() * 50)[:-20],
    "garbage": b"\x1f\x8b\x08\x00" + b"\xff" * 20,
    "empty": b"",
}


@pytest.mark.parametrize("content", BROKEN_GZIPS.values(), ids=BROKEN_GZIPS.keys())
def test_broken_gzip(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.mtx.gz").write_bytes(content)
    with pytest.raises(FormatError, match=r"a\.mtx\.gz"):
        load(tmp_path / "a.mtx.gz")


@pytest.mark.parametrize("kind", ["general", "symmetric", "skew-symmetric", "hermitian"])
@pytest.mark.parametrize("layout", ["coordinate", "array"])
def test_complex_matrices(tmp_path: Path, layout: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    half = np.tril(rng.integers(-4, 5, (5, 5)) + 1j * rng.integers(-4, 5, (5, 5)), -1)
    mirror = {"general": 0 * half, "symmetric": half.T, "skew-symmetric": -half.T, "hermitian": half.conj().T}[kind]
    matrix = half + mirror
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix if layout == "array" else sp.coo_array(matrix), symmetry=kind)
    A = load(tmp_path / "a.mtx")
    assert A.dtype == torch.complex64
    assert np.array_equal(A.to_dense().numpy(), matrix)
    with pytest.raises(FormatError, match=r"holds complex values, which do not fit torch\.float32: pass dtype=torch\.complex64"):
        load(tmp_path / "a.mtx", dtype=torch.float32)


def test_hermitian_matrices_are_complex(write: Write) -> None:
    with pytest.raises(FormatError, match="is not a MatrixMarket header"):
        load(write("a.mtx", "%%MatrixMarket matrix coordinate real hermitian\n1 1 1\n1 1 1\n"))


# ---- data types


TYPES: dict[str, tuple[str, str, torch.dtype, float | int]] = {
    "short decimals": ("real", "0.1", torch.float32, 0.10000000149011612),
    "nine digits of float32": ("real", "0.12345679", torch.float32, 0.12345679104328156),
    "more digits": ("real", "0.123456789", torch.float64, 0.123456789),
    "scipy's digits": ("real", "3.333333333333333e-01", torch.float64, 0.3333333333333333),
    "integers of float32": ("real", "16777216", torch.float32, 2**24),
    "integers of float64": ("double", "16777217", torch.float64, 2**24 + 1),
    "a large number": ("real", "1e300", torch.float64, 1e300),
    "a large power of ten": ("real", "1e38", torch.float32, 9.999999680285692e37),
    "above float32": ("real", "1e39", torch.float64, 1e39),
    "a small number": ("real", "1e-50", torch.float64, 1e-50),
    "subnormal": ("real", "1.2345678e-40", torch.float64, 1.2345678e-40),
    "infinity": ("real", "-inf", torch.float32, float("-inf")),
    "integers": ("integer", "16777217", torch.int64, 2**24 + 1),
    "integers beyond float64": ("integer", "9007199254740993", torch.int64, 2**53 + 1),
    "the smallest integer": ("integer", "-9223372036854775808", torch.int64, -(2**63)),
}


@pytest.mark.parametrize("layout", ["coordinate", "array"])
@pytest.mark.parametrize("name", TYPES)
def test_matrix_market_loses_nothing(name: str, layout: str, write: Write) -> None:
    field, text, dtype, value = TYPES[name]
    body = f"2 2 2\n1 1 1\n2 2 {text}\n" if layout == "coordinate" else f"2 2\n1\n0\n0\n{text}\n"
    A = load(write("a.mtx", f"%%MatrixMarket matrix {layout} {field} general\n{body}"))
    assert (A.dtype, A.values.tolist()) == (dtype, [1, value])
    if layout == "coordinate" and field != "integer":
        B = load(write("a.tns.gz", f"1 1 1\n2 2 {text}\n"))
        assert (B.dtype, B.values.tolist()) == (dtype, [1, value])


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "1e30", "1.5", "nan"])
def test_files_of_integers_hold_integers_of_64_bits(text: str, write: Write) -> None:
    path = write("a.mtx", f"%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 {text}\n")
    with pytest.raises(FormatError, match=r"which is not an integer that torch\.int64 and float64 represent exactly"):
        load(path)
    torch.testing.assert_close(load(path, dtype=torch.float64).values, torch.tensor([float(text)], dtype=torch.float64), equal_nan=True)


def test_the_default_type_of_torch_counts(write: Write) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert load(write("a.mtx", BANNER + "1 1 1\n1 1 0.1\n")).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


KEPT = {"f4": torch.float32, "f8": torch.float64, "i1": torch.int8, "i4": torch.int32, "i8": torch.int64, "u1": torch.uint8}
KEPT |= {"?": torch.bool, "c8": torch.complex64, "c16": torch.complex128}
WIDENED = {"u2": torch.int32, "u4": torch.int64, "u8": torch.int64, "g": torch.float64}


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize(("stored", "dtype"), (KEPT | WIDENED).items())
def test_archives_of_scipy_keep_their_type(stored: str, dtype: torch.dtype, layout: str, tmp_path: Path) -> None:
    kind = np.dtype(stored)
    value = np.nextafter(kind.type(1), kind.type(2)) if kind.kind == "f" and stored != "g" else kind.type(1 if kind.kind == "c" else True)
    value = np.iinfo(kind).max if kind.kind in "iu" and stored != "u8" else 2**62 + 1 if stored == "u8" else value
    matrix = sp.csr_array(np.array([[0, value], [0, 0]], kind)).asformat(layout)
    sp.save_npz(tmp_path / "a.npz", matrix)
    A = load(tmp_path / "a.npz")
    assert (A.dtype, A.values.tolist()) == (dtype, [value])


def test_unsigned_integers_beyond_int64_are_refused(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "a.npz", sp.csr_array(np.array([[2**64 - 1]], np.uint64)))
    with pytest.raises(FormatError, match=r"which is not an integer that torch\.int64"):
        load(tmp_path / "a.npz")


def changed_graph(*names: str, **changed: np.ndarray) -> dict[str, np.ndarray]:
    return {name: array for name, array in (GRAPH | changed).items() if name not in names}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (changed_graph("labels"), "has no array 'labels': a graph needs edge_index, labels"),
        (changed_graph("feat_indices"), "has no array 'feat_indices'"),
        (changed_graph(edge_index=np.array([[0, 3], [3, 0]])), "edge_index names node 3, but there are 3 nodes"),
        (changed_graph(edge_index=np.array([[0, -1], [1, 0]])), "edge_index names node -1"),
        (changed_graph(edge_index=np.array([0, 1])), "edge_index has shape (2,) and dtype int64"),
        (changed_graph(feat_indices=np.array([1, 0, 9])), "crd[2] = 9 is outside dimension 1 of size 2"),
        (changed_graph(feat_indptr=np.array([0, 3])), "pos has 2 entries, but CSR of shape (3, 2) needs 4"),
    ],
)
def test_broken_graphs(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(NumscorchError) as caught:
        load_graph(tmp_path / "a.npz")
    assert message in str(caught.value)


def test_broken_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **GRAPH)
    whole = path.read_bytes()
    for content in (whole[:100], b"garbage", b"", whole[:-30]):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"is not a whole \.npz archive"):
            load(path)
    np.savez(path, objects=np.array([None]))
    with pytest.raises(FormatError, match="of plain arrays"):
        load(path)
    np.savez(path, other=np.ones(2))
    with pytest.raises(FormatError, match=r"has no array numscorch_format .*, edge_index"):
        load(path)
    np.save(tmp_path / "a.npy", np.ones(2))
    (tmp_path / "a.npy").rename(path)
    with pytest.raises(FormatError, match="is one numpy array"):
        load(path)
    sp.save_npz(path, sp.dia_array(np.eye(2)))
    with pytest.raises(UnsupportedError, match=r"holds a dia matrix: use ns\.from_scipy.*or save it after \.tocsr\(\)"):
        load(path)
    np.savez(path, format="csr", shape=(2, 2), data=np.ones(1))
    with pytest.raises(FormatError, match="has no array 'indptr', which its format needs"):
        load(path)


def test_arguments(write: Write) -> None:
    path = write("a.mtx", BANNER + "1 1 0\n")
    with pytest.raises(FormatError, match=r"shape= is for \.tns files"):
        load(path, shape=(1, 1))
    with pytest.raises(UnsupportedError, match=r"torch\.uint16"):
        load(path, dtype=torch.uint16)
    with pytest.raises(FileNotFoundError):
        load(path.with_name("missing.mtx"))
    with pytest.raises(FormatError, match="has 3 dimensions"):
        load(path, COO(3))
    assert (suffix_of("A.MTX"), suffix_of("model.pt")) == (".mtx", None)


def test_values_that_do_not_fit_integers_are_refused(tmp_path: Path) -> None:
    for value, dtype in (
        ("1.5", torch.int64),
        ("9223372036854775808", torch.int64),
        ("9007199254740993", torch.int32),
        ("300", torch.int8),
    ):
        (tmp_path / "a.mtx").write_text(f"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 {value}\n")
        with pytest.raises(FormatError, match="not an integer"):
            load(tmp_path / "a.mtx", dtype=dtype)


def test_folders_are_refused(tmp_path: Path) -> None:
    for read in (load, ns_load):
        with pytest.raises(IsADirectoryError, match=r"reads a file, not a folder; it reads \.mtx"):
            read(tmp_path)
    with pytest.raises(IsADirectoryError, match="writes a file, not a folder: name a file in it"):
        ns_save(adj_t([[0], [1]]), tmp_path)
    (tmp_path / "graph.npz").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(IsADirectoryError, match=r"numscorch\.load reads a file, not a folder; did you mean .*graph\.npz\?"):
        ns_load(tmp_path)


@pytest.mark.parametrize("scale", [1e-20, 1e-14, 1e-6, 1.0, 1e8, 9e14, 1e20])
def test_shortest_decimals_of_float32_fit_and_their_neighbours_do_not(scale: float) -> None:
    numbers = (np.random.default_rng(0).standard_normal(500) * scale).astype(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(-40, 45)).astype(np.float32)  # float32's spacing changes here
    decimals = np.concatenate([numbers, powers, np.nextafter(powers, np.float32(0))]).astype(str).astype(np.float64)
    assert fits_float32(decimals)
    for number in decimals[:50]:
        neighbour = np.nextafter(number, np.inf)
        assert not fits_float32(np.append(decimals, neighbour))
