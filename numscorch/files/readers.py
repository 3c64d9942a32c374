"""Readers of Matrix Market, FROSTT and DLMC text files."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from ..errors import FormatError
from ..tensors.arrays import as_shape
from .text import Text, by_scipy, coordinates_in, integers, opened, sizes, whole_values

Entries = tuple[np.ndarray, np.ndarray, tuple[int, ...], str | None]
"""Coordinates (ndim, n), values (n,) in float64, int64 or complex128, the shape, and the data type that the file states, if any."""

FIELDS = {"real": None, "double": None, "integer": "int64", "unsigned-integer": "int64", "complex": "complex128", "pattern": "float32"}
PARTS = {"pattern": 0, "complex": 2}  # numbers of a value, if not one
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
LONGEST = 1 << 31  # upper bound of the line of offsets in a .smtx file, in bytes


def read_matrix_market(path: Path, *, exact: bool = False, progress: bool | None = None) -> Entries:
    """The entries of a Matrix Market file. Symmetric matrices are expanded to both triangles; array files give their nonzeros.

    Args:
        path: the file.
        exact: whether to return int64 if all values are integers, and float64 can't represent some of them. Files of type ``integer``
            always give int64.
        progress: whether to show a progress bar; None shows one for large files.

    Raises:
        FormatError: the file is malformed; the text names the line, or the entry that violates the symmetry.
    """
    with opened(path, progress) as text:
        layout, field, symmetry = _banner(text, text.next_line("the %%MatrixMarket header"))
        sizes_line = text.next_line("the line of sizes", comment=b"%")
        expected = 3 if layout == "coordinate" else 2
        header = sizes(sizes_line)
        if header is None or len(header) != expected:
            names = "rows columns entries" if expected == 3 else "rows columns"
            raise text.error(f"can't read the sizes {_shown(sizes_line)}: write {names}", at=text.line - 1)
        shape = (header[0], header[1])
        if symmetry != "general" and shape[0] != shape[1]:
            raise text.error(f"a {symmetry} matrix is square, but this one is {shape[0]} x {shape[1]}", at=text.line - 1)
        if layout == "array":
            indices, values = _array_entries(text, shape, symmetry, field)
        else:
            indices, values = _matrix_entries(text, shape, header[2], field, exact)
    return *_with_mirror(path, indices, values, symmetry), shape, FIELDS[field]


def _shown(line: bytes) -> str:
    return repr(line.decode(errors="replace")[:60])


def _banner(text: Text, header: bytes) -> tuple[str, str, str]:
    words = header.decode(errors="replace").lower().split()
    shown, line = " ".join(words)[:80], text.line - 1
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[2] not in ("coordinate", "array"):
        raise text.error(f"{shown!r} is not a MatrixMarket header: write %%MatrixMarket matrix coordinate real general", at=line)
    layout, field, symmetry = words[2:]
    is_field = field in FIELDS and (layout, field) != ("array", "pattern")
    if not is_field or symmetry not in SYMMETRIES or (symmetry == "hermitian" and field != "complex"):
        wrong = symmetry if is_field else field
        raise text.error(
            f"{shown!r} is not a MatrixMarket header, because of {wrong!r}: the fields are {', '.join(FIELDS)}, the symmetries "
            f"{', '.join(SYMMETRIES)}",
            at=line,
        )
    return layout, field.removeprefix("unsigned-"), symmetry


def _matrix_entries(text: Text, shape: tuple[int, int], count: int, field: str, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates and values of a coordinate file."""
    parts, is_whole = PARTS.get(field, 1), field == "integer"
    entries = None if exact and not is_whole else by_scipy(text, "coordinate", field, (*shape, count), 2 + parts)
    if entries is None:
        return _coordinate_entries(text, 2, shape, count, parts, exact or is_whole)
    return np.stack([entries.row, entries.col]), entries.data


def _coordinate_entries(
    text: Text, ndim: int, shape: tuple[int, ...] | None, count: int | None, parts: int, exact: bool, first: bytes = b""
) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates and values of lines that hold an entry's indices and ``parts`` numbers: none (value 1), one, or two (complex)."""
    table = text.table(ndim + parts, count, first)
    values = _joined(table[:, ndim:]) if parts else np.ones(len(table))
    return coordinates_in(text, table, shape, ndim), whole_values(text, values) if exact else values


def _joined(columns: np.ndarray) -> np.ndarray:
    """One column as real values, or two columns as complex values."""
    return columns[:, 0].copy() if columns.shape[1] == 1 else np.ascontiguousarray(columns).view(np.complex128)[:, 0]


def _array_entries(text: Text, shape: tuple[int, int], symmetry: str, field: str) -> tuple[np.ndarray, np.ndarray]:
    """The nonzeros of an array file in column-major order; symmetric files hold the lower triangle only."""
    above = int(symmetry == "skew-symmetric")
    n = shape[0] - above
    count = prod(shape) if symmetry == "general" else n * (n + 1) // 2
    entries = by_scipy(text, "array", field, (count, 1), 1 + (field == "complex"))
    values = _joined(text.table(1 + (field == "complex"), count)) if entries is None else entries[:, 0]
    values = whole_values(text, values) if field == "integer" and entries is None else values
    if symmetry == "general":
        columns, rows = np.divmod(np.arange(prod(shape)), max(shape[0], 1))
    else:
        columns, rows = np.triu_indices(shape[0], above)
    nonzero = values != 0
    return np.stack([rows[nonzero], columns[nonzero]]), values[nonzero]


def _with_mirror(path: Path, indices: np.ndarray, values: np.ndarray, symmetry: str) -> tuple[np.ndarray, np.ndarray]:
    """The listed entries and, for a symmetric file, their mirror images.

    Raises:
        FormatError: a skew-symmetric file lists a diagonal entry.
    """
    if symmetry == "general":
        return indices, values
    off_diagonal = indices[0] != indices[1]
    if symmetry == "skew-symmetric" and not off_diagonal.all():
        row = int(indices[0][~off_diagonal][0]) + 1
        raise FormatError(f"{path} lists entry {row} {row}, but the diagonal of a skew-symmetric matrix is 0: leave it out")
    mirror = values[off_diagonal].conj() if symmetry == "hermitian" else values[off_diagonal]
    mirror = -mirror if symmetry == "skew-symmetric" else mirror
    return np.concatenate([indices, indices[::-1, off_diagonal]], axis=1), np.concatenate([values, mirror])


def read_tns(path: Path, shape: Sequence[int] | None = None, *, exact: bool = False, progress: bool | None = None) -> Entries:
    """The entries of a FROSTT file: each line holds indices from 1, then the value.

    Args:
        path: the file.
        shape: the shape; by default that of a comment ``# shape: 3 4 5``, else the largest indices.
        exact, progress: as for :func:`read_matrix_market`.

    Raises:
        FormatError: the file is malformed; the text names the line.
    """
    size = as_shape(shape) if shape is not None else None
    with opened(path, progress) as text:
        first, comment_shape = _first_entry(text)
        size = comment_shape if size is None else size
        if not first and size is not None:
            return np.empty((len(size), 0), dtype=np.int64), np.empty(0), size, None
        ndim = len(first.split()) - 1
        if ndim < 1:
            problem = "without entries, the shape is unknown: write lines of indices from 1 and a value, or pass shape="
            raise text.error(problem, at=text.line - bool(first))
        if size is not None and len(size) != ndim:
            raise text.error(f"entries have {ndim} indices, but the shape {size} has {len(size)} dimensions", at=text.line - 1)
        text.comment = "#"
        indices, values = _coordinate_entries(text, ndim, size, None, 1, exact, first)
    return indices, values, size if size is not None else tuple(int(s) + 1 for s in indices.max(axis=1)), None


def _first_entry(text: Text) -> tuple[bytes, tuple[int, ...] | None]:
    """The first line with an entry, without its comment (empty at the end of the file), and the shape from comments before it."""
    size = None
    while line := text.next_filled():
        entry, _, comment = line.partition(b"#")
        if entry.strip():
            return entry.strip(), size
        words = comment.lstrip(b"#").replace(b":", b" ").replace(b",", b" ").replace(b"x", b" ").split()
        if size is None and words[:1] == [b"shape"]:
            size = sizes(b" ".join(words[1:]))
            if not size:
                raise text.error(f"can't read the shape {_shown(b' '.join(words[1:]))}: write # shape: 3 4 5", at=text.line - 1)
    return b"", size


def read_smtx(path: Path, *, progress: bool | None = None) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """The row offsets, column indices and shape of a DLMC file.

    The file has a line ``rows, columns, nnz``, a line of row offsets, and a line of column indices.

    Raises:
        FormatError: the file is malformed; the text names the line.
    """
    with opened(path, progress) as text:
        first = text.next_line("the line of rows, columns, nnz")
        header = sizes(first.replace(b",", b" "))
        if header is None or len(header) != 3:
            raise text.error(f"can't read the sizes {_shown(first)}: write rows, columns, nnz", at=text.line - 1)
        rows, columns, nnz = header
        longest = min(20 * (rows + 2), LONGEST)
        offsets = _integers_of(text, text.next_line("the row offsets", longest=longest), rows + 1, "row offsets", text.line - 1)
        indices = _integers_of(text, text.rest(), nnz, "column indices", text.line)
    line = text.line
    if offsets[0] != 0 or offsets[-1] != nnz or (np.diff(offsets) < 0).any():
        raise text.error(f"row offsets run from {offsets[0]} to {offsets[-1]}: they must rise from 0 to nnz = {nnz}", at=line - 1)
    if nnz and (indices.min() < 0 or indices.max() >= columns):
        wrong = indices[(indices < 0) | (indices >= columns)][0]
        raise text.error(f"column {wrong} is out of range: columns go from 0 to {columns - 1}", at=line)
    return offsets, indices, (rows, columns)


def _integers_of(text: Text, content: bytes, count: int, name: str, line: int) -> np.ndarray:
    numbers = integers(content)
    if numbers is None:
        raise text.error(f"the {name} contain a word that is not an integer", at=line)
    if len(numbers) != count:
        raise text.error(f"there are {len(numbers)} {name}, but the sizes on the first line require {count}", at=line)
    return numbers
