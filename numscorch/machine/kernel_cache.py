"""The kernels on disk: readable ``.py`` files in a folder of the user's, with their machine code beside them.

The files are executed, so the folder is trusted only if nobody else can write to it. Where it can't be used, or takes no
files, a private folder stands in for the life of the process, and :func:`status` says why. Where that takes none either,
nothing is stored: kernels are compiled and computed all the same.
"""

from __future__ import annotations

import ast
import atexit
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..errors import NumscorchError
from .memory import parse_size
from .whole_files import DRAFT, delete, drafted, read_whole, write_whole

PACKAGE = "numscorch_kernels"
DEFAULT_LIMIT = "512M"
ROOM = ".room"  # how many more kernels fit before all are looked at again, and in what limit
LARGEST = 1 << 20  # bytes of a kernel with its machine code, generously
CODE = "__pycache__"  # the folder of machine code, in that of the kernels
NAME = r"kernel_[0-9a-f]{16}(?:_serial)?"  # of a kernel, _serial of an older version's: any other file in the folder is not touched
ABANDONED_AFTER = 3600.0  # seconds until a temporary file is taken for a crashed process's
log = logging.getLogger("numscorch")

_unusable: dict[Path, str] = {}  # folders whose last write failed: only writing shows a full disk
_private: tuple[int, Path] | None = None  # process id, its stand-in folder


@dataclass(frozen=True, slots=True)
class Status:
    """The folder in use (None where no folder takes files), the one that was asked for, and why they differ (None where they don't)."""

    folder: Path | None
    requested: Path
    problem: str | None


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """A stored kernel: its expression, its bytes (source and machine code), and when it was last used."""

    name: str
    path: Path
    expression: str
    size: int
    last_used: float


# -- the folder ---------------------------------------------------------------------------------------


def folder() -> Path | None:
    """Where kernels are stored, made if need be: ``NUMSCORCH_CACHE_DIR``, or else the platform's cache folder. None: nowhere."""
    return status().folder


def status() -> Status:
    """Which folder is in use and, if it isn't the one asked for, why."""
    requested = _requested()
    problem = _unusable.get(requested) or _prepare(requested)
    return Status(requested if problem is None else _private_folder(), requested, problem)


def check_writing() -> Status:
    """The status after a file of a kernel's size was written and deleted, which shows a full disk."""
    requested = _requested()
    if _prepare(requested) is None:
        try:
            drafted(requested / "check", bytes(LARGEST)).unlink()
        except OSError as error:
            _note_failure(requested, error)
        else:
            _unusable.pop(requested, None)
    return status()


def _places() -> Iterator[Path]:
    """The folders to read from and write to, the preferred one first; the private one once writing to that has failed."""
    requested = _requested()
    problem = _prepare(requested)
    if problem is None:
        yield requested
    if (problem is not None or requested in _unusable) and (stand_in := _private_folder()) is not None:
        yield stand_in


def _note_failure(path: Path, error: OSError) -> None:
    """Remember, and log once, that a folder takes no files."""
    reason = f"{path} can't be written ({error.strerror or error})"
    if _unusable.get(path) != reason:
        log.warning("%s: kernels are stored for this process only, or not at all", reason)
    _unusable[path] = reason


def _requested() -> Path:
    chosen = os.environ.get("NUMSCORCH_CACHE_DIR")
    return Path(os.path.abspath(Path(chosen).expanduser())) if chosen else _platform_cache() / "numscorch"


def _platform_cache() -> Path:
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base) if os.path.isabs(base) else home / ".cache"  # the XDG rules: a relative path is ignored


def _prepare(path: Path) -> str | None:
    """Make the folder and the one for machine code; what is wrong with them, or None."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        compiled = path / CODE
        compiled.mkdir(mode=0o700, exist_ok=True)
        return distrust(path) or distrust(compiled)
    except OSError as error:
        return f"{path} can't be made ({error.strerror or error})"


def distrust(path: Path) -> str | None:
    """Why code in this folder should not be run or can't be written, or None."""
    info = path.stat()
    if hasattr(os, "geteuid"):  # elsewhere the folder lies in the user's profile, which the system protects
        if {info.st_uid, path.lstat().st_uid} != {os.geteuid()}:  # of a link, both ends count
            return f"{path} belongs to another user"
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{path} can be written by other users (mode {stat.S_IMODE(info.st_mode):o})"
    return None if os.access(path, os.W_OK | os.X_OK) else f"{path} is not writable"


def _private_folder() -> Path | None:
    """A temporary folder of this very process: a forked child makes its own, since its parent removes this one.

    Two threads that come first at once make one each; both work, and both go at exit. None where there can't be one.
    """
    global _private
    current = _private
    if current is None or current[0] != os.getpid() or not (current[1] / CODE).is_dir():
        try:
            folder = os.getpid(), Path(tempfile.mkdtemp(prefix="numscorch-"))
            atexit.register(_remove_private, *folder)
            (folder[1] / CODE).mkdir(mode=0o700)
        except OSError:
            return None
        _private = current = folder
    return current[1]


def _remove_private(owner: int, path: Path) -> None:
    if os.getpid() == owner:  # forked children inherit the exit handler
        shutil.rmtree(path, ignore_errors=True)


# -- storing and loading ------------------------------------------------------------------------------


def store(name: str, source: str) -> Path | None:
    """Write a kernel's source unless the very same text is already there.

    Args:
        name: the kernel's name, as ``kernel_0123456789abcdef``, that no other source has.
        source: its Python text.

    Returns:
        The file; None where no folder takes one.

    Raises:
        NumscorchError: the name is not one of a kernel, or NUMSCORCH_CACHE_SIZE is no size.
    """
    if re.fullmatch(NAME, name) is None:
        raise NumscorchError(f"{name!r} can't name a kernel's file: use kernel_ and 16 hexadecimal digits")
    most, data = limit(), source.encode()
    for place in _places():
        path = place / f"{name}.py"
        if read_whole(path) == data and _touch(path, time.time()):
            return path
        try:
            discard_code(path)
            write_whole(path, data)
        except OSError as error:
            _note_failure(place, error)
            continue
        _make_room(place, path, most)
        return path
    return None


def load_module(name: str, source: str, path: Path | None) -> ModuleType:
    """Execute a kernel's source as the module ``numscorch_kernels.<name>``.

    The module is in ``sys.modules`` before its code runs and stays there, as Numba pickles functions by
    their module's name: without it, machine code stored by one process can't be loaded by the next.

    Args:
        name: the kernel's name, as given to :func:`store`.
        source: its Python text, as given to :func:`store`.
        path: the file that tracebacks and profilers show, as returned by :func:`store`.
    """
    full, file = f"{PACKAGE}.{name}", f"<{name}>" if path is None else str(path)
    module = ModuleType(full)
    module.__file__ = file
    setattr(_package(), name, module)
    sys.modules[full] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(full, None)
        raise
    return module


def _package() -> ModuleType:
    """The kernels' parent, which importing one by its name asks for."""
    package = ModuleType(PACKAGE, "Kernels that numscorch generated and loaded.")
    package.__path__ = []
    return sys.modules.setdefault(PACKAGE, package)


def read(name: str) -> bytes | None:
    """A file by its path in the folder; None where there is none."""
    return next((data for place in _places() if (data := read_whole(place / name)) is not None), None)


def write(name: str, data: bytes) -> Path | None:
    """Write a file, by its path in the folder. Returns the folder that took it, or None where none does."""
    for place in _places():
        try:
            write_whole(place / name, data)
        except OSError as error:
            _note_failure(place, error)
        else:
            return place
    return None


def discard_code(path: Path) -> None:
    """Delete the machine code of a kernel's file."""
    for file in code_of(path):
        delete(file)


def code_of(path: Path) -> list[Path]:
    """The files of machine code of a kernel's file."""
    return sorted((path.parent / CODE).glob(f"{path.stem}.*"))


def _code_in(directory: Path) -> list[tuple[str, Path]]:
    """The files of machine code of all kernels, each with its kernel's name."""
    files = sorted((directory / CODE).glob("kernel_*"))
    return [(match[1], file) for file in files if (match := re.fullmatch(rf"({NAME})\..*", file.name))]


def _sources_in(directory: Path) -> list[Path]:
    """The kernels' files."""
    return [path for path in directory.glob("kernel_*.py") if re.fullmatch(NAME, path.stem)]


def _touch(path: Path, used: float) -> bool:
    """Note a use in the access time (the modification time says when it was written), where possible; False if the file is gone."""
    try:
        os.utime(path, ns=(int(used * 1e9), path.lstat().st_mtime_ns))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


# -- listing, clearing --------------------------------------------------------------------------------


def entries() -> list[CachedKernel]:
    """The stored kernels, the last used first."""
    listed = []
    for path, size, used in _stored(folder()):
        listed.append(CachedKernel(path.stem, path, _expression(path), size, used))
        _touch(path, used)  # reading it here was no use
    return sorted(listed, key=lambda entry: entry.last_used, reverse=True)


def clear() -> int:
    """Delete every stored kernel with its machine code; returns how many kernels there were.

    Raises:
        OSError: a file can't be deleted.
    """
    place = folder()
    stored = _stored(place)
    for path, _, _ in stored:
        remove(path)
    if place is not None:
        _sweep(place, older_than=0.0)
        delete(place / ROOM)
    return len(stored)


def _stored(directory: Path | None) -> list[tuple[Path, int, float]]:
    """Path, size and last use of each kernel; the machine code is listed once, not once per kernel."""
    if directory is None:
        return []
    compiled: dict[str, int] = {}
    for kernel, file in _code_in(directory):
        with suppress(FileNotFoundError):  # other processes come and go
            compiled[kernel] = compiled.get(kernel, 0) + file.lstat().st_size
    stored = []
    for path in _sources_in(directory):
        with suppress(FileNotFoundError):
            info = path.lstat()
            if not stat.S_ISDIR(info.st_mode):
                stored.append((path, info.st_size + compiled.get(path.stem, 0), max(info.st_atime, info.st_mtime)))
    return stored


def _expression(path: Path) -> str:
    """The first line of the file's docstring."""
    try:
        text = ast.get_docstring(ast.parse(read_whole(path) or b"\0"))
    except (SyntaxError, ValueError):
        return "(damaged: rebuilt at its next use)"
    return text.partition("\n")[0] if text else "(no expression)"


def remove(path: Path) -> None:
    """Delete a kernel with its machine code."""
    delete(path)
    discard_code(path)


def _sweep(directory: Path, older_than: float) -> None:
    """Delete temporary files that their process left behind, and machine code whose kernel is gone."""
    kernels = {path.stem for path in _sources_in(directory)}
    orphans = [file for kernel, file in _code_in(directory) if kernel not in kernels]
    temporary = [file for place in (directory, directory / CODE) for file in place.glob(f".*{DRAFT}")]
    for file in temporary + orphans:
        with suppress(FileNotFoundError):
            if time.time() - file.lstat().st_mtime >= older_than:
                delete(file)


def _make_room(directory: Path, path: Path, limit: int) -> None:
    """Keep the kernels within the limit after one was written; where the system can't, they are counted at the next one."""
    with suppress(OSError):
        if not _has_room(directory, limit):
            _evict(directory, path, limit)


def _has_room(directory: Path, limit: int) -> bool:
    """Whether so few kernels were stored since all were looked at, which takes long, that they are sure to fit; this one is counted."""
    with suppress(ValueError):
        left, known = map(int, (read_whole(directory / ROOM) or b"").split())
        if known == limit and left > 0:
            write_whole(directory / ROOM, f"{left - 1} {limit}".encode())
            return True
    return False


def _evict(directory: Path, keep: Path, limit: int) -> None:
    """Delete the kernels unused for longest until the rest fits the limit; the newest always stays."""
    stored = sorted(_stored(directory), key=lambda item: item[2])
    total = sum(size for _, size, _ in stored)
    for path, size, _ in stored:
        if total <= limit:
            break
        if path != keep:
            remove(path)
            total -= size
    _sweep(directory, ABANDONED_AFTER)
    write_whole(directory / ROOM, f"{max(limit - total, 0) // LARGEST} {limit}".encode())


def limit() -> int:
    """How many bytes of kernels are kept: ``NUMSCORCH_CACHE_SIZE``."""
    return parse_size(os.environ.get("NUMSCORCH_CACHE_SIZE") or DEFAULT_LIMIT, "NUMSCORCH_CACHE_SIZE")
