"""Parsing of numbers in text files.

Files are read in pieces of 16 MB, and each piece is parsed by numpy at once. If that fails, the piece is parsed again line by line, so
that the error names the line.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from ..errors import FormatError
from ..machine.memory import check_bytes
from ..machine.progress import Progress

PIECE = 1 << 24  # bytes parsed at once; also the upper bound of a table's line
LINE = 1 << 20  # upper bound of a header's line, in bytes
FORMATTED = 1 << 14  # numbers compared with their float32 at once
POWERS = 10.0 ** np.arange(23)
EXACT = 2.0**53  # float64 represents all integers below this


@dataclass(frozen=True)
class Piece:
    """Complete lines of a file; ``line`` is the number of the first line, from 1."""

    path: Path
    content: bytes
    line: int = 1

    def error(self, problem: str, *, at: int = 0) -> FormatError:
        """An error that names the file and the line ``at`` lines after the first one."""
        return FormatError(f"{self.path}, line {self.line + at}: {problem}")


class Text:
    """A reader of a text file that keeps at most one piece in memory.

    If ``comment`` is set, pieces are returned without comments: the rest of a line from that byte string on.

    Args:
        path: the file's name, for errors.
        file: the decompressed file.
        packed: the file on disk; its position gives the progress.
        progress: the progress bar.
    """

    def __init__(self, path: Path, file: BufferedIOBase, packed: BufferedIOBase, progress: Progress):
        self.path, self.file, self.packed, self.progress = path, file, packed, progress
        self.line, self.pushed_back, self.comment = 1, b"", b""

    def next_line(self, what: str, comment: bytes = b"", longest: int = LINE) -> bytes:
        """The next line that is neither blank nor a comment.

        Args:
            what: the name of the expected line, for errors.
            comment: the start of comment lines; empty if the file has no comments.
            longest: the upper bound of the line, in bytes.

        Raises:
            FormatError: the file ends, or the line is too long.
        """
        while line := self.next_filled(what, longest):
            if not (comment and line.startswith(comment)):
                return line
        raise self.error(f"the file ends before {what}")

    def next_filled(self, what: str = "an entry", longest: int = LINE) -> bytes:
        """The next line that is not blank, stripped; empty at the end of the file.

        Raises:
            FormatError: the line is longer than ``longest``.
        """
        while line := self.file.readline(longest + 1):
            if len(line) > longest:
                raise self.error(f"expected {what}, but this line has more than {longest} bytes")
            self.line += 1
            if stripped := line.strip():
                return stripped
        return b""

    def put_back(self, line: bytes) -> None:
        """Return the last line to the input of :meth:`pieces`."""
        self.pushed_back, self.line = line + b"\n", self.line - 1

    def pieces(self) -> Iterator[Piece]:
        """The remaining lines in pieces.

        Raises:
            FormatError: a line is longer than a piece.
        """
        partial_line, self.pushed_back = self.pushed_back, b""
        while block := self.file.read(PIECE):
            self.progress.reach(self.packed.tell())
            complete, end, partial_line = (partial_line + block).rpartition(b"\n")
            if len(partial_line) > PIECE:
                raise self.error(f"a line has more than {PIECE} bytes: each line holds one entry")
            if end:
                yield Piece(self.path, self._without_comments(complete), self.line)
                self.line += complete.count(b"\n") + 1
        if partial_line:
            yield Piece(self.path, self._without_comments(partial_line), self.line)

    def _without_comments(self, lines: bytes) -> bytes:
        if not self.comment or self.comment not in lines:
            return lines
        return b"\n".join(line.partition(self.comment)[0] for line in lines.split(b"\n"))

    def rest(self) -> bytes:
        """The remaining content.

        Raises:
            SizeError: the content is larger than the memory limit.
        """
        blocks, size = [self.pushed_back], 0
        while block := self.file.read(PIECE):
            self.progress.reach(self.packed.tell())
            blocks.append(block)
            size += len(block)
            check_bytes(size, "the data unpacked so far", self.path, "is this the right file?")
        return b"".join(blocks)

    def error(self, problem: str, *, at: int | None = None) -> FormatError:
        """An error that names the file and a line, by default the next one."""
        return FormatError(f"{self.path}, line {self.line if at is None else at}: {problem}")


@contextmanager
def opened(path: Path, progress: bool | None = None) -> Iterator[Text]:
    """Open a text file, and decompress it if its name ends in ``.gz``.

    Raises:
        FormatError: a ``.gz`` file isn't a gzip file, or is truncated.
        OSError: the file can't be read.
    """
    size, is_packed = path.stat().st_size, path.suffix.lower() == ".gz"
    with path.open("rb") as file, Progress(f"reading {path.name}", size, shown=progress, size=size) as bar:
        try:
            with gzip.open(file) if is_packed else nullcontext(file) as unpacked:
                if is_packed and not size:
                    raise EOFError("it is empty")
                yield Text(path, unpacked, file, bar)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FormatError(f"{path} is not a whole gzip file ({error}): fetch it again, or drop the .gz from its name") from error


def numbers(text: bytes) -> np.ndarray | None:
    """The numbers of a text as float64, or None if the text holds anything else.

    >>> numbers(b"1 2.5\\n-3e2"), numbers(b"1 x"), numbers(b" ")
    (array([   1. ,    2.5, -300. ]), None, array([], dtype=float64))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            parsed = np.fromstring(text.strip(), dtype=np.float64, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    # fromstring parses 1.5-2 as two numbers
    return parsed if parsed.size == len(_words(text)) else None


def _words(text: bytes) -> np.ndarray:
    """The start of each word."""
    letters = np.frombuffer(text, dtype=np.uint8)
    starts = (letters != 32) & ((letters < 9) | (letters > 13))
    starts[1:] &= ~starts[:-1]
    return np.flatnonzero(starts)


def _is_regular(text: bytes, columns: int) -> bool:
    """Whether every line has the same number of words."""
    words, ends = _words(text), np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
    if len(words) != columns * (len(ends) + 1):
        return False
    return bool((words[columns::columns] > ends).all() and (words[columns - 1 : -1 : columns] < ends).all())


def integers(text: bytes) -> np.ndarray | None:
    """The integers of a text as int64, or None if the text holds anything else.

    >>> integers(b"1 2"), integers(b"1 2.5")
    (array([1, 2]), None)
    """
    parsed = numbers(text)
    if parsed is None or not np.isfinite(parsed).all() or (parsed != np.trunc(parsed)).any() or (np.abs(parsed) > EXACT).any():
        return None
    return parsed.astype(np.int64)


def sizes(text: bytes) -> tuple[int, ...] | None:
    """The sizes in a line, each of at most 19 digits, or None if the line holds anything else.

    >>> sizes(b"2 1000000000000000001"), sizes(b"2 -1"), sizes(b"2 x")
    ((2, 1000000000000000001), None, None)
    """
    words = text.split()
    return tuple(int(word) for word in words) if all(word.isdigit() and len(word) < 20 for word in words) else None


def rows_of(text: Text, columns: int, rows: int | None = None) -> Iterator[tuple[Piece, np.ndarray]]:
    """The rows of a table, one piece at a time, as numbers of shape (lines, columns). Blank lines are skipped.

    Args:
        text: the file.
        columns: the number of columns.
        rows: the expected number of rows; None accepts any number.

    Raises:
        FormatError: a line is malformed, or the number of rows differs; the text names the first such line, or the counts.
    """
    count, surplus = 0, None
    for piece in text.pieces():
        numbers = _table(piece, columns)
        if rows is not None and surplus is None and count + len(numbers) > rows:
            surplus = piece.line + _line_of(piece, rows - count)
        count += len(numbers)
        if len(numbers) and surplus is None:
            yield piece, numbers
    if surplus is not None:
        raise text.error(f"the header announces {rows} entries, but {count} follow: remove the rest, or correct it", at=surplus)
    if rows is not None and count != rows:
        raise text.error(f"the header announces {rows} entries, but {count} follow: is the file cut short?")


def _table(piece: Piece, columns: int) -> np.ndarray:
    content = piece.content.strip()
    table = numbers(content)
    if table is None or (table.size and not _is_regular(content, columns)):
        _find_bad_line(piece, columns)
    return (np.empty(0) if table is None else table).reshape(-1, columns)


def _find_bad_line(piece: Piece, columns: int) -> None:
    for at, line in enumerate(piece.content.split(b"\n")):
        parsed = numbers(line)
        if parsed is None or parsed.size not in (0, columns):
            shown = line.decode(errors="replace").strip()[:60]
            raise piece.error(f"can't read {shown!r}: each line holds {columns} number{'s' if columns > 1 else ''}", at=at)


def coordinates_in(piece: Piece, rows: np.ndarray, shape: tuple[int, ...] | None, ndim: int) -> np.ndarray:
    """The leading columns as coordinates from 0, int64 of shape (ndim, n).

    Raises:
        FormatError: an index isn't an integer, or is out of range; the text names the first such line.
    """
    indices = rows[:, :ndim]
    if indices.size and indices.max() >= EXACT and (exact := _exact(piece, slice(ndim))) is not None:
        indices = exact
    elif (indices >= EXACT).any():
        indices = np.where(indices < EXACT, indices, np.nan)  # rounded by float64, so invalid
    bounds = [shape[d] if shape is not None else np.iinfo(np.int64).max for d in range(ndim)]
    wrong = np.stack([~((column >= 1) & (column <= bound)) for column, bound in zip(indices.T, bounds, strict=True)], axis=1)
    wrong |= indices != np.trunc(indices) if indices.dtype.kind == "f" else False
    if wrong.any():
        k, dimension = (int(axis[0]) for axis in np.nonzero(wrong))
        limit = f"1 to {shape[dimension]}" if shape is not None else "1 upwards"
        raise piece.error(
            f"index {rows[k, dimension]:g} in dimension {dimension} is out of range: indices are integers from {limit}",
            at=_line_of(piece, k),
        )
    return np.ascontiguousarray(indices.T).astype(np.int64) - 1


def whole_values(piece: Piece, values: np.ndarray) -> np.ndarray:
    """The last column as int64 if all of its values are integers and float64 can't represent some of them; else unchanged."""
    large = len(values) and bool((np.abs(values) >= EXACT).any())
    exact = _exact(piece, slice(-1, None)) if large else None
    return values if exact is None else exact[:, 0]


def fits_float32(values: np.ndarray) -> bool:
    """Whether float32 loses nothing of numbers parsed from text: each is the shortest decimal of the nearest float32.

    >>> [fits_float32(np.array([number])) for number in (0.1, 0.12345679, 0.123456789, 16777217.0, 1e300)]
    [True, True, False, False, False]
    """
    with np.errstate(all="ignore"):
        rest = values[(values.astype(np.float32) != values) & ~np.isnan(values)]
        return all(map(_are_shortest, (rest[first : first + FORMATTED] for first in range(0, len(rest), FORMATTED))))


def _are_shortest(values: np.ndarray) -> bool:
    """Whether each number is the shortest decimal of its nearest float32; rounds to 6 to 9 digits, because formatting is slow."""
    is_exact = (np.abs(values) > 1e-14) & (np.abs(values) < 1e15)  # powers of ten up to 10^22 are exact
    doubtful, rest = [values[~is_exact]], values[is_exact]
    for digits in range(6, 10):
        narrow, power = rest.astype(np.float32), digits - 1 - np.floor(np.log10(np.abs(rest))).astype(np.int64)
        up, down = POWERS[np.maximum(power, 0)], POWERS[np.maximum(-power, 0)]
        decimal = np.rint(narrow.astype(np.float64) * up / down) * down / up
        is_found = decimal.astype(np.float32) == narrow
        doubtful.append(rest[is_found & (decimal != rest)])
        rest = rest[~is_found]
    formatted = np.concatenate([*doubtful, rest])
    return bool((formatted.astype(np.float32).astype(str).astype(np.float64) == formatted).all())


def _exact(piece: Piece, columns: slice) -> np.ndarray | None:
    """The columns parsed as int64 from the text; None if a number isn't written as an integer, or overflows."""
    try:
        return np.array([[int(word) for word in line.split()[columns]] for line in piece.content.split(b"\n") if line.strip()], np.int64)
    except (ValueError, OverflowError):
        return None


def _line_of(piece: Piece, entry: int) -> int:
    """The index of an entry's line in its piece; blank lines hold no entry."""
    return [at for at, line in enumerate(piece.content.split(b"\n")) if line.strip()][entry]
