"""Selection of coordinates by integers, slices and index tensors, with torch's semantics; triangles and diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import RangeError, SizeError, UnsupportedError
from ..ir.levels import Dense
from ..machine.memory import COORDINATE, check_entries
from ..tensors.arrays import as_integer
from ..tensors.sparse_tensor import SparseTensor
from .rearranging import Moved, normalize_dim, rearranged

NUMBERS = (torch.int8, torch.int16, torch.int32, torch.int64)  # data types of indices; others are masks, or no indices
Selection = int | range | tuple[int, ...]  # coordinates of one dimension in their new order; an integer removes the dimension


def select_coordinates(input: SparseTensor, selections: Sequence[Selection]) -> Any:
    """A copy of the entries at the selected coordinates, one selection for each dimension."""
    if all(selection == range(size) for selection, size in zip(selections, input.shape, strict=True)):
        return input.clone()
    shape = [len(selection) for selection in selections if not isinstance(selection, int)]

    def move(indices: np.ndarray) -> Moved:
        kept, columns = np.arange(indices.shape[1]), list[np.ndarray]()
        for row, selection in zip(indices, selections, strict=True):
            places, which = _matches(row[kept], (selection,) if isinstance(selection, int) else selection)
            kept, columns = kept[which], [column[which] for column in columns]
            columns += [] if isinstance(selection, int) else [places]
        return np.stack(columns) if columns else np.empty((0, len(kept)), np.int64), kept

    key = ("selected", *selections) if all(isinstance(selection, range) for selection in selections) else None
    return rearranged(input, key, shape, move, rows=lambda: _rows(input, selections))


def _rows(input: SparseTensor, selections: Sequence[Selection]) -> np.ndarray | None:
    """The coordinates of a dense first level that hold the selected entries, in order; None for another first level, or for all."""
    level, part = input.format.levels[0], input.format.parts[0]
    selected = selections[part.dimension]
    if not isinstance(level, Dense) or not part.is_whole or selected == range(input.shape[part.dimension]):
        return None
    if isinstance(selected, range):
        return np.arange(selected.start, selected.stop, selected.step)
    return np.unique(np.array(selected, np.int64))


def _matches(coordinates: np.ndarray, numbers: range | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Match coordinates with selected numbers: positions among the numbers, and indices of the matching coordinates.

    A coordinate matches several times if its number is repeated.
    """
    if isinstance(numbers, range):
        places, remainder = np.divmod(coordinates - numbers.start, numbers.step)
        inside = (remainder == 0) & (places >= 0) & (places < len(numbers))
        return places[inside], np.flatnonzero(inside)
    targets = np.array(numbers, np.int64)
    order = np.argsort(targets, kind="stable")
    first, last = (np.searchsorted(targets[order], coordinates, side) for side in ("left", "right"))
    counts = last - first
    check_entries(int(counts.sum()), 2, COORDINATE, "the result", f"{len(numbers)} indices", "index in parts, each of fewer numbers")
    sources = np.repeat(np.arange(len(coordinates)), counts)
    offsets = np.arange(len(sources)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[first[sources] + offsets], sources


def as_plain_index(key: Any) -> Any:
    """Convert numpy integers and integer tensors with one element to Python integers."""
    is_number = hasattr(key, "__index__") and not isinstance(key, bool | np.bool_)
    if isinstance(key, torch.Tensor | np.ndarray):
        is_number = key.ndim == 0 and torch.as_tensor(key).dtype in NUMBERS
    return int(key) if is_number else key


def expand_keys(keys: Sequence[Any], ndim: int) -> list[Any]:
    """Expand the ellipsis and omitted dimensions to full slices: one key for each dimension."""
    dots = [at for at, key_ in enumerate(keys) if key_ is Ellipsis]
    count = sum(key_ is not None and key_ is not Ellipsis for key_ in keys)
    if count > ndim or len(dots) > 1:
        raise RangeError(f"{count} indices of a {ndim}-dimensional tensor: give at most {ndim}, and one ellipsis")
    at = dots[0] if dots else len(keys)
    slices: list[Any] = [slice(None)] * (ndim - count)
    return [*keys[:at], *slices, *keys[at + 1 :]]


def selection_of(key: Any, size: int, dim: int) -> Selection:
    """The coordinates that an integer, a slice or an index tensor selects.

    Raises:
        RangeError: an index is out of range.
        SizeError: the step of a slice is not positive.
        UnsupportedError: the key is a bool.
    """
    if isinstance(key, bool):
        raise UnsupportedError("a bool as index: use None for a new dimension, or an empty slice")
    if isinstance(key, slice):
        if key.step is not None and key.step < 1:
            raise SizeError(f"a step of {key.step} along dim {dim}: it must be positive, as in torch")
        return range(*key.indices(size))
    if isinstance(key, torch.Tensor):
        return tuple(in_range(key, size, dim).tolist())
    if not -size <= key < size:
        raise RangeError(f"index {key} is out of range along dim {dim}, whose size is {size}")
    return key % size


def in_range(numbers: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Check coordinates, and make negative ones nonnegative.

    Raises:
        RangeError: a coordinate is out of range.
    """
    outside = ((numbers < -size) | (numbers >= size)).nonzero()
    if len(outside):
        raise RangeError(f"index {int(numbers[tuple(outside[0])])} is out of range along dim {dim}, whose size is {size}")
    return torch.where(numbers < 0, numbers + size, numbers)


def _along(input: SparseTensor, dim: int, selection: Selection) -> Any:
    return select_coordinates(input, [selection if d == dim else range(size) for d, size in enumerate(input.shape)])


def select(input: SparseTensor, dim: int, index: int) -> Any:
    """The slice at one coordinate of a dimension; the dimension is removed."""
    at = normalize_dim(dim, input.ndim)
    return _along(input, at, selection_of(int(index), input.shape[at], at))


def narrow(input: SparseTensor, dim: int, start: int, length: int) -> Any:
    """``length`` slices of a dimension, from ``start`` on."""
    at = normalize_dim(dim, input.ndim)
    size = input.shape[at]
    start, length = as_integer(start), as_integer(length)
    first = start + size * (start < 0)
    if not 0 <= first <= first + length <= size:
        raise RangeError(f"narrow from {start} with length {length} along dim {dim}, whose size is {size}")
    return _along(input, at, range(first, first + length))


def triangle(input: SparseTensor, diagonal: int, lower: bool) -> SparseTensor:
    """The entries on and below (``lower``) or on and above a diagonal of the last two dimensions."""
    if input.ndim < 2:
        raise SizeError(f"tril and triu take matrices, not {input.ndim} dimensions")
    diagonal = as_integer(diagonal)

    def move(indices: np.ndarray) -> Moved:
        above = indices[-1] - indices[-2] - diagonal
        kept = np.flatnonzero(above <= 0 if lower else above >= 0)
        return indices[:, kept], kept

    return rearranged(input, ("triangle", diagonal, lower), input.shape, move)


def diagonal(input: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The entries at ``j - i == offset`` of two dimensions, as the last dimension of a SparseTensor."""
    first, second = normalize_dim(dim1, input.ndim), normalize_dim(dim2, input.ndim)
    if first == second:
        raise SizeError(f"diagonal of dim {dim1} and dim {dim2}: give two different dimensions")
    offset = as_integer(offset)
    rows, columns = input.shape[first], input.shape[second]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    other_dims = [d for d in range(input.ndim) if d not in (first, second)]

    def move(indices: np.ndarray) -> Moved:
        kept = np.flatnonzero(indices[second] - indices[first] == offset)
        along = np.minimum(indices[first], indices[second])
        return np.stack([*(indices[d][kept] for d in other_dims), along[kept]]), kept

    return rearranged(input, ("diagonal", offset, first, second), [*(input.shape[d] for d in other_dims), length], move, order=False)
