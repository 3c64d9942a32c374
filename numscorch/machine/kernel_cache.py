"""The kernel cache on disk: readable ``.py`` files in a folder of the user, and their machine code.

The files are executed, so the folder is trusted only if no other user can write to it. If the folder cannot be used or
written, the process uses a private temporary folder instead, and :func:`status` gives the reason. If that fails as well,
kernels are compiled but not stored.
"""

from __future__ import annotations

import ast
import atexit
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..errors import NumscorchError
from .atomic_files import DRAFT, delete, drafted, read_whole, write_whole
from .compile_log import log
from .memory import parse_size

PACKAGE = "numscorch_kernels"
DEFAULT_LIMIT = "512M"
ROOM = ".room"  # file with the number of kernels that fit before the folder is scanned again, and the size limit that it assumes
LARGEST = 1 << 20  # upper estimate of the bytes of a kernel with its machine code
CODE = "__pycache__"  # subfolder of the machine code
NAME = r"kernel_[0-9a-f]{16}(?:_serial)?"  # names of kernels (_serial: older versions); other files are left alone
ABANDONED_AFTER = 3600.0  # seconds after which a temporary file counts as left by a crashed process

_unusable: dict[Path, str] = {}  # folders whose last write failed, as on a full disk, with the reason
_private: tuple[int, Path] | None = None  # process id and its private folder


@dataclass(frozen=True, slots=True)
class Status:
    """The folder in use (None if no folder is writable), the requested folder, and why they differ (None if they are equal)."""

    folder: Path | None
    requested: Path
    problem: str | None


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """A stored kernel: its source file, its size in bytes (source and machine code), and the time of its last use."""

    path: Path
    size: int
    last_used: float

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def expression(self) -> str:
        """The first line of the source's docstring. Reading it does not count as a use."""
        try:
            text = ast.get_docstring(ast.parse(read_whole(self.path) or b"\0"))
        except (SyntaxError, ValueError):
            return "(damaged: rebuilt at its next use)"
        finally:
            _touch(self.path, self.last_used)
        return text.partition("\n")[0] if text else "(no expression)"


# -- the folder ---------------------------------------------------------------------------------------


def folder() -> Path | None:
    """The folder of the cache, created if needed: ``NUMSCORCH_CACHE_DIR`` or the platform's cache folder; None if none is writable."""
    return status().folder


def status() -> Status:
    """The folder in use and, if it is not the requested one, the reason."""
    requested = _requested()
    problem = _unusable.get(requested) or _prepare(requested)
    return Status(requested if problem is None else _private_folder(), requested, problem)


def check_writing() -> Status:
    """The status after a file as large as a kernel was written and deleted, to detect a full disk."""
    requested = _requested()
    if _prepare(requested) is None:
        with _failures_noted(requested):
            drafted(requested / "check", bytes(LARGEST)).unlink()
            _unusable.pop(requested, None)
    return status()


def _places() -> Iterator[Path]:
    """The folders to read from and write to, in order of preference; the private one only if the requested one failed."""
    requested = _requested()
    problem = _prepare(requested)
    if problem is None:
        yield requested
    if (problem is not None or requested in _unusable) and (fallback := _private_folder()) is not None:
        yield fallback


@contextmanager
def _failures_noted(path: Path) -> Iterator[None]:
    """Suppress an OSError of the block: record that the folder is not writable, and log it once."""
    try:
        yield
    except OSError as error:
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
    return Path(base) if os.path.isabs(base) else home / ".cache"  # the XDG specification ignores relative paths


def _prepare(path: Path) -> str | None:
    """Create the folder and its subfolder for machine code; return the problem if they cannot be used, else None."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        compiled = path / CODE
        compiled.mkdir(mode=0o700, exist_ok=True)
        return distrust(path) or distrust(compiled)
    except OSError as error:
        return f"{path} can't be made ({error.strerror or error})"


def distrust(path: Path) -> str | None:
    """The reason why a folder cannot be used: its code is not trusted, or it is not writable; None if it can."""
    info = path.stat()
    if hasattr(os, "geteuid"):  # Windows protects the folder, which is in the user's profile
        if {info.st_uid, path.lstat().st_uid} != {os.geteuid()}:  # check a link and its target
            return f"{path} belongs to another user"
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{path} can be written by other users (mode {stat.S_IMODE(info.st_mode):o})"
    return None if os.access(path, os.W_OK | os.X_OK) else f"{path} is not writable"


def _private_folder() -> Path | None:
    """The temporary folder of this process; None if it cannot be created.

    A forked child creates its own, since its parent removes this one at exit. Two threads may create a folder each; both
    work, and both are removed at exit.
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
    """Write a kernel's source, unless the same text is already stored.

    Args:
        name: the kernel's name, such as ``kernel_0123456789abcdef``, which is unique to the source.
        source: its Python text.

    Returns:
        The file; None if no folder is writable.

    Raises:
        NumscorchError: the name is not a kernel's name, or NUMSCORCH_CACHE_SIZE is not a size.
    """
    if re.fullmatch(NAME, name) is None:
        raise NumscorchError(f"{name!r} is not a kernel's name: use kernel_ followed by 16 hexadecimal digits")
    most_bytes, data = limit(), source.encode()
    for place in _places():
        path = place / f"{name}.py"
        if read_whole(path) == data and _touch(path, time.time()):
            return path
        with _failures_noted(place):
            discard_code(path)
            write_whole(path, data)
            with suppress(OSError):  # the next write tries again
                if not _has_room(place, most_bytes):
                    _evict(place, path, most_bytes)
            return path
    return None


def load_module(name: str, source: str, path: Path | None) -> ModuleType:
    """Execute a kernel's source as the module ``numscorch_kernels.<name>``.

    The module is added to ``sys.modules`` before its code runs, and stays there. Numba pickles functions by the name of their
    module, so another process can load the stored machine code only if the module is found by its name.

    Args:
        name: the kernel's name, as given to :func:`store`.
        source: its Python text, as given to :func:`store`.
        path: the file that tracebacks and profilers show, as returned by :func:`store`.
    """
    full, file = f"{PACKAGE}.{name}", f"<{name}>" if path is None else str(path)
    module = ModuleType(full)
    module.__file__ = file
    package = ModuleType(PACKAGE, "Kernels that numscorch generated and loaded.")  # importing a kernel by its name requires its parent
    package.__path__ = []
    setattr(sys.modules.setdefault(PACKAGE, package), name, module)
    sys.modules[full] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(full, None)
        raise
    return module


def read(name: str) -> bytes | None:
    """The contents of a file, by its path in the folder; None if it does not exist."""
    return next((data for place in _places() if (data := read_whole(place / name)) is not None), None)


def write(name: str, data: bytes) -> Path | None:
    """Write a file, by its path in the folder. Returns the folder, or None if no folder is writable."""
    for place in _places():
        with _failures_noted(place):
            write_whole(place / name, data)
            return place
    return None


def discard_code(path: Path) -> None:
    """Delete the machine code of a kernel, given its source file."""
    for file in sorted((path.parent / CODE).glob(f"{path.stem}.*")):
        delete(file)


def _code_in(directory: Path) -> list[tuple[str, Path]]:
    """The machine code files of all kernels, each with the name of its kernel."""
    files = sorted((directory / CODE).glob("kernel_*"))
    return [(match[1], file) for file in files if (match := re.fullmatch(rf"({NAME})\..*", file.name))]


def _sources_in(directory: Path) -> list[Path]:
    return [path for path in directory.glob("kernel_*.py") if re.fullmatch(NAME, path.stem)]


def _touch(path: Path, used: float) -> bool:
    """Set the access time of a file to its last use, if possible, and keep its modification time. False if the file is missing."""
    try:
        os.utime(path, ns=(int(used * 1e9), path.lstat().st_mtime_ns))
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


# -- listing, clearing --------------------------------------------------------------------------------


def entries() -> list[CachedKernel]:
    """The stored kernels, most recently used first."""
    return sorted(_stored(folder()), key=lambda kernel: kernel.last_used, reverse=True)


def clear() -> int:
    """Delete all stored kernels with their machine code; returns the number of kernels.

    Raises:
        OSError: a file cannot be deleted.
    """
    place = folder()
    stored = _stored(place)
    for kernel in stored:
        remove(kernel.path)
    if place is not None:
        _sweep(place, older_than=0.0)
        delete(place / ROOM)
    return len(stored)


def _stored(directory: Path | None) -> list[CachedKernel]:
    """The kernels of a folder. The folder of machine code is listed only once."""
    if directory is None:
        return []
    compiled: dict[str, int] = {}
    for kernel, file in _code_in(directory):
        with suppress(FileNotFoundError):  # another process may delete it
            compiled[kernel] = compiled.get(kernel, 0) + file.lstat().st_size
    stored = []
    for path in _sources_in(directory):
        with suppress(FileNotFoundError):
            info = path.lstat()
            if not stat.S_ISDIR(info.st_mode):
                stored.append(CachedKernel(path, info.st_size + compiled.get(path.stem, 0), max(info.st_atime, info.st_mtime)))
    return stored


def remove(path: Path) -> None:
    """Delete a kernel with its machine code."""
    delete(path)
    discard_code(path)


def _sweep(directory: Path, older_than: float) -> None:
    """Delete abandoned temporary files, and machine code without a kernel."""
    kernels = {path.stem for path in _sources_in(directory)}
    orphans = [file for kernel, file in _code_in(directory) if kernel not in kernels]
    temporary = [file for place in (directory, directory / CODE) for file in place.glob(f".*{DRAFT}")]
    for file in temporary + orphans:
        with suppress(FileNotFoundError):
            if time.time() - file.lstat().st_mtime >= older_than:
                delete(file)


def _has_room(directory: Path, limit: int) -> bool:
    """Whether the new kernel fits without scanning the folder, which is slow. Decrements the count in ``ROOM``."""
    with suppress(ValueError):
        remaining, old_limit = map(int, (read_whole(directory / ROOM) or b"").split())
        if old_limit == limit and remaining > 0:
            write_whole(directory / ROOM, f"{remaining - 1} {limit}".encode())
            return True
    return False


def _evict(directory: Path, keep: Path, limit: int) -> None:
    """Delete the least recently used kernels until the total size is within the limit. ``keep`` is never deleted."""
    stored = sorted(_stored(directory), key=lambda kernel: kernel.last_used)
    total = sum(kernel.size for kernel in stored)
    for kernel in stored:
        if total <= limit:
            break
        if kernel.path != keep:
            remove(kernel.path)
            total -= kernel.size
    _sweep(directory, ABANDONED_AFTER)
    write_whole(directory / ROOM, f"{max(limit - total, 0) // LARGEST} {limit}".encode())


def limit() -> int:
    """The size limit of the cache in bytes: ``NUMSCORCH_CACHE_SIZE``."""
    return parse_size(os.environ.get("NUMSCORCH_CACHE_SIZE") or DEFAULT_LIMIT, "NUMSCORCH_CACHE_SIZE")
