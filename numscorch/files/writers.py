"""Writers of sparse tensors in text: Matrix Market, FROSTT and DLMC files, which are read again exactly.

Text is made piece by piece, as a table of letters: a row for each line, whose unused places are dropped.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from ..convert.dense import to_format
from ..errors import FormatError, UnsupportedError
from ..ir.format import CSR
from ..machine.atomic_files import replacing
from ..tensors.packing import coordinates, of_entries
from ..tensors.sparse_tensor import SparseTensor
from .progress import Progress

ENTRIES = 1 << 18  # that become text at once
LETTERS = 32  # of a float, at the most
MINUS, SPACE, NEWLINE, ZERO = b"- \n0"


def write_text(A: SparseTensor, path: str | PathLike[str], suffix: str, progress: bool | None = None) -> None:
    """Write a tensor of any format to a text file, whose old content stays if this fails. O(stored entries).

    ===================  ===========================================================================
    .mtx, .mtx.gz        Matrix Market: a matrix of any data type that is not complex
    .tns, .tns.gz        FROSTT: a tensor of one dimension or more, likewise, after a line ``# shape:``
    .smtx, .smtx.gz      DLMC: the pattern of a matrix whose stored values are all 1
    ===================  ===========================================================================

    ``numscorch.load(path, A.format, dtype=A.dtype)`` reads the same tensor. Gradients are not kept.

    Args:
        A: the tensor.
        path: the file.
        suffix: which of the above; ``.gz`` files are packed.
        progress: whether to show a bar on stderr; None does for more than 64 MB of text, where stderr is a terminal.

    Raises:
        FormatError: the tensor is no matrix, or a pattern file would lose its values.
        UnsupportedError: complex values.
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
        raise FormatError(f"{name} would hold a matrix, but the tensor has {A.ndim} dimensions: save it as .tns, or as .npz")
    if not A.ndim:
        raise FormatError(f"{name} would hold indices, but the tensor has no dimensions: save it as .npz")
    if A.dtype.is_complex and kind != ".smtx":
        raise UnsupportedError(f"{name} would hold {A.dtype} values, which are not written as text: save the tensor as .npz")


def _matrix_market(A: SparseTensor) -> Iterator[tuple[bytes, int]]:
    field = "real" if A.dtype.is_floating_point else "integer"
    yield f"%%MatrixMarket matrix coordinate {field} general\n{A.pattern.shape[0]} {A.pattern.shape[1]} {A.nnz}\n".encode(), 0
    yield from _entries(A)


def _frostt(A: SparseTensor) -> Iterator[tuple[bytes, int]]:
    yield f"# shape: {' '.join(map(str, A.pattern.shape))}\n".encode(), 0
    yield from _entries(A)


def _entries(A: SparseTensor) -> Iterator[tuple[bytes, int]]:
    """A line for each entry: its indices from 1, and its value."""
    indices, values = coordinates(A.pattern).numpy(), _stored(A)
    for first in range(0, len(values), ENTRIES):
        piece = slice(first, first + ENTRIES)
        columns = [*(integer_letters(row[piece].astype(np.uint64) + np.uint64(1)) for row in indices), letters(values[piece])]
        yield lines(columns), sum(map(len, columns))


def _stored(A: SparseTensor) -> torch.Tensor:
    """The values of entries, without those of positions that hold none."""
    return of_entries(A.pattern, A.values.detach())


def _dlmc(A: SparseTensor) -> Iterator[tuple[bytes, int]]:
    """A line of sizes, one of row offsets, one of columns; the values are not there, and so must be 1."""
    wrong = (_stored(A) != 1).nonzero()
    if len(wrong):
        raise FormatError(
            f"a .smtx file holds a pattern, but {len(wrong)} of {A.nnz} stored values are not 1, as {_stored(A)[wrong[0]].item()}: "
            "save the tensor as .mtx, or A.with_values(torch.ones_like(A.values)), which has its pattern"
        )
    A = to_format(A, CSR)
    yield f"{A.pattern.shape[0]}, {A.pattern.shape[1]}, {A.nnz}\n".encode(), 0
    for array in A.pattern.level_arrays(1):
        for first in range(0, len(array), ENTRIES):
            piece = array[first : first + ENTRIES]
            yield lines([integer_letters(piece.astype(np.uint64))], SPACE), len(piece)
        yield b"\n", 0


WRITERS: dict[str, Callable[[SparseTensor], Iterator[tuple[bytes, int]]]] = {".mtx": _matrix_market, ".tns": _frostt, ".smtx": _dlmc}


def lines(columns: list[np.ndarray], end: int = NEWLINE) -> bytes:
    """Columns of letters, a space between them, and an end after each row.

    >>> lines([integer_letters(np.array([7, 12], np.uint64)), letters(torch.tensor([0.5, -3.0]))])
    b'7 0.5\\n12 -3.0\\n'
    """
    n = len(columns[0])
    between, last = np.full((n, 1), SPACE, dtype=np.uint8), np.full((n, 1), end, dtype=np.uint8)
    parts = [part for column in columns for part in (column, between)][:-1]
    table = np.concatenate([*parts, last], axis=1)
    return bytes(table[table != 0])


def integer_letters(numbers: np.ndarray) -> np.ndarray:
    """The digits of uint64 numbers, shape (n, digits) of uint8, with 0 for places that aren't used."""
    width = len(str(int(numbers.max(initial=0))))
    letters, rest = np.empty((len(numbers), width), dtype=np.uint8), numbers
    if width < 10:
        rest = rest.astype(np.uint32)
    for place in reversed(range(width)):
        after = rest // 10
        digit = (rest - after * 10).astype(np.uint8) + ZERO
        letters[:, place] = digit if place == width - 1 else np.where(rest > 0, digit, 0)
        rest = after
    return letters


def letters(values: torch.Tensor) -> np.ndarray:
    """Values as text that is read again as the same, shape (n, letters) of uint8, with 0 for places that aren't used."""
    if values.dtype.is_floating_point:
        return _float_letters(values)
    numbers = values.to(torch.int64).numpy()
    # the magnitude of the smallest number has no int64
    size = np.where(numbers < 0, ~numbers.view(np.uint64) + np.uint64(1), numbers.view(np.uint64))
    sign = np.where(numbers < 0, MINUS, 0).astype(np.uint8)[:, None]
    return np.concatenate([sign, integer_letters(size)], axis=1) if (numbers < 0).any() else integer_letters(size)


def _float_letters(values: torch.Tensor) -> np.ndarray:
    """The shortest text of each; where a reader that rounds to float64 first would get another float32, that of the float64."""
    numbers = (values if values.dtype == torch.float64 else values.to(torch.float32)).numpy()
    text = numbers.astype(f"S{LETTERS}")
    if numbers.dtype == np.float32:
        with np.errstate(over="ignore"):
            read = text.astype(np.float64).astype(np.float32)
        other = (read != numbers) & ~np.isnan(numbers)
        text[other] = numbers[other].astype(np.float64).astype(f"S{LETTERS}")
    return text.view(np.uint8).reshape(-1, LETTERS)
