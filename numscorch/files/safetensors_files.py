"""SparseTensors in .safetensors files: the arrays, with format, shape and data type in the metadata."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from types import ModuleType

import numpy as np

from ..errors import FormatError, UnsupportedError
from ..machine.atomic_files import replacing
from ..machine.progress import Progress
from ..tensors.pattern import named_arrays
from ..tensors.sparse_tensor import SparseTensor
from .archives import MARK, UNKNOWN_TO_NUMPY


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
