"""Atomic files of the cache: other processes see a complete file or none, and only regular files are read."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from errno import EINVAL
from pathlib import Path

DRAFT = ".numscorch.tmp"  # suffix of temporary files
UNFOLLOWED = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)  # O_NONBLOCK: opening a FIFO would wait for a writer


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
