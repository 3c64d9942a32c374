"""Numbers in text files: parsed all at once, and on failure read again to name the line."""

from __future__ import annotations

import gzip
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import FormatError


@dataclass(frozen=True)
class Text:
    """The rest of a file, after the lines already read.

    ``line`` is the number of its first line, from 1.
    """

    path: Path
    content: bytes
    line: int = 1

    def next_line(self, what: str, comment: bytes = b"") -> tuple[bytes, Text]:
        """The next line that is not blank nor a comment, and the text after it.

        Raises:
            FormatError: the file ends before.
        """
        rest, line = self.content, self.line
        while rest:
            first, _, rest = rest.partition(b"\n")
            line += 1
            stripped = first.strip()
            if stripped and not (comment and stripped.startswith(comment)):
                return stripped, Text(self.path, rest, line)
        raise self.error(f"the file ends before {what}", at=line)

    def error(self, problem: str, *, at: int | None = None) -> FormatError:
        """The error that names file and line."""
        return FormatError(f"{self.path}, line {self.line if at is None else at}: {problem}")


def read(path: Path) -> Text:
    """A text file, unpacked if its name ends in ``.gz``.

    Raises:
        FormatError: the file is no gzip file, or is cut short.
        OSError: it can't be read.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FormatError(f"{path} is not a whole gzip file ({error}): fetch it again, or drop the .gz from its name") from error
    return Text(path, content)


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
    if parsed is None or not np.isfinite(parsed).all() or (parsed != np.trunc(parsed)).any() or (np.abs(parsed) > 2.0**53).any():
        return None
    return parsed.astype(np.int64)


def table(text: Text, columns: int, rows: int | None = None) -> np.ndarray:
    """The numbers of a text with a fixed number of them on each line; blank lines are skipped. O(size of the text).

    Args:
        text: what to parse.
        columns: how many numbers each line has.
        rows: how many lines there must be; any number if None.

    Raises:
        FormatError: with the first line that is wrong, or the counts.
    """
    content = text.content.strip()
    found = numbers(content)
    if found is None or not _is_regular(content, columns):
        _find_bad_line(text, columns)
    found = np.empty(0) if found is None else found
    if rows is not None and found.size != rows * columns:
        raise text.error(f"the header announces {rows} entries, but {found.size // columns} follow: is the file cut short?")
    return found.reshape(-1, columns)


def _find_bad_line(text: Text, columns: int) -> None:
    for at, line in enumerate(text.content.split(b"\n")):
        parsed = numbers(line)
        if parsed is None or parsed.size not in (0, columns):
            shown = line.decode(errors="replace").strip()[:60]
            raise text.error(f"can't read {shown!r}: each line holds {columns} number{'s' if columns > 1 else ''}", at=text.line + at)


def coordinate_columns(text: Text, entries: np.ndarray, shape: tuple[int, ...] | None, ndim: int) -> np.ndarray:
    """The leading columns as coordinates from 0, int64 of shape (ndim, n), in range.

    Raises:
        FormatError: with the line of the first entry that is no integer, or out of range.
    """
    written = entries[:, :ndim]
    largest = np.array(shape if shape is not None else (2**53,) * ndim, dtype=np.float64)
    wrong = ~((written >= 1) & (written <= largest) & (written == np.trunc(written)))
    if wrong.any():
        k, dimension = (int(place[0]) for place in np.nonzero(wrong))
        limit = f"1 to {shape[dimension]}" if shape is not None else "1 upwards"
        raise text.error(
            f"index {written[k, dimension]:g} in dimension {dimension} is outside: indices are integers from {limit}", at=_line_of(text, k)
        )
    return np.ascontiguousarray(written.T).astype(np.int64) - 1


def _line_of(text: Text, entry: int) -> int:
    """The line of the k-th entry; blank lines don't count."""
    filled = [at for at, line in enumerate(text.content.split(b"\n")) if line.strip()]
    return text.line + filled[entry]
