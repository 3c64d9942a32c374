"""Numbers in text files: read piece by piece, each parsed all at once, and on failure again to name the line."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from ..errors import FormatError
from ..machine.memory import check_bytes
from .progress import Progress

PIECE = 1 << 24  # bytes that are parsed at once, and the longest line of a table
LINE = 1 << 20  # bytes of a header's line
EXACT = 2.0**53  # below which float64 has every whole number


@dataclass(frozen=True)
class Piece:
    """Whole lines of a file; ``line`` is the number of the first one, from 1."""

    path: Path
    content: bytes
    line: int = 1

    def error(self, problem: str, *, at: int = 0) -> FormatError:
        """The error that names the file and the line, counted from the first one."""
        return FormatError(f"{self.path}, line {self.line + at}: {problem}")


class Text:
    """The rest of a text file, of which no more than a piece is in memory.

    Args:
        path: the file's name, for errors.
        file: what is left to read, unpacked.
        packed: the file itself, whose place tells how much was read.
        progress: is told so.

    Where ``comment`` is set, pieces come without what follows it on a line.
    """

    def __init__(self, path: Path, file: BufferedIOBase, packed: BufferedIOBase, progress: Progress):
        self.path, self.file, self.packed, self.progress = path, file, packed, progress
        self.line, self.held, self.comment = 1, b"", b""

    def next_line(self, what: str, comment: bytes = b"", longest: int = LINE) -> bytes:
        """The next line that is not blank nor a comment.

        Raises:
            FormatError: the file ends before, or the line is longer than any such line.
        """
        while line := self.next_filled(what, longest):
            if not (comment and line.startswith(comment)):
                return line
        raise self.error(f"the file ends before {what}")

    def next_filled(self, what: str = "an entry", longest: int = LINE) -> bytes:
        """The next line that is not blank, stripped; nothing where the file ends before."""
        while line := self.file.readline(longest + 1):
            if len(line) > longest:
                raise self.error(f"{what} should be here, but this line has more than {longest} bytes")
            self.line += 1
            if stripped := line.strip():
                return stripped
        return b""

    def put_back(self, line: bytes) -> None:
        """Have the last line read again by :meth:`pieces`."""
        self.held, self.line = line + b"\n", self.line - 1

    def pieces(self) -> Iterator[Piece]:
        """What is left, in whole lines.

        Raises:
            FormatError: a line is longer than a piece.
        """
        rest, self.held = self.held, b""
        while read := self.file.read(PIECE):
            self.progress.reach(self.packed.tell())
            whole, end, rest = (rest + read).rpartition(b"\n")
            if len(rest) > PIECE:
                raise self.error(f"a line has more than {PIECE} bytes: each line holds one entry")
            if end:
                yield Piece(self.path, self._uncommented(whole), self.line)
                self.line += whole.count(b"\n") + 1
        if rest:
            yield Piece(self.path, self._uncommented(rest), self.line)

    def _uncommented(self, lines: bytes) -> bytes:
        if not self.comment or self.comment not in lines:
            return lines
        return b"\n".join(line.partition(self.comment)[0] for line in lines.split(b"\n"))

    def rest(self) -> bytes:
        """All that is left.

        Raises:
            SizeError: it is larger than the memory limit.
        """
        read, size = [self.held], 0
        while piece := self.file.read(PIECE):
            self.progress.reach(self.packed.tell())
            read.append(piece)
            size += len(piece)
            check_bytes(size, "what was unpacked so far", self.path, "is this the file that you mean?")
        return b"".join(read)

    def error(self, problem: str, *, at: int | None = None) -> FormatError:
        """The error that names the file and the next line, or another one."""
        return FormatError(f"{self.path}, line {self.line if at is None else at}: {problem}")


@contextmanager
def opened(path: Path, progress: bool | None = None) -> Iterator[Text]:
    """A text file, unpacked if its name ends in ``.gz``.

    Raises:
        FormatError: the file is no gzip file, or is cut short.
        OSError: it can't be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file, Progress(f"reading {path.name}", size, shown=progress, size=size) as bar:
        if path.suffix.lower() != ".gz":
            yield Text(path, file, file, bar)
            return
        try:
            with gzip.open(file) as unpacked:
                if not unpacked.peek(1) and not size:
                    raise EOFError("it is empty")
                yield Text(path, unpacked, file, bar)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FormatError(f"{path} is not a whole gzip file ({error}): fetch it again, or drop the .gz from its name") from error


def numbers(text: bytes) -> np.ndarray | None:
    """All numbers of a text as float64, or None if anything else is in it.

    >>> numbers(b"1 2.5\\n-3e2"), numbers(b"1 x"), numbers(b" ")
    (array([   1. ,    2.5, -300. ]), None, array([], dtype=float64))
    """
    words = len(_words(text))
    if not words:
        return np.empty(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            parsed = np.fromstring(text.strip(), dtype=np.float64, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    # fromstring takes 1.5-2 for two numbers
    return parsed if parsed.size == words else None


def _words(text: bytes) -> np.ndarray:
    """Where each word starts."""
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
    """All numbers of a text as int64, or None if anything else is in it.

    >>> integers(b"1 2"), integers(b"1 2.5")
    (array([1, 2]), None)
    """
    parsed = numbers(text)
    if parsed is None or not np.isfinite(parsed).all() or (parsed != np.trunc(parsed)).any() or (np.abs(parsed) > EXACT).any():
        return None
    return parsed.astype(np.int64)


def sizes(text: bytes) -> tuple[int, ...] | None:
    """All numbers of a line as sizes, however large, or None if anything else is in it.

    >>> sizes(b"2 1000000000000000001"), sizes(b"2 -1"), sizes(b"2 x")
    ((2, 1000000000000000001), None, None)
    """
    words = text.split()
    return tuple(int(word) for word in words) if all(word.isdigit() and len(word) < 20 for word in words) else None


def rows_of(text: Text, columns: int, rows: int | None = None) -> Iterator[tuple[Piece, np.ndarray]]:
    """The lines of a table, a piece at a time: numbers of shape (lines, columns); blank lines are skipped.

    Args:
        text: what to parse.
        columns: how many numbers each line has.
        rows: how many lines there must be; any number if None. What is over is counted, not kept.

    Raises:
        FormatError: with the first line that is wrong, or the counts.
    """
    count = 0
    for piece in text.pieces():
        numbers = _table(piece, columns)
        count += len(numbers)
        if len(numbers) and (rows is None or count <= rows):
            yield piece, numbers
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
    """The leading columns as coordinates from 0, int64 of shape (ndim, n), in range.

    Raises:
        FormatError: with the line of the first entry that is no integer, or out of range.
    """
    written = rows[:, :ndim]
    if written.size and written.max() >= EXACT and (exact := _exact(piece, slice(ndim))) is not None:
        written = exact
    elif (written >= EXACT).any():
        written = np.where(written < EXACT, written, np.nan)  # rounded
    bounds = [shape[d] if shape is not None else np.iinfo(np.int64).max for d in range(ndim)]
    wrong = np.stack([~((column >= 1) & (column <= bound)) for column, bound in zip(written.T, bounds, strict=True)], axis=1)
    wrong |= written != np.trunc(written) if written.dtype.kind == "f" else False
    if wrong.any():
        k, dimension = (int(place[0]) for place in np.nonzero(wrong))
        limit = f"1 to {shape[dimension]}" if shape is not None else "1 upwards"
        shown = f"{rows[k, dimension]:g}"
        raise piece.error(f"index {shown} in dimension {dimension} is outside: indices are integers from {limit}", at=_line_of(piece, k))
    return np.ascontiguousarray(written.T).astype(np.int64) - 1


def whole_values(piece: Piece, values: np.ndarray) -> np.ndarray:
    """The last column as int64 where some of its numbers are too large for float64 and all are whole; else as it is."""
    large = len(values) and bool((np.abs(values) >= EXACT).any())
    exact = _exact(piece, slice(-1, None)) if large else None
    return values if exact is None else exact[:, 0]


def _exact(piece: Piece, columns: slice) -> np.ndarray | None:
    """Columns as int64, digit by digit; None where a number isn't written as one."""
    try:
        return np.array([[int(word) for word in line.split()[columns]] for line in piece.content.split(b"\n") if line.strip()], np.int64)
    except (ValueError, OverflowError):
        return None


def _line_of(piece: Piece, entry: int) -> int:
    """The line of the k-th entry; blank lines don't count."""
    filled = [at for at, line in enumerate(piece.content.split(b"\n")) if line.strip()]
    return filled[entry]
