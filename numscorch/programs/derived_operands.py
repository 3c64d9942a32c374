"""Derived operands of programs: slices such as ``A[:,0]``, and vectors of ones for indices that have only a size.

The parser names such an operand after its derivation: ``A[i,0]`` reads the operand ``A[:,0]``, and ``:j`` is 1 for each coordinate of j.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from ..errors import ExpressionError, RangeError, UnsupportedError
from ..frontend.statements import SIZE, ProgramPart, base_of, is_size, parse_program
from ..tensors.sparse_tensor import SparseTensor


@lru_cache(maxsize=1024)
def derives(text: str) -> bool:
    """Return whether a program has derived operands: slices of tensors, or indices with only a size."""
    return any(base_of(name) != name for part in parse_program(text) for name in part.operands)


def is_index_size(text: str, name: str) -> bool:
    """Return whether the operand ``name`` only gives the size of an index of the program."""
    return any(f"{SIZE}{name}" in part.operands for part in parse_program(text))


def with_derived(text: str, parts: Sequence[ProgramPart], values: dict[str, Any]) -> None:
    """Add to ``values`` the derived operands of parts, if ``values`` has the tensors from which they derive.

    Raises:
        ExpressionError: a slice has another number of dimensions than its tensor, or a size is not a whole number.
        RangeError: a constant index is out of range.
        UnsupportedError: a slice of something other than a tensor.

    >>> from ..frontend.statements import parse_program
    >>> values = {"A": torch.arange(6).reshape(2, 3)}
    >>> with_derived("", parse_program("y[i] = A[i,1]"), values)
    >>> values["A[:,1]"]
    tensor([1, 4])
    """
    for name in dict.fromkeys(name for part in parts for name in part.operands):
        base = base_of(name)
        if name != base and name not in values and base in values:
            values[name] = _ones(text, base, values) if is_size(name) else _slice(text, name, values[base])


def _slice(text: str, name: str, tensor: Any) -> Any:
    key = key_of(name)
    if not isinstance(tensor, SparseTensor | torch.Tensor):
        base = base_of(name)
        raise UnsupportedError(
            f"{name} is a slice of {base}, and formats have no slices; got {_shown(tensor)}: give a tensor as {base}\n  {text}"
        )
    if tensor.ndim != len(key):
        raise ExpressionError(f"{name} has {len(key)} indices, but {base_of(name)} has {tensor.ndim} dimensions\n  {text}")
    for at, entry in enumerate(key):
        if isinstance(entry, int) and not -tensor.shape[at] <= entry < tensor.shape[at]:
            raise RangeError(f"index {entry} of {name} is out of range along dim {at}, whose size is {tensor.shape[at]}\n  {text}")
    return tensor[key]


def key_of(name: str) -> tuple[int | slice, ...]:
    """Convert the name of a slice to a Python index.

    >>> key_of("A[0,:,1:8:2]")
    (0, slice(None, None, None), slice(1, 8, 2))
    """
    entries = [entry.split(":") for entry in name.partition("[")[2].removesuffix("]").split(",")]
    return tuple(slice(*(int(n) if n else None for n in bounds)) if len(bounds) > 1 else int(bounds[0]) for bounds in entries)


def _ones(text: str, name: str, values: Mapping[str, Any]) -> torch.Tensor:
    """Return a vector of ones with the size of an index, in a data type that does not promote other operands."""
    size = _size(values[name])
    if size is None:
        raise ExpressionError(
            f"index {name} is on the left side only: {name}= is its size, a whole number, not {_shown(values[name])}\n  {text}"
        )
    dtypes = {value.dtype for key, value in values.items() if isinstance(value, SparseTensor | torch.Tensor) and key != name}
    dtype = torch.get_default_dtype() if not dtypes else dtypes.pop() if len(dtypes) == 1 else torch.bool
    return torch.ones(1, dtype=dtype).expand(size)


def _size(value: Any) -> int | None:
    """Return a nonnegative integer of Python, numpy or torch as an int; None for anything else."""
    if isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool:
        return None
    try:
        size = operator.index(value)
    except TypeError:
        return None
    return size if size >= 0 else None


def _shown(value: Any) -> str:
    """Describe a value for an error: the repr of numbers, strings and None, else the type."""
    return repr(value) if value is None or isinstance(value, int | float | complex | str) else f"a {type(value).__name__}"
