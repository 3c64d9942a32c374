"""Bundles: files with the kernels of a cache, which a machine of the same kind loads without compiling.

A bundle is a zip archive. It holds the source and the machine code of each kernel, the schedules that ``autotune`` kept, and
``bundle.json``, which names the versions that made it and the digest of every file. An import reads and checks the whole
bundle before it writes any file.

The machine code of a bundle is pickled and is run, so a bundle needs the same trust as a wheel. The digests detect damage,
not malice.

Source:
    Scorch (arXiv 2405.16883), section 3.2: common kernels are compiled ahead of time.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from ..codegen.kernel import BUILDING
from ..errors import BundleError
from ..machine import kernel_cache, launcher, machine_code
from ..machine.atomic_files import NOT_WHOLE, delete, drafted, move, read_whole, replacing
from ..machine.fingerprints import code_name, hashed, processor, python_version
from ..machine.target import host
from . import tuned

LAYOUT = 2  # version of the file format
KIND = "numscorch kernels"
LIBRARIES = ("numscorch", "numba", "llvmlite")
WARM = "compile here instead: python -m numscorch cache warm"
TOLD = "bundle.json"
SOURCE = re.compile(rf"({kernel_cache.NAME})\.py")
COMPILED = re.compile(rf"({kernel_cache.NAME})\.[0-9a-f]{{32}}\.code")
LARGEST_ENTRY = 64 << 20  # bytes; many times the size of any kernel
ELSEWHERE = "the bundle was made for other cache sizes: kernels whose tiles depend on them are compiled at their first use"
UNREADABLE = (*NOT_WHOLE, OSError, struct.error)  # OSError: seeking to a wrong offset
Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Bundled:
    """The contents of a bundle.

    ``kernels`` and ``schedules`` are the numbers of kernels and schedules. ``left_out`` is the number of kernels without machine code
    for this machine. ``remark`` says why some kernels may not be used.
    """

    kernels: int
    left_out: int = 0
    schedules: int = 0
    remark: str = ""


# -- export -------------------------------------------------------------------------------------------


def export(path: str | PathLike[str], only: Iterable[str] = ()) -> Bundled:
    """Write the kernels of the cache, and the schedules that autotune kept, to a bundle.

    Run a program first to fill the cache with the kernels that it needs; these depend on the formats, data types and sizes of
    its operands.

    Args:
        path: the file; an existing file is replaced atomically.
        only: texts such as ``A[i,j] * x[j]``; kernels whose expression contains none of them are left out. Whitespace is ignored.

    Raises:
        BundleError: no kernel of the cache is compiled for this machine, or none contains one of the texts.
        OSError: the file cannot be written.
    """
    wanted = {text: "".join(text.split()) for text in only}
    if kernel_cache.entries():
        launcher.keep(BUILDING)  # the launcher runs all other kernels
    entries = [(entry.path, "".join(entry.expression.split())) for entry in kernel_cache.entries()]
    for text, compact in wanted.items():
        if not any(compact in expression for _, expression in entries):
            raise BundleError(f"no kernel in {kernel_cache.folder()} computes {text!r}: list the kernels with python -m numscorch cache")
    if wanted:
        entries = [(file, text) for file, text in entries if file.stem == launcher.name() or any(part in text for part in wanted.values())]
    kernels = {file.stem: files for file, _ in entries if (files := _kernel_files(file))}
    if not kernels.keys() - {launcher.name()}:
        raise BundleError(
            f"no kernel in {kernel_cache.folder()} is compiled for this machine: run the program that needs them first, or "
            "python -m numscorch cache warm"
        )
    schedules = tuned.kept()
    files = {name: data for kernel in kernels.values() for name, data in kernel.items()}
    files |= {tuned.FILE: json.dumps(schedules, sort_keys=True).encode()} if schedules else {}
    _write(Path(path), files)
    return Bundled(len(kernels), len(entries) - len(kernels), len(schedules))


def _kernel_files(path: Path) -> Files:
    """A kernel's source and machine code; empty if the machine code is missing, damaged, or for another machine."""
    if (source := read_whole(path)) is None:
        return {}
    name = code_name(path.stem, source)
    code = read_whole(path.parent / kernel_cache.CODE / name)
    return {} if code is None or machine_code.unsealed(code) is None else {path.name: source, name: code}


def _write(path: Path, files: Files) -> None:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    description = {"kind": KIND, "layout": LAYOUT, "made": made_by(), "digests": digests}
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(TOLD, json.dumps(description, indent=1, sort_keys=True))
        for name, data in files.items():
            archive.writestr(name, data)


# -- import -------------------------------------------------------------------------------------------


def bring_in(path: str | PathLike[str]) -> Bundled:
    """Import the kernels of a bundle into the cache: all of them, or none if there is an error.

    The machine code of a bundle is run, so import bundles only from sources that you trust to provide a wheel.

    Args:
        path: a file that :func:`export` wrote.

    Raises:
        BundleError: the file is not a bundle, is damaged, or was made with other versions or for another processor; the kernels
            exceed NUMSCORCH_CACHE_SIZE; or the cache is a temporary folder.
        OSError: the file cannot be read, or the cache cannot be written.
    """
    file = Path(path)
    description, files = _read(file)
    check_maker(file, description["made"])
    schedules = _schedules(file, files.pop(tuned.FILE, b"{}"))
    _install(_folder(), files)
    if schedules:
        tuned.adopt(schedules)
    remark = "" if description["made"]["caches"] == made_by()["caches"] else ELSEWHERE
    return Bundled(sum(name.endswith(".py") for name in files), 0, len(schedules), remark)


def _folder() -> Path:
    status = kernel_cache.status()
    if status.problem is not None or status.folder is None:
        raise BundleError(
            f"{status.problem}, and kernels in a temporary folder end with this process: set NUMSCORCH_CACHE_DIR to a folder that you own"
        )
    return status.folder


def _read(path: Path) -> tuple[dict[str, Any], Files]:
    """The description of a bundle, and its files; checks their names and digests."""
    if path.exists() and not path.is_file():
        raise BundleError(f"{path} is not a regular file: pass the file that python -m numscorch cache export wrote")
    with path.open("rb") as file:
        try:
            entries, files = _unpack(path, file)
        except UNREADABLE as error:
            problem = "is damaged" if zipfile.is_zipfile(file) else "is not a bundle of kernels"
            raise BundleError(f"{path} {problem} ({error}): make one with python -m numscorch cache export") from error
    description = _description(path, files.pop(TOLD))
    if entries != len(files) + 1:
        raise _damage_error(path, "it lists a file twice")
    _check_files(path, files, description["digests"])
    return description, files


def _unpack(path: Path, file: BinaryIO) -> tuple[int, Files]:
    """The number of entries in an archive, and their contents by name; sizes are checked before contents are read into memory."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if TOLD not in (entry.filename for entry in entries):
            raise BundleError(f"{path} is not a bundle of kernels: it has no {TOLD}; make one with python -m numscorch cache export")
        for entry in entries:
            name = entry.filename
            if name not in (TOLD, tuned.FILE) and not SOURCE.fullmatch(name) and not COMPILED.fullmatch(name):
                raise BundleError(f"{path} contains {name!r}, not a kernel file: nothing was imported")
            if entry.file_size > LARGEST_ENTRY:
                raise BundleError(f"{path} contains {name!r} of {entry.file_size:,} bytes, more than any kernel: nothing was imported")
        size, limit = sum(entry.file_size for entry in entries if entry.filename not in (TOLD, tuned.FILE)), kernel_cache.limit()
        if size > limit:
            set_it = f"NUMSCORCH_CACHE_SIZE keeps {limit:,}: set it to {-(-size >> 20) + 1}M or more"
            raise BundleError(f"the kernels of {path} are {size:,} bytes, but {set_it}")
        return len(entries), {entry.filename: archive.read(entry) for entry in entries}


def _description(path: Path, text: bytes) -> dict[str, Any]:
    description = _parsed(path, TOLD, text)
    if not isinstance(description, dict) or description.get("kind") != KIND or not isinstance(description.get("digests"), dict):
        raise _damage_error(path, f"{TOLD} does not describe a bundle")
    if description.get("layout") != LAYOUT:
        raise BundleError(f"{path} has layout {description.get('layout')}, but this version of numscorch reads {LAYOUT}: {WARM}")
    if not tells_maker(description.get("made")):
        raise _damage_error(path, f"{TOLD} does not name the versions that made it")
    return description


def _check_files(path: Path, files: Files, digests: Mapping[str, Any]) -> None:
    if missing := sorted(digests.keys() ^ files.keys()):
        raise _damage_error(path, f"{missing[0]} is missing" if missing[0] in digests else f"{missing[0]} is not listed in {TOLD}")
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != digests[name]:
            raise _damage_error(path, f"the digest of {name} does not match")
    for name in files:
        if (match := COMPILED.fullmatch(name)) and f"{match[1]}.py" not in files:
            raise _damage_error(path, f"{name} has no source")


def _damage_error(path: Path, why: str) -> BundleError:
    return BundleError(f"{path} is damaged, {why}: nothing was imported; copy it again")


def _parsed(path: Path, name: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damage_error(path, f"{name} can't be read") from error


def _schedules(path: Path, text: bytes) -> dict[str, str]:
    schedules = _parsed(path, tuned.FILE, text)
    if not isinstance(schedules, dict) or not all(isinstance(schedule, str) for schedule in schedules.values()):
        raise _damage_error(path, f"{tuned.FILE} does not hold schedules")
    return schedules


def _install(directory: Path, files: Files) -> None:
    """Write all files beside their final places, then move them, so that a full disk leaves the cache unchanged."""
    moves: list[tuple[Path, Path]] = []
    try:
        for name, data in files.items():
            final = (directory / kernel_cache.CODE if COMPILED.fullmatch(name) else directory) / name
            moves.append((drafted(final, data), final))
        _move(directory, moves, sorted(name for name in files if SOURCE.fullmatch(name)))
    finally:
        for draft, _ in moves:
            draft.unlink(missing_ok=True)
    delete(directory / kernel_cache.ROOM)  # the next stored kernel measures the cache again


def _move(directory: Path, moves: Iterable[tuple[Path, Path]], kernels: Iterable[str]) -> None:
    try:
        for name in kernels:
            kernel_cache.discard_code(directory / name)
        for draft, final in moves:
            move(draft, final)
    except BaseException:
        for name in kernels:
            kernel_cache.remove(directory / name)
        raise


# -- origin: other versions and processors cannot use machine code ------------------------------------


def made_by() -> dict[str, Any]:
    """The versions and the processor for which this process compiles, as JSON values; imports Numba.

    >>> sorted(made_by())
    ['caches', 'compiler', 'features', 'processor', 'system', 'versions']
    """
    triple, name, features = processor()
    target = host()
    return {
        "versions": {"python": python_version(), **{library: version(library) for library in LIBRARIES}},
        "system": triple,
        "processor": name,
        "features": sorted(set(features.split(","))),
        "compiler": hashed("", target),
        "caches": [target.cache, target.own_cache],
    }


def tells_maker(facts: Any) -> bool:
    """Whether a value has the keys and types of :func:`made_by`."""
    has_types = isinstance(facts, dict) and all(isinstance(facts.get(name), type(value)) for name, value in made_by().items())
    return has_types and all(isinstance(flag, str) for flag in facts["features"])


def check_maker(path: Path, theirs: Mapping[str, Any]) -> None:
    """Refuse machine code that this process would not find or could not run.

    Args:
        path: the file with the machine code, for error messages.
        theirs: the value of :func:`made_by` in the process that compiled the machine code.

    Raises:
        BundleError: the versions, the system, the processor or its features differ.
    """
    ours = made_by()
    for name, needed in ours["versions"].items():
        if (other := theirs["versions"].get(name)) != needed:
            raise BundleError(f"{path} was made with {name} {other}, but {needed} is installed: install the same version, or {WARM}")
    if theirs["system"] != ours["system"]:
        raise BundleError(f"{path} was made for {theirs['system']}, but this is {ours['system']}: {WARM}")
    if theirs["processor"] != ours["processor"] or set(theirs["features"]) != set(ours["features"]):
        reason = f"for the processor {theirs['processor']}{_features(theirs['features'], ours['features'])}"
        raise BundleError(f"{path} was made {reason}, but this is {ours['processor']}: {WARM}")
    if theirs["compiler"] != ours["compiler"]:
        raise BundleError(
            f"{path} was made by another build of numscorch {ours['versions']['numscorch']}: install the same build, or {WARM}"
        )


def _features(theirs: Iterable[str], ours: Iterable[str]) -> str:
    only_theirs, only_ours = ({flags[1:] for flags in features if flags.startswith("+")} for features in (theirs, ours))
    parts = [("with", only_theirs - only_ours), ("without", only_ours - only_theirs)]
    return "".join(f" {what} {' '.join(sorted(names))}" for what, names in parts if names)
