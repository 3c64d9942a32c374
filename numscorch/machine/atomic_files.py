"""Atomic file replacement: after a failure, the old file is unchanged and no partial file is left."""

from __future__ import annotations

import lzma
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOENT
from os import PathLike
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

# errors raised by reading a damaged archive; RuntimeError includes NotImplementedError
NOT_WHOLE = (ValueError, EOFError, OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` on exit, if no exception was raised.

    The permissions of an existing file are kept. If ``path`` is a link, its target is replaced.

    Raises:
        OSError: the file cannot be written.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = path.write_text("old")
    >>> with suppress(ZeroDivisionError), replacing(path) as file:
    ...     _ = file.write(b"half of it") + 1 // 0
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('old', 1)
    """
    final = Path(os.path.realpath(path))
    if final.exists() and not final.is_file():
        raise OSError(f"{path} is not a regular file and cannot be replaced: choose another path")
    if not final.parent.is_dir():
        raise FileNotFoundError(ENOENT, f"no such folder to write {final.name} in: make it first", str(path))
    draft = final.with_name(f".{final.name[:100]}.{token_hex(4)}.part")
    opened = _opened(draft, path)
    try:
        with opened as file:
            yield file
        with suppress(FileNotFoundError):
            shutil.copymode(final, draft)
        os.replace(draft, final)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _opened(draft: Path, path: str | PathLike[str]) -> BinaryIO:
    """Create the temporary file. Errors name the requested file."""
    try:
        return draft.open("xb")
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
