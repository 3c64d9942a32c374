"""Archives: a SparseTensor of any format in one .npz file, array by array, or in a file of torch's."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import FormatError
from .ir.format import Format, rebuilt
from .ir.format_text import LEVELS
from .ir.parts import Part
from .pattern import INDEX_DTYPES, Pattern, restored
from .sparse_tensor import SparseTensor
from .validate import validate

MARK = "numscorch_format"
UNKNOWN_TO_NUMPY = {torch.bfloat16: torch.int16}
torch.serialization.add_safe_globals([SparseTensor, Format, rebuilt, Part, restored, *LEVELS.values()])  # what pickles of tensors name


def save_tensor(A: SparseTensor, path: str | PathLike[str]) -> None:
    """Write a tensor to a .npz archive, which :func:`numscorch.load` reads; O(stored values).

    It holds the format as text (``numscorch_format``), ``shape``, ``values``, their data type as text
    (``dtype``), and the arrays of each level, as ``level2_pos``.  Gradients are not kept.

    Raises:
        OSError: the file can't be written.

    >>> import tempfile, numscorch as ns
    >>> path = Path(tempfile.mkdtemp()) / "eye.npz"
    >>> save_tensor(ns.from_torch(torch.eye(3), ns.DCSR), path)
    >>> ns.load(path)
    SparseTensor(DCSR, shape=(3, 3), nnz=3, density=0.333, float32, int32 indices)
    """
    values = A.values.detach().view(UNKNOWN_TO_NUMPY.get(A.dtype, A.dtype))
    arrays: dict[str, Any] = {
        MARK: str(A.format),
        "shape": np.array(A.pattern.shape, dtype=np.int64),
        "dtype": str(A.dtype).removeprefix("torch."),
        "values": values.numpy(),
        **{name: array.numpy() for name, array in _named_arrays(A.pattern)},
    }
    with Path(path).open("wb") as file:
        np.savez(file, **arrays)


def _named_arrays(pattern: Pattern) -> list[tuple[str, torch.Tensor]]:
    levels = enumerate(zip(pattern.format.levels, pattern.arrays, strict=True), 1)
    return [(f"level{at}_{name}", array) for at, (level, own) in levels for name, array in zip(level.arrays, own, strict=True)]


def tensor_of(file: Path, arrays: dict[str, np.ndarray]) -> SparseTensor:
    """The tensor of an archive's arrays, which are checked as any that come from outside.

    Raises:
        FormatError: arrays are missing, or break what the format promises.
    """
    try:
        format = Format(str(_found(file, arrays, MARK)))
        shape = tuple(int(size) for size in _found(file, arrays, "shape").reshape(-1))
        values = torch.from_numpy(_found(file, arrays, "values")).view(_dtype(file, arrays))
        levels = [
            tuple(torch.from_numpy(_found(file, arrays, f"level{at}_{name}")) for name in level.arrays)
            for at, level in enumerate(format.levels, 1)
        ]
        _check_arrays(file, format, shape, levels)
        pattern = Pattern(format, shape, tuple(levels))
        validate(pattern)
    except (FormatError, TypeError, ValueError) as error:
        raise error if str(file) in str(error) else FormatError(f"{file}: {error}") from error
    if values.shape != (pattern.nnz,):
        raise FormatError(f"{file} holds values of shape {tuple(values.shape)}, but its pattern stores {pattern.nnz}: save it again")
    return SparseTensor(pattern, values)


def _found(file: Path, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    if name not in arrays:
        raise FormatError(f"{file} has no array {name!r}, which its format needs: it has {', '.join(arrays)}")
    return arrays[name]


def _dtype(file: Path, arrays: dict[str, np.ndarray]) -> torch.dtype:
    name, stored = str(_found(file, arrays, "dtype")), _found(file, arrays, "values").dtype
    dtype = getattr(torch, name, None)
    held = isinstance(dtype, torch.dtype) and str(UNKNOWN_TO_NUMPY.get(dtype, dtype)).removeprefix("torch.") == str(stored)
    if not isinstance(dtype, torch.dtype) or not held:
        raise FormatError(f"{file} holds values of {stored}, but says that they are {name}: save it again")
    return dtype


def _check_arrays(file: Path, format: Format, shape: tuple[int, ...], levels: list[tuple[torch.Tensor, ...]]) -> None:
    """What a pattern takes for granted before it can be validated."""
    if len(shape) != format.order or any(size < 0 for size in shape):
        raise FormatError(f"{file} holds the shape {shape}, but its format {format.name} has {format.order} dimensions: save it again")
    for level, own in zip(format.levels, levels, strict=True):
        for name, array in zip(level.arrays, own, strict=True):
            if array.ndim != 1 or (level.array_dtype(name) is None and array.dtype not in INDEX_DTYPES):
                raise FormatError(f"{file} holds {name} of {level} with shape {tuple(array.shape)} and dtype {array.dtype}: save it again")
