"""Atomic files: other processes see a complete file or none. After a failure, the old file is unchanged.

:func:`replacing` writes a user's file. The other functions serve the cache, where links are replaced instead of followed, and only
regular files are read.
"""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ENOENT
from os import PathLike
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

DRAFT = ".numscorch.tmp"  # suffix of temporary files
UNFOLLOWED = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)  # without O_NONBLOCK, opening a FIFO would wait for a writer
# errors raised by reading a damaged archive; RuntimeError includes NotImplementedError
NOT_WHOLE = (ValueError, EOFError, OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` on exit, if no exception was raised.

    The permissions of an existing file are kept. If ``path`` is a link, its target is replaced.

    Raises:
        OSError: the file cannot be written.

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
        raise FileNotFoundError(ENOENT, f"no such folder to write {final.name} in: create it first", str(path))
    draft = final.with_name(f".{final.name[:100]}.{token_hex(4)}.part")
    try:
        opened = draft.open("xb")
    except OSError as error:  # name the requested file
        raise type(error)(error.errno, error.strerror, str(path)) from error
    try:
        with opened as file:
            yield file
        with suppress(FileNotFoundError):
            shutil.copymode(final, draft)
        os.replace(draft, final)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_whole(path: Path) -> bytes | None:
    """The bytes of a regular file; None for links, folders, FIFOs, missing and unreadable files.

    >>> read_whole(Path(tempfile.gettempdir())) is None
    True
    """
    with suppress(OSError), open(path, "rb", opener=_plain) as file:
        return file.read()
    return None


def _plain(path: str, flags: int) -> int:
    """Open a regular file, without following links or blocking; raises OSError for any other kind of file."""
    handle = os.open(path, flags | UNFOLLOWED)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(EINVAL, "not a regular file", path)
    return handle


def write_whole(path: Path, data: bytes) -> None:
    """Write to a temporary file and move it into place.

    Raises:
        OSError: the file cannot be written.
    """
    move(drafted(path, data), path)


def drafted(path: Path, data: bytes) -> Path:
    """Write to a temporary file in the folder of ``path``, for :func:`move`.

    Raises:
        OSError: the file cannot be written.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=DRAFT)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return Path(temporary)


def move(draft: Path, path: Path) -> None:
    """Move a draft into place, replacing a folder if there is one. On failure, the draft is deleted.

    Raises:
        OSError: the file cannot be moved.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with its contents, if it exists.

    Raises:
        OSError: it cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
