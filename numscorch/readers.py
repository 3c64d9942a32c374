"""Readers of sparse tensors in text: Matrix Market, FROSTT and DLMC files."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from .errors import FormatError, UnsupportedError
from .text import Text, coordinate_columns, integers, read, table

Entries = tuple[np.ndarray, np.ndarray, tuple[int, ...]]
"""Coordinates (ndim, n), values float64 (n,), and the shape."""

FIELDS = ("real", "integer", "pattern", "double")
SYMMETRIES = ("general", "symmetric", "skew-symmetric")


def read_matrix_market(path: Path) -> Entries:
    """The entries of a Matrix Market file, both triangles of a symmetric one; those of an array file that are not 0.

    Raises:
        FormatError: with the file and the line that breaks the format.
        UnsupportedError: complex matrices.
    """
    header, text = read(path).next_line("the %%MatrixMarket header")
    layout, field, symmetry = _banner(text, header)
    sizes_line, body = text.next_line("the line of sizes", comment=b"%")
    sizes = integers(sizes_line)
    wanted = 3 if layout == "coordinate" else 2
    if sizes is None or len(sizes) != wanted or (sizes < 0).any():
        names = "rows columns entries" if wanted == 3 else "rows columns"
        raise body.error(f"can't read the sizes {sizes_line.decode(errors='replace')[:60]!r}: write {names}", at=body.line - 1)
    shape = (int(sizes[0]), int(sizes[1]))
    if symmetry != "general" and shape[0] != shape[1]:
        raise body.error(f"a {symmetry} matrix is square, but this one is {shape[0]} x {shape[1]}", at=body.line - 1)
    if layout == "array":
        indices, values = _array_entries(body, shape, symmetry)
    else:
        indices, values = _coordinate_entries(body, shape, field, int(sizes[2]))
    return *_mirrored(indices, values, symmetry), shape


def _banner(text: Text, header: bytes) -> tuple[str, str, str]:
    words = header.decode(errors="replace").lower().split()
    shown, line = " ".join(words)[:80], text.line - 1
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[2] not in ("coordinate", "array"):
        raise text.error(f"{shown!r} is no header: write %%MatrixMarket matrix coordinate real general", at=line)
    layout, field, symmetry = words[2:]
    if field == "complex" or symmetry == "hermitian":
        raise UnsupportedError(f"{text.path}: {field} {symmetry} matrices are not read: use ns.from_scipy(scipy.io.mmread(path))")
    if field not in FIELDS or symmetry not in SYMMETRIES or (layout, field) == ("array", "pattern"):
        raise text.error(f"{shown!r} is no header: the fields are {', '.join(FIELDS)}, the symmetries {', '.join(SYMMETRIES)}", at=line)
    return layout, field, symmetry


def _coordinate_entries(body: Text, shape: tuple[int, int], field: str, nnz: int) -> tuple[np.ndarray, np.ndarray]:
    entries = table(body, 2 if field == "pattern" else 3, nnz)
    indices = coordinate_columns(body, entries, shape, 2)
    return indices, np.ones(nnz) if field == "pattern" else entries[:, 2].copy()


def _array_entries(body: Text, shape: tuple[int, int], symmetry: str) -> tuple[np.ndarray, np.ndarray]:
    """Columns one after the other, of a symmetric matrix only the part from the diagonal down."""
    above = {"general": 0, "symmetric": 0, "skew-symmetric": 1}[symmetry]
    n = shape[0] - above
    values = table(body, 1, prod(shape) if symmetry == "general" else n * (n + 1) // 2)[:, 0]
    if symmetry == "general":
        columns, rows = np.divmod(np.arange(prod(shape)), max(shape[0], 1))
    else:
        columns, rows = np.triu_indices(shape[0], above)
    kept = values != 0
    return np.stack([rows[kept], columns[kept]]), values[kept]


def _mirrored(indices: np.ndarray, values: np.ndarray, symmetry: str) -> tuple[np.ndarray, np.ndarray]:
    if symmetry == "general":
        return indices, values
    off = indices[0] != indices[1]
    mirror = -values[off] if symmetry == "skew-symmetric" else values[off]
    return np.concatenate([indices, indices[::-1, off]], axis=1), np.concatenate([values, mirror])


def read_tns(path: Path, shape: Sequence[int] | None = None) -> Entries:
    """The entries of a FROSTT file: on each line indices from 1, then the value.

    The shape is the one given, else that of a comment ``# shape: 3 4 5``, else the largest indices.

    Raises:
        FormatError: with the file and the line that breaks the format.
    """
    text = read(path)
    size = tuple(int(s) for s in shape) if shape is not None else None
    while text.content.lstrip()[:1] == b"#":
        comment, text = text.next_line("the first entry")
        words = comment.lstrip(b"#").replace(b":", b" ").replace(b",", b" ").replace(b"x", b" ").split()
        if size is None and words[:1] == [b"shape"]:
            size = _commented_shape(text, b" ".join(words[1:]))
    if b"#" in text.content:
        lines = (line.partition(b"#")[0] for line in text.content.split(b"\n"))
        text = Text(path, b"\n".join(lines), text.line)
    ndim = len(text.content.lstrip().partition(b"\n")[0].split()) - 1
    if ndim < 0 and size is not None:
        return np.empty((len(size), 0), dtype=np.int64), np.empty(0), size
    if ndim < 1:
        raise text.error("there is no entry to tell the shape from: write lines of indices from 1 and a value, or pass shape=")
    if size is not None and len(size) != ndim:
        raise text.error(f"entries have {ndim} indices, but the shape {size} has {len(size)} dimensions")
    entries = table(text, ndim + 1)
    indices = coordinate_columns(text, entries, size, ndim)
    return indices, entries[:, ndim].copy(), size if size is not None else tuple(int(s) + 1 for s in indices.max(axis=1))


def _commented_shape(text: Text, words: bytes) -> tuple[int, ...]:
    sizes = integers(words)
    if sizes is None or not len(sizes) or (sizes < 0).any():
        raise text.error(f"can't read the shape {words.decode(errors='replace')[:60]!r}: write # shape: 3 4 5", at=text.line - 1)
    return tuple(int(s) for s in sizes)


def read_smtx(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Row offsets, columns and shape of a DLMC file: a line ``rows, columns, nnz``, a line of offsets, one of columns.

    Raises:
        FormatError: with the file and the line that breaks the format.
    """
    first, rest = read(path).next_line("the line of rows, columns, nnz")
    sizes = integers(first.replace(b",", b" "))
    if sizes is None or len(sizes) != 3 or (sizes < 0).any():
        raise rest.error(f"can't read the sizes {first.decode(errors='replace')[:60]!r}: write rows, columns, nnz", at=rest.line - 1)
    rows, columns, nnz = (int(s) for s in sizes)
    offsets_line, rest = rest.next_line("the row offsets")
    offsets = _integers_of(rest, offsets_line, rows + 1, "row offsets", rest.line - 1)
    indices = _integers_of(rest, rest.content, nnz, "column indices", rest.line)
    if offsets[0] != 0 or offsets[-1] != nnz or (np.diff(offsets) < 0).any():
        raise rest.error(f"row offsets run from {offsets[0]} to {offsets[-1]}: they must rise from 0 to nnz = {nnz}", at=rest.line - 1)
    if nnz and (indices.min() < 0 or indices.max() >= columns):
        wrong = indices[(indices < 0) | (indices >= columns)][0]
        raise rest.error(f"column {wrong} is outside: columns lie in 0 to {columns - 1}")
    return offsets, indices, (rows, columns)


def _integers_of(text: Text, content: bytes, count: int, what: str, line: int) -> np.ndarray:
    found = integers(content)
    if found is None:
        raise text.error(f"the {what} hold something that is no integer", at=line)
    if len(found) != count:
        raise text.error(f"there are {len(found)} {what}, but the sizes on the first line ask for {count}", at=line)
    return found


def read_scipy_npz(path: Path, arrays: dict[str, np.ndarray]) -> tuple[str, tuple[np.ndarray, ...], tuple[int, ...]]:
    """Layout, arrays and shape of what ``scipy.sparse.save_npz`` wrote: csr and csc as (indptr, indices, data), coo as (coords, data).

    Raises:
        FormatError: arrays are missing.
        UnsupportedError: another layout.
    """
    layout = np.asarray(arrays["format"]).item()
    layout = layout.decode() if isinstance(layout, bytes) else str(layout)
    if layout not in ("csr", "csc", "coo"):
        raise UnsupportedError(f"{path} holds a {layout} matrix: save it after .tocsr()")
    coords = "coords" if "coords" in arrays else "row"
    wanted = (coords, "data", "shape") if layout == "coo" else ("indptr", "indices", "data", "shape")
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise FormatError(f"{path} has no array {missing[0]!r}, which a {layout} matrix needs: it has {', '.join(arrays)}")
    shape = tuple(int(s) for s in arrays["shape"])
    if layout != "coo":
        return layout, tuple(arrays[name] for name in wanted[:-1]), shape
    table = arrays["coords"] if coords == "coords" else np.stack([arrays["row"], arrays["col"]])
    return layout, (table, arrays["data"]), shape
