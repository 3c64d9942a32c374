"""Writers of Matrix Market, FROSTT and DLMC text files. Reading a written file gives exactly the same values.

Text is built in pieces, each as a uint8 table with a row per line. Unused cells are 0 and are removed at the end.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import BytesIO
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from ..convert.conversions import to_format
from ..errors import FormatError, UnsupportedError
from ..ir.format import CSR
from ..machine.atomic_files import replacing
from ..machine.progress import Progress
from ..tensors.packing import coordinates, of_entries
from ..tensors.sparse_tensor import SparseTensor
from .text import FORMATTED

ENTRIES = 1 << 18  # entries per piece
LETTERS = 32  # upper bound of the characters of a float
MINUS, SPACE, NEWLINE, ZERO = b"- \n0"
# by the exponent bits of a float64: powers of ten that scale a float32 to 9 or 10 digits
BINARY = np.clip(np.arange(2048) - 1023, -149, 127)
SCALES = 10.0 ** (8 - np.floor(BINARY * np.log10(2.0)))
HALVES = np.ldexp(SCALES, np.maximum(BINARY - 24, -150))  # half the distance between two scaled neighbours
MIDDLES = np.abs(HALVES - np.rint(HALVES))


def write_text(A: SparseTensor, path: str | PathLike[str], suffix: str, progress: bool | None = None) -> None:
    """Write a tensor of any format to a text file; O(stored entries). If writing fails, an existing file keeps its content.

    ===================  ===========================================================================
    .mtx, .mtx.gz        Matrix Market: a matrix with real values
    .tns, .tns.gz        FROSTT: a tensor of one or more dimensions with real values, after a line ``# shape:``
    .smtx, .smtx.gz      DLMC: the pattern of a matrix whose stored values are all 1
    ===================  ===========================================================================

    ``numscorch.load(path, A.format, dtype=A.dtype)`` reads the same tensor. Gradients are not stored.

    Args:
        A: the tensor.
        path: the file.
        suffix: one of the suffixes above; ``.gz`` files are compressed.
        progress: whether to show a progress bar on stderr; None shows one for more than 64 MB of text if stderr is a terminal.

    Raises:
        FormatError: the tensor isn't a matrix, or a pattern file would lose its values.
        UnsupportedError: the values are complex.
        OSError: the file can't be written.

    >>> import tempfile, numscorch as ns
    >>> path = Path(tempfile.mkdtemp()) / "a.tns"
    >>> write_text(ns.from_torch(torch.tensor([[0, 2], [3, 0]])), path, ".tns")
    >>> print(path.read_text())
    # shape: 2 2
    1 2 2
    2 1 3
    <BLANKLINE>
    """
    name, kind = Path(path).name, suffix.removesuffix(".gz")
    _check(A, name, kind)
    total = A.nnz * (A.ndim + 1)
    with (
        replacing(path) as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) if suffix.endswith(".gz") else nullcontext(file) as written,
        Progress(f"writing {name}", total, shown=progress, size=8 * total) as bar,
    ):
        count = 0
        for text, numbers in WRITERS[kind](A):
            written.write(text)
            bar.reach(count := count + numbers)


def _check(A: SparseTensor, name: str, kind: str) -> None:
    if kind != ".tns" and A.ndim != 2:
        raise FormatError(f"{name}: {kind} files hold matrices, but the tensor has {A.ndim} dimensions: save it as .tns, or as .npz")
    if not A.ndim:
        raise FormatError(f"{name}: {kind} files hold indices, but the tensor has no dimensions: save it as .npz")
    if A.dtype.is_complex and kind != ".smtx":
        raise UnsupportedError(f"{name}: {A.dtype} values are not written as text: save the tensor as .npz")


def _entries(A: SparseTensor, header: str) -> Iterator[tuple[bytes, int]]:
    """A header, and the lines of the entries: indices from 1, then the value."""
    yield header.encode(), 0
    indices, values = coordinates(A.pattern).numpy(), _stored(A)
    for first in range(0, len(values), ENTRIES):
        piece = slice(first, first + ENTRIES)
        yield entry_lines(indices[:, piece], values[piece], A.pattern.shape), indices[:, piece].size + len(values[piece])


def _stored(A: SparseTensor) -> torch.Tensor:
    """The values of the entries, without padding."""
    return of_entries(A.pattern, A.values.detach())


def _dlmc(A: SparseTensor) -> Iterator[tuple[bytes, int]]:
    """A line of sizes, a line of row offsets, and a line of column indices.

    Raises:
        FormatError: a stored value isn't 1.
    """
    wrong = (_stored(A) != 1).nonzero()
    if len(wrong):
        raise FormatError(
            f"a .smtx file holds a pattern, but {len(wrong)} of {A.nnz} stored values are not 1, such as {_stored(A)[wrong[0]].item()}: "
            "save the tensor as .mtx, or A.with_values(torch.ones_like(A.values)) for its pattern"
        )
    A = to_format(A, CSR)
    yield f"{A.pattern.shape[0]}, {A.pattern.shape[1]}, {A.nnz}\n".encode(), 0
    for array in A.pattern.level_arrays(1):
        for first in range(0, len(array), ENTRIES):
            piece = array[first : first + ENTRIES]
            yield lines([integer_letters(piece.astype(np.uint64))], SPACE), len(piece)
        yield b"\n", 0


WRITERS: dict[str, Callable[[SparseTensor], Iterator[tuple[bytes, int]]]] = {
    ".mtx": lambda A: _entries(
        A,
        f"%%MatrixMarket matrix coordinate {'real' if A.dtype.is_floating_point else 'integer'} general\n"
        f"{A.pattern.shape[0]} {A.pattern.shape[1]} {A.nnz}\n",
    ),
    ".tns": lambda A: _entries(A, f"# shape: {' '.join(map(str, A.pattern.shape))}\n"),
    ".smtx": _dlmc,
}


def entry_lines(indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...]) -> bytes:
    """The lines of entries: indices from 1, then the shortest text of the value. SciPy formats matrices, if it is installed."""
    text = _by_scipy(indices, _plain(values), shape) if len(shape) == 2 else None
    if text is not None:
        return text
    return lines([*(integer_letters(row.astype(np.uint64) + np.uint64(1)) for row in indices), letters(values)])


def _by_scipy(indices: np.ndarray, values: np.ndarray, shape: tuple[int, ...]) -> bytes | None:
    """The lines of a matrix's entries; None without SciPy, or if reading a value as float64 gives another float32."""
    try:
        from scipy.io import mmwrite
        from scipy.sparse import coo_array
    except ImportError:
        return None
    if values.dtype == np.float32 and not all(are_read(values[first : first + FORMATTED]) for first in range(0, len(values), FORMATTED)):
        return None
    written = BytesIO()
    mmwrite(written, coo_array((values, tuple(indices)), shape), symmetry="general")
    return written.getvalue().split(b"\n", 3)[3]  # without the header, a comment and the sizes


def are_read(values: np.ndarray) -> bool:
    """Whether reading the shortest texts of float32 values as float64 gives the same values.

    Values are rounded twice then. This is wrong only if the text, an integer of at most 9 digits times a power of ten, is next to the
    middle of two float32 values. Such texts are rare.

    >>> are_read(np.array([0.1, 1 / 3], np.float32)), are_read(np.array([0x15AE43FD], np.uint32).view(np.float32))
    (True, False)
    """
    with np.errstate(invalid="ignore"):  # infinite values and NaN
        wide = np.abs(values).astype(np.float64)
        exponents = wide.view(np.int64) >> 52
        scaled = wide * SCALES[exponents]
        doubtful = values[np.abs(np.abs(scaled - np.rint(scaled)) - MIDDLES[exponents]) < 2.0**-20]
    return bool((_parsed(doubtful.astype(f"S{LETTERS}")) == doubtful).all())


def _parsed(text: np.ndarray) -> np.ndarray:
    """Texts read as float64 and then rounded to float32."""
    with np.errstate(over="ignore"):  # the largest values
        return text.astype(np.float64).astype(np.float32)


def lines(columns: list[np.ndarray], end: int = NEWLINE) -> bytes:
    """Columns of characters as lines, with a space between columns and ``end`` after each line.

    >>> lines([integer_letters(np.array([7, 12], np.uint64)), letters(torch.tensor([0.5, -3.0]))])
    b'7 0.5\\n12 -3.0\\n'
    """
    n = len(columns[0])
    between, last = np.full((n, 1), SPACE, dtype=np.uint8), np.full((n, 1), end, dtype=np.uint8)
    parts = [part for column in columns for part in (column, between)][:-1]
    table = np.concatenate([*parts, last], axis=1)
    return bytes(table[table != 0])


def integer_letters(numbers: np.ndarray) -> np.ndarray:
    """The decimal digits of uint64 numbers, uint8 of shape (n, digits), with 0 in unused cells."""
    width = len(str(int(numbers.max(initial=0))))
    letters, dividend = np.empty((len(numbers), width), dtype=np.uint8), numbers
    if width < 10:
        dividend = dividend.astype(np.uint32)
    for column in reversed(range(width)):
        quotient = dividend // 10
        digit = (dividend - quotient * 10).astype(np.uint8) + ZERO
        letters[:, column] = digit if column == width - 1 else np.where(dividend > 0, digit, 0)
        dividend = quotient
    return letters


def letters(values: torch.Tensor) -> np.ndarray:
    """Values as text that parses to the same values, uint8 of shape (n, letters), with 0 in unused cells."""
    numbers = _plain(values)
    if numbers.dtype.kind == "f":
        return _float_letters(numbers)
    # the magnitude of the smallest int64 doesn't fit in int64
    size = np.where(numbers < 0, ~numbers.view(np.uint64) + np.uint64(1), numbers.view(np.uint64))
    sign = np.where(numbers < 0, MINUS, 0).astype(np.uint8)[:, None]
    return np.concatenate([sign, integer_letters(size)], axis=1) if (numbers < 0).any() else integer_letters(size)


def _plain(values: torch.Tensor) -> np.ndarray:
    """Values as float64, float32 or int64."""
    if not values.dtype.is_floating_point:
        return values.to(torch.int64).numpy()
    return (values if values.dtype == torch.float64 else values.to(torch.float32)).numpy()


def _float_letters(numbers: np.ndarray) -> np.ndarray:
    """The shortest text of each value. If parsing it as float64 gives another float32, the float64's text is used instead."""
    text = numbers.astype(f"S{LETTERS}")
    if numbers.dtype == np.float32:
        differs = (_parsed(text) != numbers) & ~np.isnan(numbers)
        text[differs] = numbers[differs].astype(np.float64).astype(f"S{LETTERS}")
    return text.view(np.uint8).reshape(-1, LETTERS)
