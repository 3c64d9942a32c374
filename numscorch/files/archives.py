"""Archives: SparseTensors of any format in .npz and .safetensors files, and the registration of their classes with ``torch.save``."""

from __future__ import annotations

import struct
import tokenize
import zipfile
from errno import EINVAL
from math import prod
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import IO

import numpy as np
import torch

from ..errors import FormatError, SizeError, UnsupportedError
from ..frontend.datatypes import STORED
from ..ir.format import Format
from ..ir.level import INT64_MAX
from ..machine.atomic_files import NOT_WHOLE, replacing
from ..machine.memory import check_bytes
from ..machine.progress import Progress
from ..tensors.pattern import INDEX_DTYPES, Pattern, named_arrays
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import _rebuild_pattern, validate

MARK = "numscorch_format"  # the array that identifies archives of numscorch; it holds the format as text
ALIGNMENT = 64  # bytes of a cache line
LOCAL_HEADER, NAME_LENGTH_AT, ZIP64_FIELD = 30, 26, 20  # bytes of an entry's header, without its name and extra fields, in ZIP files
EXTRA_FIELD, PADDING_ID = struct.Struct("<HH"), 0xD935  # an extra field of zeros: identifier and length
# errors of damaged archives: NOT_WHOLE, and the errors that NumPy raises for damaged headers
DAMAGED = (*NOT_WHOLE, AttributeError, LookupError, SyntaxError, SystemError, TypeError, tokenize.TokenError)
# data types that NumPy lacks, and integers of the same size
UNKNOWN_TO_NUMPY = {stored: getattr(torch, dtype.copied) for stored, dtype in STORED.items() if not hasattr(np, dtype.name)}
torch.serialization.add_safe_globals([SparseTensor, Format, _rebuild_pattern])  # the globals in pickles of SparseTensors


def save_tensor(A: SparseTensor, path: str | PathLike[str], progress: bool | None = None) -> None:
    """Write a tensor to a .npz archive for :func:`numscorch.load`; O(stored values).

    The archive holds the format as text (``numscorch_format``), ``shape``, ``values``, their data type as text (``dtype``), and the arrays
    of each level under names such as ``level2_pos``. Gradients are not stored. If writing fails, an existing file keeps its content.

    Args:
        A: the tensor.
        path: the file.
        progress: whether to show a progress bar on stderr; None shows one for more than 64 MB if stderr is a terminal.

    Raises:
        OSError: the file can't be written.

    >>> import tempfile, numscorch as ns
    >>> path = Path(tempfile.mkdtemp()) / "eye.npz"
    >>> save_tensor(ns.from_torch(torch.eye(3), ns.DCSR), path)
    >>> ns.load(path)
    SparseTensor(DCSR, shape=(3, 3), nnz=3, density=0.333, float32, int32 indices)
    """
    values = A.values.detach().view(UNKNOWN_TO_NUMPY.get(A.dtype, A.dtype))
    arrays: dict[str, np.ndarray] = {
        MARK: np.array(str(A.format)),
        "shape": np.array(A.pattern.shape, dtype=np.int64),
        "dtype": np.array(str(A.dtype).removeprefix("torch.")),
        "values": values.numpy(),
        **{name: array.numpy() for name, array in named_arrays(A.pattern, first=1)},
    }
    size = sum(array.nbytes for array in arrays.values())
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w") as archive,
        Progress(f"writing {Path(path).name}", size, shown=progress, size=size) as bar,
    ):
        for name, array in arrays.items():
            with archive.open(_aligned(f"{name}.npy", archive), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
            bar.reach(bar.done + array.nbytes)


def _aligned(name: str, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """An entry whose data starts at a multiple of 64 bytes in the file, so that it can be mapped into memory."""
    entry = zipfile.ZipInfo(name)
    written = archive.fp.tell() if archive.fp is not None else 0
    padding = -(written + LOCAL_HEADER + len(name.encode()) + ZIP64_FIELD + EXTRA_FIELD.size) % ALIGNMENT
    entry.extra = EXTRA_FIELD.pack(PADDING_ID, padding) + bytes(padding)
    return entry


def read_arrays(file: Path, progress: bool | None = None, mapped: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a .npz archive. Pickled objects, and headers that announce more data than the archive holds, are rejected.

    With ``mapped``, arrays whose data is neither compressed nor misaligned are mapped into memory, copy on write.

    Raises:
        FormatError: the file isn't a .npz archive, is truncated, or holds objects.
        SizeError: the arrays are larger than the memory limit.
        OSError: the file can't be read.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        if opened.read(6) == np.lib.format.MAGIC_PREFIX:
            raise FormatError(f"{file} is one numpy array, not an .npz archive")
    try:
        with (
            file.open("rb") as opened,
            zipfile.ZipFile(opened) as archive,
            Progress(f"reading {file.name}", size, shown=progress, size=size) as bar,
        ):
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            in_memory = [entry for entry in entries.values() if not (mapped and entry.compress_type == zipfile.ZIP_STORED)]
            check_bytes(sum(entry.file_size for entry in in_memory), "the unpacked archive", file, "is this the right file?")
            arrays = {}
            for name, entry in entries.items():
                array = None if entry in in_memory else _mapped_array(file, opened, entry)
                arrays[name] = _array(archive, entry) if array is None else array
                bar.reach(bar.done + entry.compress_size)
            return arrays
    except (*DAMAGED, OSError) as error:
        if isinstance(error, SizeError) or (isinstance(error, OSError) and error.errno not in (None, EINVAL)):
            raise
        raise FormatError(f"{file} is not a whole .npz archive of plain arrays ({error}): fetch or save it again") from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as opened:
        _header(opened, entry)
    with archive.open(entry) as opened:
        return np.lib.format.read_array(opened, allow_pickle=False)


def _header(opened: IO[bytes], entry: zipfile.ZipInfo) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and data type of an array.

    Raises:
        ValueError: the array is larger than its entry.
    """
    version = np.lib.format.read_magic(opened)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(opened)
    if prod(shape) * dtype.itemsize > entry.file_size:
        raise ValueError(f"{entry.filename} declares {shape} values, but has {entry.file_size} bytes")
    return shape, is_fortran, dtype


def _mapped_array(file: Path, opened: IO[bytes], entry: zipfile.ZipInfo) -> np.ndarray | None:
    """An uncompressed array, mapped from the file; None if the array is a scalar, empty, misaligned, or holds objects."""
    opened.seek(entry.header_offset + NAME_LENGTH_AT)
    name_length, extra_length = struct.unpack("<HH", opened.read(4))
    opened.seek(entry.header_offset + LOCAL_HEADER + name_length + extra_length)
    shape, is_fortran, dtype = _header(opened, entry)
    offset = opened.tell()
    if dtype.hasobject or not shape or not prod(shape) or offset % dtype.alignment:
        return None
    return np.memmap(file, dtype, mode="c", offset=offset, shape=shape, order="F" if is_fortran else "C")


def tensor_of(file: Path, arrays: dict[str, np.ndarray], check_invariants: bool = True) -> SparseTensor:
    """The tensor of an archive's arrays; index arrays are validated if ``check_invariants``.

    Raises:
        FormatError: arrays are missing, or violate the format's invariants.
    """
    try:
        format = Format(str(required(file, arrays, MARK)))
        shape = sizes_in(file, arrays, "shape")
        values = torch.from_numpy(required(file, arrays, "values")).view(_dtype(file, arrays))
        levels = [
            tuple(torch.from_numpy(required(file, arrays, f"level{at}_{name}")) for name in level.arrays)
            for at, level in enumerate(format.levels, 1)
        ]
        _check_arrays(file, format, shape, levels)
        pattern = Pattern(format, shape, tuple(levels))
        if check_invariants:
            validate(pattern)
    except (FormatError, TypeError, ValueError) as error:
        raise error if str(file) in str(error) else FormatError(f"{file}: {error}") from error
    if values.shape != (pattern.nnz,):
        raise FormatError(f"{file} holds values of shape {tuple(values.shape)}, but its pattern stores {pattern.nnz}: save it again")
    return SparseTensor(pattern, values)


def required(file: Path, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    """An array of an archive.

    Raises:
        FormatError: there is no array of this name.
    """
    if name not in arrays:
        raise FormatError(f"{file} has no array {name!r}, which its format needs: it has {', '.join(arrays)}")
    return arrays[name]


def integers_in(file: Path, arrays: dict[str, np.ndarray], name: str, ndim: int = 1) -> np.ndarray:
    """An integer array of an archive, as int64.

    Raises:
        FormatError: the array is missing, isn't integer, or doesn't fit in int64.
    """
    array = required(file, arrays, name)
    # empty arrays may have a float data type, as written by scipy and in older graph files
    if array.ndim != ndim or (array.dtype.kind not in "iu" and array.size) or (array.dtype == np.uint64 and (array > INT64_MAX).any()):
        text = f"{name} has shape {array.shape} and dtype {array.dtype}: it must hold integers"
        raise FormatError(f"{file}: {text} in {ndim} dimension{'s' if ndim > 1 else ''}")
    return array.astype(np.int64)


def sizes_in(file: Path, arrays: dict[str, np.ndarray], name: str) -> tuple[int, ...]:
    """A shape stored in an archive.

    Raises:
        FormatError: the array is missing, isn't integer, or has negative elements.
    """
    sizes = integers_in(file, arrays, name)
    if (sizes < 0).any():
        raise FormatError(f"{file}: {name} holds {tuple(sizes.tolist())}: sizes start at 0")
    return tuple(sizes.tolist())


def _dtype(file: Path, arrays: dict[str, np.ndarray]) -> torch.dtype:
    name, stored = str(required(file, arrays, "dtype")), required(file, arrays, "values").dtype
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or str(UNKNOWN_TO_NUMPY.get(dtype, dtype)).removeprefix("torch.") != str(stored):
        raise FormatError(f"{file} holds values of {stored}, but declares {name}: save it again")
    return dtype


def _check_arrays(file: Path, format: Format, shape: tuple[int, ...], levels: list[tuple[torch.Tensor, ...]]) -> None:
    """Check the preconditions of :func:`~numscorch.tensors.validate.validate`."""
    if len(shape) != format.order:
        raise FormatError(f"{file} holds the shape {shape}, but its format {format.name} has {format.order} dimensions: save it again")
    for level, level_arrays in zip(format.levels, levels, strict=True):
        for name, array in zip(level.arrays, level_arrays, strict=True):
            if array.ndim != 1 or (level.array_dtype(name) is None and array.dtype not in INDEX_DTYPES):
                raise FormatError(f"{file} holds {name} of {level} with shape {tuple(array.shape)} and dtype {array.dtype}: save it again")


def save_safetensors(A: SparseTensor, path: str | PathLike[str], progress: bool | None = None) -> None:
    """Write a tensor to a .safetensors file for :func:`numscorch.load`; O(stored values) in time and memory.

    The file holds ``values`` and the arrays of each level under names such as ``level2_pos``. The metadata hold the format
    (``numscorch_format``), ``shape`` and ``dtype`` as text. Gradients are not stored. If writing fails, an existing file keeps its content.

    Args:
        A: the tensor.
        path: the file.
        progress: whether to show a progress bar on stderr; None shows one for more than 64 MB if stderr is a terminal.

    Raises:
        UnsupportedError: safetensors is not installed, or doesn't support the data type.
        OSError: the file can't be written.
    """
    library = _library(path)
    arrays = {"values": A.values.detach(), **dict(named_arrays(A.pattern, first=1))}
    size = sum(array.nbytes for array in arrays.values())
    metadata = {MARK: str(A.format), "shape": " ".join(map(str, A.pattern.shape)), "dtype": str(A.dtype).removeprefix("torch.")}
    with replacing(path) as file, Progress(f"writing {Path(path).name}", size, shown=progress, size=size):
        try:
            # clone: safetensors rejects tensors that share memory
            file.write(library.torch.save({name: array.clone() for name, array in arrays.items()}, metadata))
        except KeyError as error:
            raise UnsupportedError(f"{Path(path).name} can't hold {A.dtype} values: save the tensor as .npz") from error


def read_safetensors(file: Path) -> dict[str, np.ndarray]:
    """The arrays and metadata of a .safetensors file, named as in a .npz archive.

    Raises:
        FormatError: the file isn't a .safetensors file, is truncated, or was not written by numscorch.
        UnsupportedError: safetensors is not installed.
        OSError: the file can't be read.
    """
    library = _library(file)
    try:
        with library.safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            if MARK not in metadata:
                raise FormatError(f"{file} holds no SparseTensor of numscorch: read it with safetensors.torch.load_file(path)")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  not a dict
        shape = np.array(metadata.get("shape", "").split(), dtype=np.int64)
    except (library.SafetensorError, TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{file} is not a whole .safetensors file ({error}): fetch or save it again") from error
    arrays = {name: tensor.view(UNKNOWN_TO_NUMPY.get(tensor.dtype, tensor.dtype)).numpy() for name, tensor in tensors.items()}
    return {**arrays, MARK: np.array(metadata[MARK]), "shape": shape, "dtype": np.array(metadata.get("dtype", ""))}


def _library(path: str | PathLike[str]) -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        message = "needs the package safetensors, which isn't installed: pip install safetensors, or use .npz"
        raise UnsupportedError(f"{Path(path).name} {message}") from error
    return safetensors
