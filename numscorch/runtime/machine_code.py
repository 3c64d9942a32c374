"""The machine code that Numba stores for a kernel's file, and how damage to it is noticed.

Numba trusts its files: a flipped bit there crashes the process, or computes something else. So a
digest of them is written after each compilation, and compared before they are loaded.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

FILES = "*.nb[ics]"  # index and code are Numba's (.nbi, .nbc), the seal is ours


def seal(path: Path) -> None:
    """Write down what the machine code of a kernel's file looks like now; nothing where it wasn't stored.

    Raises no error where the folder can't be written: unsealed code is compiled again.
    """
    for directory in folders(path.parent):
        if (digest := _digest(directory, path)) is not None:
            with suppress(OSError):
                write_whole(_seal(directory, path), digest)


def discard_damaged(path: Path) -> bool:
    """Delete the machine code of a kernel's file unless it is as it was sealed; whether it was deleted."""
    for directory in folders(path.parent):
        digest = _digest(directory, path)
        with suppress(OSError):
            if digest is None or _seal(directory, path).read_bytes() == digest:
                continue
        return discard(path) > 0
    return False


def sealed_files(path: Path) -> dict[str, bytes]:
    """The machine code of a kernel's file by name, seal aside; nothing where there is none, or it isn't as it was sealed."""
    for directory in folders(path.parent):
        with suppress(OSError):  # other processes come and go
            found = {file.name: file.read_bytes() for file in _numbas(directory, path)}
            if found and _seal(directory, path).read_bytes() == digest_of(found):
                return found
    return {}


def discard(path: Path) -> int:
    """Delete the machine code of a kernel's file, seal included; returns how many files went."""
    files = [file for directory in folders(path.parent) for file in directory.glob(f"{path.stem}.{FILES}")]
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)


def folders(directory: Path) -> Iterator[Path]:
    """Where Numba puts machine code: beside the source, or below its own cache folder if the user set one."""
    yield directory / "__pycache__"
    config = getattr(sys.modules.get("numba"), "config", None)
    base = getattr(config, "CACHE_DIR", "") or os.environ.get("NUMBA_CACHE_DIR")
    if base:
        absolute = os.path.abspath(directory)
        yield Path(base) / f"{directory.name}_{hashlib.sha1(absolute.encode(), usedforsecurity=False).hexdigest()}"


def write_whole(path: Path, data: bytes) -> None:
    """Write to a temporary file and move it into place: other processes see a whole file or none."""
    draft = drafted(path, data)
    try:
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def drafted(path: Path, data: bytes) -> Path:
    """Write to a temporary file beside a path, which is to take its place."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return Path(temporary)


def seal_of(stem: str) -> str:
    """The name of the seal beside the machine code of a kernel."""
    return f"{stem}.seal.nbs"


def _seal(directory: Path, path: Path) -> Path:
    return directory / seal_of(path.stem)


def _digest(directory: Path, path: Path) -> bytes | None:
    """Of the names and bytes of Numba's files; None where there are none."""
    found = {}
    for file in _numbas(directory, path):
        with suppress(FileNotFoundError):  # other processes come and go
            found[file.name] = file.read_bytes()
    return digest_of(found) if found else None


def _numbas(directory: Path, path: Path) -> list[Path]:
    return sorted(directory.glob(f"{path.stem}.*.nb[ic]"))


def digest_of(files: Mapping[str, bytes]) -> bytes:
    """What a seal holds: a digest of the names and bytes of Numba's files."""
    found = hashlib.sha256()
    for name in sorted(files):
        found.update(name.encode() + hashlib.sha256(files[name]).digest())
    return found.hexdigest().encode()
