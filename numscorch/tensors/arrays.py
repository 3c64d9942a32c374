"""Convert user arrays to tensors, and validate their dtype, device, coordinates and order; refuse operands of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..errors import FormatError, OperandError, SizeError, UnsupportedError
from ..frontend.datatypes import LISTED, STORED
from ..ir.level import INT64_MAX
from .coordinate_order import are_within, in_order
from .modes import check_not_traced, plain_tensor


def as_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Convert a shape to a tuple of ints.

    Raises:
        SizeError: a size is not an integer, is negative, or exceeds int64.

    >>> as_shape(torch.Size([2, 3]))
    (2, 3)
    """
    try:
        sizes = tuple(index(size) for size in shape)
    except TypeError as error:
        raise SizeError(f"shape {shape!r} is not a sequence of integers: write it as (rows, columns)") from error
    if any(size < 0 for size in sizes):
        raise SizeError(f"shape {sizes} has a negative size: sizes start at 0")
    if any(size > INT64_MAX for size in sizes):
        suggestion = "use smaller sizes, or keep the parts apart"
        raise SizeError(f"shape {sizes} has a size that int64 can't hold: the largest is {INT64_MAX}; {suggestion}")
    return sizes


def as_integer(number: Any) -> int:
    """Convert a dimension, size or count to an int; accepts NumPy's integers and tensors with one element.

    Raises:
        OperandError: the argument is not an integer.
    """
    try:
        return index(number)
    except TypeError as error:
        raise OperandError(f"{number} instead of an integer: dimensions, sizes and counts are integers") from error


def as_integers(*numbers: Any) -> tuple[int, ...]:
    """The integers of an argument that is passed one by one or as a sequence.

    Raises:
        OperandError: an argument is not an integer.

    >>> as_integers(2, 3), as_integers([2, np.int64(3)]), as_integers(torch.tensor(2))
    ((2, 3), (2, 3), (2,))
    """
    is_listed = len(numbers) == 1 and hasattr(numbers[0], "__iter__") and getattr(numbers[0], "ndim", 1) != 0
    return tuple(map(as_integer, numbers[0] if is_listed else numbers))


def as_tensor(data: torch.Tensor | ArrayLike, name: str) -> torch.Tensor:
    """Convert data to a tensor, without a copy for tensors and writable NumPy arrays; ``name`` is used in errors.

    Raises:
        UnsupportedError: torch cannot represent the data.
    """
    if isinstance(data, torch.Tensor):
        return data
    try:
        if isinstance(data, (list, tuple)):
            return _from_sequence(data)
        array = np.asarray(data)
        native = array.dtype.newbyteorder("=")
        if not array.flags.writeable or array.dtype != native or any(stride < 0 for stride in array.strides):
            array = np.array(array, dtype=native, order="C")  # from_numpy rejects some of these, and kernels need writable memory
        return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError) as error:
        dtype = f" of dtype {data.dtype}" if isinstance(data, np.ndarray) else ""
        raise UnsupportedError(f"can't make a tensor of {name}, a {type(data).__name__}{dtype}: {error}") from error


def _from_sequence(data: Sequence[object]) -> torch.Tensor:
    """Convert a list of numbers, or a list with one array for each dimension."""
    if any(isinstance(item, torch.Tensor) and item.ndim for item in data):
        return torch.stack([torch.as_tensor(item) for item in data])
    if any(isinstance(item, np.ndarray) for item in data):
        return as_tensor(np.stack([np.asarray(item) for item in data]), "data")
    return torch.as_tensor(data)


def as_values(data: torch.Tensor | ArrayLike) -> torch.Tensor:
    """Convert data to 1-D values that kernels can read; gradients flow through.

    Raises:
        SizeError: the data is not 1-D.
        UnsupportedError: an unsupported dtype, device or layout.
    """
    values = check_values(as_tensor(data, "values"))
    if values.ndim != 1:
        raise SizeError(f"values has shape {tuple(values.shape)}: pass one number for each entry, shape (nnz,)")
    return values


def as_indices(data: torch.Tensor | ArrayLike, name: str) -> torch.Tensor:
    """Convert data to an index tensor: int32 and int64 are kept, other integers become int64.

    Raises:
        FormatError: the data has a dtype other than integers.
        UnsupportedError: the tensor is not on the CPU, or not strided.

    >>> as_indices([0, 2], "pos").dtype
    torch.int64
    """
    check_not_traced()
    tensor = plain_tensor(as_tensor(data, name))
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise UnsupportedError(f"{name} is a {tensor.layout} tensor on {tensor.device}: pass a plain tensor on the CPU")
    if tensor.dtype in (torch.int32, torch.int64):
        return tensor.detach()
    if tensor.numel() and (tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool):
        raise _not_integers(tensor, name)
    return tensor.to(torch.int64)


def _not_integers(tensor: torch.Tensor, name: str) -> FormatError:
    text = f"{name} has dtype {tensor.dtype}, but coordinates and positions are integers"
    if tensor.dtype.is_floating_point:
        # a comparison with NaN is false, so this finds NaN as well as fractions
        invalid = (~(tensor.detach() == tensor.detach().trunc()) | tensor.detach().isinf()).nonzero()
        if len(invalid):
            at = tuple(invalid[0].tolist())
            place = f"entry {at[1]} of dimension {at[0]}" if len(at) == 2 else f"entry {at[-1]}"
            return FormatError(f"{text}: {place} is {tensor[at].item()}; remove such entries, then pass int64")
    return FormatError(f"{text}: convert it with .to(torch.int64)")


def check_coordinates(table: np.ndarray | Sequence[np.ndarray], shape: tuple[int, ...]) -> None:
    """Check that coordinates are within their dimension. O(ndim * nnz).

    Raises:
        FormatError: names the first coordinate out of range.

    >>> check_coordinates(np.array([[0, 5]]), (3,))
    Traceback (most recent call last):
    ...
    numscorch.FormatError: entry 1 has coordinate 5 in dimension 0, which has size 3: coordinates lie in 0 to 2
    """
    for dimension, size in enumerate(shape):
        column = table[dimension]
        if are_within(column, size):
            continue
        entry = int(np.flatnonzero((column < 0) | (column >= size))[0])
        allowed = f"coordinates lie in 0 to {size - 1}" if size else "it can't store anything"
        raise FormatError(f"entry {entry} has coordinate {column[entry]} in dimension {dimension}, which has size {size}: {allowed}")


def is_increasing(table: np.ndarray, mode_order: Sequence[int]) -> bool:
    """Whether entries are strictly increasing in a mode order. O(ndim * nnz)."""
    return bool(in_order([table[d] for d in mode_order]).all()) if mode_order else table.shape[1] < 2


def disordered_entry(table: np.ndarray, mode_order: Sequence[int], suggestion: str) -> FormatError:
    """An error that names the first entry out of order, and ends with ``suggestion``.

    >>> print(disordered_entry(np.array([[0, 1, 1], [2, 1, 0]]), (0, 1), "sort them"))
    entry 2 at (1, 0) comes after (1, 1): entries must be in increasing order, without duplicates; sort them
    """
    wrong = int(np.argmin(in_order([table[d] for d in mode_order]))) + 1 if mode_order else 1
    here, before = (tuple(int(c) for c in table[:, entry]) for entry in (wrong, wrong - 1))
    clash = f"repeats the coordinates {here} of entry {wrong - 1}" if here == before else f"at {here} comes after {before}"
    return FormatError(f"entry {wrong} {clash}: entries must be in increasing order, without duplicates; {suggestion}")


def check_values(values: torch.Tensor) -> torch.Tensor:
    """Check that values are strided, on the CPU, and of a supported dtype; resolves lazy conjugation and negation.

    Zeros without memory, which torch returns for some gradients, are copied to memory.

    Raises:
        UnsupportedError: an unsupported dtype, device or layout, or a subclass of torch.Tensor that kernels cannot read.

    >>> check_values(torch.ones(2))
    tensor([1., 1.])
    """
    if values.layout != torch.strided:
        layout = str(values.layout).removeprefix("torch.")
        raise UnsupportedError(f"values are a {layout} tensor, but must be a plain 1-D one: pass its .values(), or .to_dense()")
    if values.device.type != "cpu":
        of_module = ", or make those of a module with to_empty(device='cpu'), and load or initialize them" * values.is_meta
        raise UnsupportedError(f"values are on {values.device}, but numscorch runs on the CPU: move them with .cpu(){of_module}")
    check_dtype(values.dtype)
    values = plain_tensor(values).resolve_conj().resolve_neg()
    return values if torch.compiler.is_compiling() or not values._is_zerotensor() else values.clone()


def check_dtype(dtype: torch.dtype | None) -> None:
    """Check that kernels support values of a dtype; None, and objects that torch refuses, are not checked.

    Raises:
        UnsupportedError: they don't.
    """
    if isinstance(dtype, torch.dtype) and dtype not in STORED:
        raise UnsupportedError(
            f"values of dtype {dtype} are not compiled, only {LISTED}: convert with .to(torch.float32), or .astype of an array"
        )


# ---- operands of other libraries


def converter(value: object) -> str | None:
    """The function that converts an array of another library to a tensor; None for other objects.

    >>> converter(np.ones(2)), converter([1.0])
    ('torch.from_numpy', None)
    """
    if isinstance(value, np.ndarray):
        return "torch.from_numpy"
    kind = type(value)  # not the object: other tensors compute attributes
    if hasattr(kind, "to_scipy_sparse") or hasattr(kind, "to_coo"):
        return "ns.from_pydata"
    return "ns.from_scipy" if hasattr(kind, "tocsr") else getattr(kind, "wrapped_by", None)


def as_operand(value: Any, name: str) -> Any:
    """Convert a NumPy number to a Python number; return other values unchanged.

    Raises:
        OperandError: the value is an array of NumPy, SciPy or pydata/sparse; the text names the function that converts it.

    >>> as_operand(np.float32(2), "mul"), as_operand(np.array(3), "mul")
    (2.0, 3)
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    if (function := converter(value)) is not None:
        raise OperandError(f"{name} takes tensors and numbers, not {type(value).__name__}: wrap it with {function}(x)")
    return value
