"""Files of the cache, read and written whole: other processes see a whole file or none, and only plain files are read."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from errno import EINVAL
from pathlib import Path

DRAFT = ".numscorch.tmp"  # how the names of temporary files end
UNFOLLOWED = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)  # without the first, opening a FIFO waits for a writer


def read_whole(path: Path) -> bytes | None:
    """The bytes of a plain file; None for links, folders, FIFOs, missing files and files that the system can't read.

    >>> read_whole(Path(tempfile.gettempdir())) is None
    True
    """
    with suppress(OSError), open(path, "rb", opener=_plain) as file:
        return file.read()
    return None


def _plain(path: str, flags: int) -> int:
    """Open a file that is no link; anything but a plain file is refused without waiting."""
    handle = os.open(path, flags | UNFOLLOWED)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(EINVAL, "not a regular file", path)
    return handle


def write_whole(path: Path, data: bytes) -> None:
    """Write to a temporary file and move it into place.

    Raises:
        OSError: the file can't be written.
    """
    move(drafted(path, data), path)


def drafted(path: Path, data: bytes) -> Path:
    """Write to a temporary file beside a path, for :func:`move`.

    Raises:
        OSError: the file can't be written.
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
    """Move a draft into place; a folder that is there is deleted. The draft is gone afterwards, whatever happens.

    Raises:
        OSError: the file can't be moved.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with its contents; nothing where there is none.

    Raises:
        OSError: it can't be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
