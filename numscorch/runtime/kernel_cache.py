"""The kernels on disk: readable ``.py`` files in a folder of the user's, with Numba's machine code beside them.

A kernel's file is executed, so the folder is trusted only if nobody else can write to it; where it
can't be used, a private folder stands in for the life of the process and :func:`status` says why.
Every write goes to a temporary file and is moved into place: other processes see a whole file or none.
"""

from __future__ import annotations

import ast
import atexit
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from ..errors import NumscorchError
from . import machine_code
from .memory import parse_size

PACKAGE = "numscorch_kernels"
DEFAULT_LIMIT = "512M"
ROOM = ".room"  # how many more kernels fit before all are looked at again, and in what limit
LARGEST = 1 << 20  # bytes of a kernel with its machine code, generously
ABANDONED_AFTER = 3600.0  # seconds until a temporary file is taken for a crashed process's

_unusable: dict[Path, str] = {}  # folders that failed under a write: only trying shows a full disk
_private: tuple[int, Path] | None = None  # process id, its stand-in folder


@dataclass(frozen=True, slots=True)
class Status:
    """The folder in use, the one that was asked for, and why they differ (None where they don't)."""

    folder: Path
    requested: Path
    problem: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored kernel: its expression, its bytes (source and machine code), and when it was last used."""

    name: str
    path: Path
    expression: str
    size: int
    last_used: float


# -- the folder ---------------------------------------------------------------------------------------


def folder() -> Path:
    """Where kernels are stored, made if need be: ``NUMSCORCH_CACHE_DIR``, or else the platform's cache folder."""
    return status().folder


def status() -> Status:
    """Which folder is in use and, if it isn't the one asked for, why."""
    requested = _requested()
    problem = _unusable.get(requested) or _prepare(requested)
    return Status(requested if problem is None else _private_folder(), requested, problem)


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
        compiled = path / "__pycache__"
        compiled.mkdir(mode=0o700, exist_ok=True)
        return _distrust(path) or _distrust(compiled)
    except OSError as error:
        return f"{path} can't be made ({error.strerror or error})"


def _distrust(path: Path) -> str | None:
    """Why code in this folder should not be run or can't be written, or None."""
    info = path.stat()
    if hasattr(os, "geteuid"):  # elsewhere the folder lies in the user's profile, which the system protects
        if {info.st_uid, path.lstat().st_uid} != {os.geteuid()}:  # of a link, both ends count
            return f"{path} belongs to another user"
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{path} can be written by other users (mode {stat.S_IMODE(info.st_mode):o})"
    return None if os.access(path, os.W_OK | os.X_OK) else f"{path} is not writable"


def _private_folder() -> Path:
    """A temporary folder of this very process: a forked child makes its own, since its parent removes this one.

    Two threads that come first at once make one each; both work, and both go at exit.
    """
    global _private
    current = _private
    if current is None or current[0] != os.getpid() or not current[1].is_dir():
        _private = current = os.getpid(), Path(tempfile.mkdtemp(prefix="numscorch-"))
        (current[1] / "__pycache__").mkdir(mode=0o700)
        atexit.register(_remove_private, *current)
    return current[1]


def _remove_private(owner: int, path: Path) -> None:
    if os.getpid() == owner:  # forked children inherit the exit handler
        shutil.rmtree(path, ignore_errors=True)


# -- storing and loading ------------------------------------------------------------------------------


def store(name: str, source: str) -> Path:
    """Write a kernel's source unless the very same text is already there.

    Args:
        name: the kernel's name, an identifier that no other source has.
        source: its Python text.

    Raises:
        NumscorchError: the name is no identifier, or NUMSCORCH_CACHE_SIZE is no size.
        OSError: not even the private folder can be written.
    """
    if not name.isidentifier():
        raise NumscorchError(f"{name!r} can't name a kernel's file: use an identifier")
    most, now = limit(), status()
    try:
        return _store_in(now.folder, name, source, most)
    except OSError as error:
        if now.problem is not None:
            raise
        _unusable[now.requested] = f"{now.requested} can't be written ({error.strerror or error})"
        return _store_in(folder(), name, source, most)


def _store_in(directory: Path, name: str, source: str, limit: int) -> Path:
    path, data = directory / f"{name}.py", source.encode()
    if _read(path) == data and _touch(path, time.time()):
        return path
    machine_code.discard(path)
    machine_code.write_whole(path, data)
    if not _has_room(directory, limit):
        _evict(directory, path, limit)
    return path


def _read(path: Path) -> bytes | None:
    """The bytes of a regular file, None for anything else: a link is replaced, never followed."""
    try:
        return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else None
    except FileNotFoundError:
        return None


def _touch(path: Path, used: float) -> bool:
    """Note a use in the access time (the modification time says when it was written); False if it is gone."""
    try:
        os.utime(path, ns=(int(used * 1e9), path.lstat().st_mtime_ns))
    except FileNotFoundError:
        return False
    return True


class _Loader(SourceFileLoader):
    """Compiles from the source each time: Python takes a ``.pyc`` for current when the file's size
    and second of writing match, which a rebuilt kernel's may.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load_module(name: str, path: Path) -> ModuleType:
    """Execute a stored kernel's file as the module ``numscorch_kernels.<name>``.

    The module is in ``sys.modules`` before its code runs and stays there, as Numba pickles functions by
    their module's name: without it, machine code stored by one process can't be loaded by the next.

    Args:
        name: the kernel's name, as given to :func:`store`.
        path: what :func:`store` returned.

    Raises:
        OSError: the file can't be read.
        SyntaxError: the file is damaged; ``store`` it again.
    """
    full = f"{PACKAGE}.{name}"
    spec = spec_from_file_location(full, path, loader=_Loader(full, str(path)))
    if spec is None or spec.loader is None:
        raise NumscorchError(f"{path} can't be loaded as a Python module")
    module = module_from_spec(spec)
    setattr(_package(), name, module)
    sys.modules[full] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(full, None)
        raise
    return module


def _package() -> ModuleType:
    """The kernels' parent, which importing one by its name asks for."""
    package = ModuleType(PACKAGE, "Kernels that numscorch generated and loaded.")
    package.__path__ = []
    return sys.modules.setdefault(PACKAGE, package)


# -- listing, clearing --------------------------------------------------------------------------------


def entries() -> list[Entry]:
    """The stored kernels, the last used first."""
    found = []
    for path, size, used in _stored(folder()):
        found.append(Entry(path.stem, path, _expression(path), size, used))
        _touch(path, used)  # reading it here was no use
    return sorted(found, key=lambda entry: entry.last_used, reverse=True)


def clear() -> int:
    """Delete every stored kernel with its machine code; returns how many kernels there were."""
    stored = _stored(folder())
    for path, _, _ in stored:
        remove(path)
    _sweep(folder(), older_than=0.0)
    (folder() / ROOM).unlink(missing_ok=True)
    return len(stored)


def _stored(directory: Path) -> list[tuple[Path, int, float]]:
    """Path, size and last use of each kernel; the machine code is listed once, not once per kernel."""
    compiled: dict[str, int] = {}
    for place in machine_code.folders(directory):
        for file in place.glob(machine_code.FILES):
            with suppress(FileNotFoundError):  # other processes come and go
                kernel = file.name.partition(".")[0]
                compiled[kernel] = compiled.get(kernel, 0) + file.lstat().st_size
    stored = []
    for path in directory.glob("*.py"):
        with suppress(FileNotFoundError):
            info = path.lstat()
            stored.append((path, info.st_size + compiled.get(path.stem, 0), max(info.st_atime, info.st_mtime)))
    return stored


def _expression(path: Path) -> str:
    """The first line of the file's docstring."""
    try:
        text = ast.get_docstring(ast.parse(_read(path) or b""))
    except (SyntaxError, ValueError):
        return "(damaged: rebuilt at its next use)"
    return text.partition("\n")[0] if text else "(no expression)"


def remove(path: Path) -> None:
    """Delete a kernel with its machine code."""
    path.unlink(missing_ok=True)
    machine_code.discard(path)


def _sweep(directory: Path, older_than: float) -> None:
    """Delete temporary files that their process left behind, and machine code whose kernel is gone."""
    kernels = {path.stem for path in directory.glob("*.py")}
    places = list(machine_code.folders(directory))
    compiled = [file for place in places for file in place.glob(machine_code.FILES)]
    orphans = [file for file in compiled if file.name.partition(".")[0] not in kernels]
    temporary = [file for place in (directory, *places) for file in place.glob(".*.tmp")]
    for file in temporary + orphans:
        with suppress(FileNotFoundError):
            if time.time() - file.lstat().st_mtime >= older_than:
                file.unlink()


def _has_room(directory: Path, limit: int) -> bool:
    """Whether so few kernels were stored since all were looked at, which takes long, that they are sure to fit; this one is counted."""
    with suppress(OSError, ValueError):
        left, known = map(int, (directory / ROOM).read_text(encoding="ascii").split())
        if known == limit and left > 0:
            machine_code.write_whole(directory / ROOM, f"{left - 1} {limit}".encode())
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
    machine_code.write_whole(directory / ROOM, f"{max(limit - total, 0) // LARGEST} {limit}".encode())


def limit() -> int:
    """How many bytes of kernels are kept: ``NUMSCORCH_CACHE_SIZE``."""
    return parse_size(os.environ.get("NUMSCORCH_CACHE_SIZE") or DEFAULT_LIMIT, "NUMSCORCH_CACHE_SIZE")
