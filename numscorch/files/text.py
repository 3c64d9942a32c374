"""Parsing of numbers in text files.

SciPy parses plain Matrix Market files, if it is installed. NumPy parses other tables line by line; to name a line in an error, the
file is read again.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import BufferedIOBase
from itertools import chain, islice
from os import fstat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import FormatError
from ..machine.memory import check_bytes
from ..machine.progress import Progress

PIECE = 1 << 24  # bytes read at once; also the upper bound of a table's line
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
UNPACKED = 1032  # upper bound of the bytes that a byte of a gzip file holds
STREAMED = 1 << 18  # bytes that SciPy's reader gets at once
# marks without a digit between them, as integers of 16 bits: signs and carriage returns need such a neighbour, others may have one
BOUND = (b" -", b" +", b"\t-", b"\t+", b"\n-", b"\n+", b"e-", b"e+", b"E-", b"E+", b"\r\n")
FREE = (b" .", b"\t.", b"\n.", b"-.", b"+.", b".e", b".E", b". ", b".\t", b".\n", b".\r", b"\n\n")
NEIGHBOURS = np.zeros(1 << 16, np.uint8)
NEIGHBOURS[np.frombuffer(b"".join(FREE), ">u2")], NEIGHBOURS[np.frombuffer(b"".join(BOUND), ">u2")] = 1, 2
LINE = 1 << 20  # upper bound of a header's line, in bytes
EVERY = 1 << 12  # lines between updates of the progress
FORMATTED = 1 << 14  # numbers compared with their float32 at once
LOG10_E = 0.4342944819
POWERS = 10.0 ** np.arange(23)
EXACT = 2.0**53  # float64 represents all integers below this


class Text:
    """A reader of a text file: lines of a header, then a table or other content.

    Args:
        path: the file's name, for errors.
        file: the decompressed file.
        packed: the file on disk; its position gives the progress.
        progress: the progress bar.

    Attributes:
        line: the number of the next line, from 1.
        start: the number of the first line of the table.
        comment: what starts a comment in a line of the table; None if it has no comments.
    """

    def __init__(self, path: Path, file: BufferedIOBase, packed: BufferedIOBase, progress: Progress):
        self.path, self.file, self.packed, self.progress = path, file, packed, progress
        self.line, self.start = 1, 1
        self.comment: str | None = None

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

    def table(self, columns: int, rows: int | None = None, first: bytes = b"") -> np.ndarray:
        """The remaining lines as numbers of shape (lines, columns). Blank lines are skipped.

        Args:
            columns: the number of columns.
            rows: the expected number of rows; None accepts any number.
            first: the first line, if it was read before.

        Raises:
            FormatError: a line is malformed, or the number of rows differs; the text names the first such line, or the counts.
        """
        self.start = self.line - bool(first)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy warns if there are no rows
                table = np.loadtxt(chain([first], self._remaining()), comments=self.comment, ndmin=2)
        except FormatError:
            raise
        except ValueError as error:
            raise self._unreadable(columns) from error
        if table.size and table.shape[1] != columns:
            raise self._unreadable(columns)
        if rows is not None and len(table) != rows:
            announced = f"the header announces {rows} entries, but {len(table)} follow"
            if len(table) > rows:
                raise self.error(f"{announced}: remove the rest, or correct it", at=self.line_of(rows))
            raise self.error(f"{announced}: is the file cut short?")
        return table.reshape(-1, columns)

    def _remaining(self) -> Iterator[bytes]:
        """The remaining lines.

        Raises:
            FormatError: a line is longer than a piece.
        """
        while line := self.file.readline(PIECE + 1):
            if len(line) > PIECE:
                raise self.error(f"a line has more than {PIECE} bytes: each line holds one entry")
            self.line += 1
            if self.line % EVERY == 0:
                self.progress.reach(self.packed.tell())
            yield line

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """The number and the text of each line of the table that is not blank, read from the file again."""
        with opened(self.path, progress=False) as text:
            for number, line in enumerate(text.file, 1):
                entry = line.strip() if self.comment is None else line.partition(self.comment.encode())[0].strip()
                if number >= self.start and entry:
                    yield number, entry

    def line_of(self, row: int) -> int:
        """The number of the line that holds a row of the table."""
        return next(number for number, _ in islice(self.rows(), row, None))

    def exact(self, columns: slice) -> np.ndarray | None:
        """Columns of the table as int64; None if a number isn't written as an integer, or overflows."""
        try:
            return np.array([[int(word) for word in line.split()[columns]] for _, line in self.rows()], np.int64)
        except (ValueError, OverflowError):
            return None

    def _unreadable(self, columns: int) -> FormatError:
        """The error for the first line with another number of words or, if there is none, the last line that NumPy read."""
        bad = ((number, line) for number, line in self.rows() if len(line.split()) != columns or number == self.line - 1)
        number, line = next(bad, (self.start, b""))
        text = line.decode(errors="replace")
        wrong = next((f", but {word[:60]!r} is not one" for word in text.split() if not is_number(word)), "")
        return self.error(f"can't read {text[:60]!r}: each line holds {columns} number{'s' if columns > 1 else ''}{wrong}", at=number)

    def rest(self) -> bytes:
        """The remaining content.

        Raises:
            SizeError: the content is larger than the memory limit.
        """
        blocks, size = list[bytes](), 0
        while block := self.file.read(PIECE):
            self.progress.reach(self.packed.tell())
            blocks.append(block)
            size += len(block)
            check_bytes(size, "the data unpacked so far", self.path, "is this the right file?")
        return b"".join(blocks)

    def error(self, problem: str, *, at: int | None = None) -> FormatError:
        """An error that names the file and a line, by default the next one."""
        return FormatError(f"{self.path}, line {self.line if at is None else at}: {problem}")


def by_scipy(text: Text, layout: str, field: str, header: tuple[int, ...], columns: int) -> Any:
    """The rest of a Matrix Market file as an array or a matrix of SciPy, as if it were general; None if it is not plain.

    SciPy skips characters behind a number, and may crash at a NUL or a lone carriage return. So files with letters, with another number
    of separators or without SciPy are read by :meth:`Text.table`, as are malformed ones, whose errors name the line.

    Args:
        text: the file; unchanged if the result is None.
        layout, field, header: the words and the sizes of a header for SciPy.
        columns: the numbers in each line.
    """
    lines, unpacked = header[0] if layout == "array" else header[2], 1 if text.file is text.packed else UNPACKED
    try:
        from scipy.io import mmread
    except ImportError:
        return None
    if 2 * lines * columns > unpacked * fstat(text.packed.fileno()).st_size + 1:  # SciPy allocates memory for all announced lines
        return None
    start, counted = text.file.tell(), 0

    def pieces() -> Iterator[bytes]:
        nonlocal counted
        yield f"%%MatrixMarket matrix {layout} {field} general\n{' '.join(map(str, header))}\n".encode()
        while piece := text.file.read(STREAMED) + text.file.readline(LINE):
            blanks = blanks_in(piece, columns if field in ("integer", "pattern") else 2 * (layout == "coordinate"))
            if blanks is None:
                return
            counted += blanks
            text.progress.reach(text.packed.tell())
            yield piece
        yield b"\n"  # SciPy looks for the end of the last line beyond its memory

    stream = pieces()
    with suppress(ValueError, OverflowError, MemoryError):
        matrix = mmread(SimpleNamespace(read=lambda _: next(stream, b"")))  # SciPy asks for 1024 bytes, and takes what it gets
        if counted == lines * (columns - 1):
            return matrix
    text.file.seek(start)
    return None


def blanks_in(piece: bytes, whole: int = 0) -> int | None:
    """The number of blanks in lines of numbers, each number after one blank or at the start of a line; None for other text.

    NumPy compares 10 characters in the time in which Python's searches read one.

    Args:
        piece: whole lines.
        whole: the number of leading columns of integers.

    >>> blanks_in(b"1 2 3.5\\n", whole=2), blanks_in(b"1 2.5 3\\n", whole=2), blanks_in(b"1 2 3.5\\n", whole=3)
    (2, None, None)
    >>> [blanks_in(piece) for piece in (b"1 -2.5e-3\\r\\n", b"1 2-3", b"1.5.2", b"1e5e7", b"3e ", b"- 1", b"1 2\\r", b"x")]
    [1, None, None, None, None, None, None, None]
    """
    content = b"\n" + piece + b"\n" * (piece[-1:] not in b"\r\n")
    text, marks = np.frombuffer(content, np.uint8), np.frombuffer(content.translate(None, b"0123456789+-\r"), np.uint8)
    is_mark = text - ord("0") > 9  # as unsigned bytes
    places = np.flatnonzero(is_mark[1:] & is_mark[:-1])
    kinds = NEIGHBOURS[text[places] * np.uint16(256) + text[places + 1]]
    if not kinds.all() or np.count_nonzero(kinds == 2) != np.count_nonzero(is_mark) - len(marks):
        return None
    is_blank, is_end, is_dot, is_power = (marks == 32) | (marks == 9), marks == 10, marks == 46, (marks | 32) == 101
    is_inside = is_dot | is_power  # a dot, and then an exponent, may be part of one number
    wrong = [~(is_blank | is_end | is_inside), is_dot[1:] & is_dot[:-1], is_power[:-1] & is_inside[1:]]
    wrong += [is_end[:-column] & is_inside[column:] for column in range(1, whole + 1)]
    return None if any(part.any() for part in wrong) else int(np.count_nonzero(is_blank))


@contextmanager
def opened(path: Path, progress: bool | None = None) -> Iterator[Text]:
    """Open a text file, and decompress it if its name ends in ``.gz`` or it starts like a gzip file.

    Raises:
        FormatError: a ``.gz`` file isn't a gzip file, or is truncated.
        OSError: the file can't be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file, Progress(f"reading {path.name}", size, shown=progress, size=size) as bar:
        is_packed = path.suffix.lower() == ".gz" or file.peek(len(GZIP)).startswith(GZIP)
        try:
            with gzip.open(file) if is_packed else nullcontext(file) as unpacked:
                if is_packed and not size:
                    raise EOFError("it is empty")
                yield Text(path, unpacked, file, bar)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            way_out = "fetch it again" + (", or drop the .gz from its name" if path.suffix.lower() == ".gz" else "")
            raise FormatError(f"{path} is not a whole gzip file ({error}): {way_out}") from error


def is_number(word: str) -> bool:
    """Whether NumPy parses a word of a table as a number.

    >>> [is_number(word) for word in ("-1.5e3", "nan", "1,5", "1_000")]
    [True, True, False, False]
    """
    try:
        float(word)
    except ValueError:
        return False
    return word.isascii() and "_" not in word


def integers(text: bytes) -> np.ndarray | None:
    """The integers of a text as int64, or None if the text holds anything else.

    >>> integers(b"1\\n2e1"), integers(b"1 2.5"), integers(b" ")
    (array([ 1, 20]), None, array([], dtype=int64))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # NumPy warns if there are no numbers
        try:
            parsed = np.loadtxt([text.replace(b"\n", b" ")], comments=None, ndmin=1)
        except ValueError:
            return None
    is_exact = np.isfinite(parsed).all() and (parsed == np.trunc(parsed)).all() and (np.abs(parsed) <= EXACT).all()
    return parsed.astype(np.int64) if is_exact else None


def sizes(text: bytes) -> tuple[int, ...] | None:
    """The sizes in a line, each of at most 19 digits, or None if the line holds anything else.

    >>> sizes(b"2 1000000000000000001"), sizes(b"2 -1"), sizes(b"2 x")
    ((2, 1000000000000000001), None, None)
    """
    words = text.split()
    return tuple(int(word) for word in words) if all(word.isdigit() and len(word) < 20 for word in words) else None


def coordinates_in(text: Text, table: np.ndarray, shape: tuple[int, ...] | None, ndim: int) -> np.ndarray:
    """The leading columns as coordinates from 0, int64 of shape (ndim, n).

    Raises:
        FormatError: an index isn't an integer, or is out of range; the text names the first such line.
    """
    indices = table[:, :ndim]
    if indices.size and indices.max() >= EXACT and (exact := text.exact(slice(ndim))) is not None:
        indices = exact
    elif (indices >= EXACT).any():
        indices = np.where(indices < EXACT, indices, np.nan)  # rounded by float64, so invalid
    bounds = [shape[d] if shape is not None else np.iinfo(np.int64).max for d in range(ndim)]
    wrong = np.stack([~((column >= 1) & (column <= bound)) for column, bound in zip(indices.T, bounds, strict=True)], axis=1)
    wrong |= indices != np.trunc(indices) if indices.dtype.kind == "f" else False
    if wrong.any():
        k, dimension = (int(axis[0]) for axis in np.nonzero(wrong))
        limit = f"1 to {shape[dimension]}" if shape is not None else "1 upwards"
        raise text.error(
            f"index {table[k, dimension]:g} in dimension {dimension} is out of range: indices are integers from {limit}",
            at=text.line_of(k),
        )
    return np.ascontiguousarray(indices.T).astype(np.int64) - 1


def whole_values(text: Text, values: np.ndarray) -> np.ndarray:
    """The last column as int64 if all of its values are integers and float64 can't represent some of them; else unchanged."""
    large = len(values) and bool((np.abs(values) >= EXACT).any())
    exact = text.exact(slice(-1, None)) if large else None
    return values if exact is None else exact[:, 0]


def fits_float32(values: np.ndarray) -> bool:
    """Whether float32 loses nothing of numbers parsed from text: each is the shortest decimal of the nearest float32.

    >>> [fits_float32(np.array([number])) for number in (0.1, 0.12345679, 0.123456789, 16777217.0, 1e300)]
    [True, True, False, False, False]
    """
    with np.errstate(all="ignore"):
        return all(map(_are_shortest, (values[first : first + FORMATTED] for first in range(0, len(values), FORMATTED))))


def _are_shortest(values: np.ndarray) -> bool:
    """Whether each number is the shortest decimal of its nearest float32; rounds to 6 to 9 digits, because formatting is slow."""
    values = values[(values.astype(np.float32) != values) & ~np.isnan(values)]
    is_exact = (np.abs(values) > 1e-13) & (np.abs(values) < 1e15)  # powers of ten up to 10^22 are exact
    narrow, rest = values[is_exact].astype(np.float32), values[~is_exact]
    power = 8 - np.floor(np.log(np.abs(narrow)) * np.float32(LOG10_E)).astype(np.int64)  # 10^9 may be reached just above a power of ten
    up, down = POWERS[np.maximum(power, 0)], POWERS[np.maximum(-power, 0)]
    scaled = narrow.astype(np.float64) * up / down
    shortest = np.rint(scaled) * down / up
    for unit in (10, 100, 1000):
        decimal = np.rint(scaled / unit) * unit * down / up
        shortest = np.where(decimal.astype(np.float32) == narrow, decimal, shortest)
    formatted = rest.astype(np.float32).astype(str).astype(np.float64)
    return bool((shortest == values[is_exact]).all() and (formatted == rest).all())
