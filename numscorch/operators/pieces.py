"""Concatenation and splitting of SparseTensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from ..errors import SizeError
from ..tensors.sparse_tensor import SparseTensor
from .indexing import narrow, select
from .moves import MOVES
from .naming import with_name
from .rearranging import cat, place

at_least_1d, at_least_2d, at_least_3d = (MOVES[f"atleast_{order}d"] for order in (1, 2, 3))


def vstack(tensors: Sequence[Any]) -> Any:
    """Concatenate matrices vertically; vectors are rows.

    >>> import numscorch as ns
    >>> vstack([ns.from_torch(torch.eye(2)), ns.from_torch(torch.ones(2))]).shape
    torch.Size([3, 2])
    """
    return cat(at_least_2d(*tensors) if len(tensors) > 1 else [at_least_2d(tensors[0])], 0)


def hstack(tensors: Sequence[Any]) -> Any:
    """Concatenate matrices horizontally; vectors end to end."""
    parts = [at_least_1d(t) for t in tensors]
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def dstack(tensors: Sequence[Any]) -> Any:
    """Concatenate tensors along a third dimension."""
    return cat([at_least_3d(t) for t in tensors], 2)


def column_stack(tensors: Sequence[Any]) -> Any:
    """Concatenate matrices horizontally; vectors are columns."""
    return cat([t.reshape(t.numel(), 1) if t.ndim < 2 else t for t in tensors], 1)


def _cut(input: SparseTensor, at: int, bounds: Sequence[int]) -> tuple[Any, ...]:
    """Split a dimension at bounds."""
    return tuple(narrow(input, at, start, max(stop - start, 0)) for start, stop in pairwise(bounds))


def split(tensor: SparseTensor, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None) -> tuple[Any, ...]:
    """Split a dimension into parts of one size, with a smaller last part, or into the listed sizes.

    Raises:
        SizeError: the sizes do not sum to the dimension's size, or a size is not positive.

    >>> import numscorch as ns
    >>> [part.shape[0] for part in split(ns.from_torch(torch.eye(5)), 2)]
    [2, 2, 1]
    """
    at = place(dim, tensor.ndim)
    size, sizes = tensor.shape[at], split_size if split_size_or_sections is None else split_size_or_sections
    if isinstance(sizes, int):
        if sizes < (1 if size else 0):
            raise SizeError(f"split into parts of size {sizes} along dim {dim}: give a positive one")
        return _cut(tensor, at, [*range(0, max(size, 1), max(sizes, 1)), size])
    bounds = [0]
    for part in sizes:
        bounds.append(bounds[-1] + part)
    if bounds[-1] != size or any(part < 0 for part in sizes):
        raise SizeError(f"split into sizes {tuple(sizes)} along dim {dim}: they must add up to {size}")
    return _cut(tensor, at, bounds)


def chunk(input: SparseTensor, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """Split a dimension into at most ``chunks`` parts of equal size; the last part may be smaller."""
    if chunks < 1:
        raise SizeError(f"chunk into {chunks} parts: give a positive number")
    size = input.shape[place(dim, input.ndim)]
    return split(input, -(-size // chunks), dim) if size else tuple(narrow(input, dim, 0, 0) for _ in range(chunks))


def tensor_split(input: SparseTensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None) -> Any:
    """Split a dimension into parts whose sizes differ by at most 1, or at the given indices."""
    at = place(dim, input.ndim)
    given, size = next(bound for bound in (indices_or_sections, indices, sections) if bound is not None), input.shape[at]
    given = given.tolist() if isinstance(given, torch.Tensor) else given
    if not isinstance(given, int):
        ends = [min(max(bound + size * (bound < 0), 0), size) for bound in given]
        return _cut(input, at, [0, *ends, size])
    if given < 1:
        raise SizeError(f"tensor_split into {given} parts: give a positive number")
    longer = size % given
    return _cut(input, at, [number * (size // given) + min(number, longer) for number in range(given + 1)])


def _splitting(name: str, dim: int) -> Callable[..., Any]:
    def function(input: SparseTensor, indices_or_sections: Any) -> Any:
        at = dim if input.ndim > 1 else 0
        if isinstance(indices_or_sections, int) and (indices_or_sections < 1 or input.shape[at] % indices_or_sections):
            raise SizeError(f"{name} of size {input.shape[at]} into {indices_or_sections} equal parts: use tensor_split")
        return tensor_split(input, indices_or_sections, at)

    return with_name(function, name, f"torch's {name}: split into equal parts, or at the given indices.")


def unbind(input: SparseTensor, dim: int = 0) -> tuple[Any, ...]:
    """The slices along a dimension; the dimension is removed."""
    at = place(dim, input.ndim)
    return tuple(select(input, at, number) for number in range(input.shape[at]))


PIECES: dict[str, Callable[..., Any]] = {
    "chunk": chunk,
    "column_stack": column_stack,
    "concatenate": cat,
    "dstack": dstack,
    "hsplit": _splitting("hsplit", 1),
    "hstack": hstack,
    "row_stack": vstack,
    "split": split,
    "split_with_sizes": split,
    "tensor_split": tensor_split,
    "unbind": unbind,
    "vsplit": _splitting("vsplit", 0),
    "vstack": vstack,
}
