"""Indexing of a SparseTensor by integers, slices, masks and lists, with torch's semantics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import RangeError, SizeError, UnsupportedError
from ..ir.format import CSC, CSR, sorted_format
from ..ir.level import ranges
from ..machine.memory import COORDINATE, check_entries
from ..tensors.sparse_tensor import SparseTensor
from .rearranging import Moved, Read, place, rearranged, unsqueeze


@dataclass(frozen=True, slots=True)
class Chosen:
    """The selected coordinates of one dimension, in their new order; ``is_one`` if an integer index removes the dimension."""

    numbers: range | tuple[int, ...]
    is_one: bool = False


def getitem(input: SparseTensor, key: Any) -> Any:
    """``A[i]``, ``A[1:3]``, ``A[:, mask]``, ``A[[2, 0]]``, ``A[..., None]``; returns a SparseTensor, or a 0-dimensional strided tensor.

    One dimension may be indexed by a list, a mask of its length, or an index tensor; ``gathering`` handles several dimensions.

    Raises:
        SizeError: an index is out of range, or there are more indices than dimensions.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> A[1].to_dense(), A[0, 1], A[:, [1, 0]].to_dense().tolist()
    (tensor([3., 4.]), tensor(2.), [[2.0, 0.0], [4.0, 3.0]])
    """
    keys = spelled_out([plain(one) for one in (key if isinstance(key, tuple) else (key,))], input.ndim)
    chosen = [_chosen(one, size, at) for at, (one, size) in enumerate(zip([k for k in keys if k is not None], input.shape, strict=True))]
    result = selected(input, chosen)
    at = 0
    for one in keys:
        if one is None:
            result = unsqueeze(result, at) if isinstance(result, SparseTensor) else result.unsqueeze(at)
        at += one is None or not isinstance(one, int)
    return result


def selected(input: SparseTensor, chosen: Sequence[Chosen]) -> Any:
    """The entries at the selected coordinates."""
    if all(c.numbers == range(size) and not c.is_one for c, size in zip(chosen, input.shape, strict=True)):
        return input
    shape = [len(c.numbers) for c in chosen if not c.is_one]

    def move(indices: np.ndarray) -> Moved:
        kept, columns = np.arange(indices.shape[1]), list[np.ndarray]()
        for row, c in zip(indices, chosen, strict=True):
            places, which = _matches(row[kept], c.numbers)
            kept, columns = kept[which], [column[which] for column in columns]
            columns += [] if c.is_one else [places]
        return np.stack(columns) if columns else np.empty((0, len(kept)), np.int64), kept

    is_remembered = all(isinstance(c.numbers, range) for c in chosen)
    return rearranged(input, ("taken", tuple(chosen)) if is_remembered else None, shape, move, read=lambda: _in_rows(input, chosen))


def _in_rows(input: SparseTensor, chosen: Sequence[Chosen]) -> Read | None:
    """The entries in the selected rows of a CSR matrix, or columns of a CSC matrix.

    It reads only these rows. Returns None for other formats, and if all rows are selected.
    """
    if sorted_format(input.format) not in (CSR, CSC):
        return None
    outer = input.format.mode_order[0]
    numbers = chosen[outer].numbers
    if numbers == range(input.shape[outer]):
        return None
    rows = np.arange(numbers.start, numbers.stop, numbers.step) if isinstance(numbers, range) else np.unique(np.array(numbers, np.int64))
    pos, crd = input.pattern.level_arrays(1)
    counts = pos[rows + 1] - pos[rows]
    positions = ranges(pos[rows], counts)
    columns, of_entries = crd[positions].astype(np.int64), rows.repeat(counts)
    return np.stack([columns, of_entries] if outer else [of_entries, columns]), positions


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


def plain(key: Any) -> Any:
    """Convert numpy integers and integer tensors with one element to Python integers."""
    is_number = hasattr(key, "__index__") and not isinstance(key, bool)
    if isinstance(key, torch.Tensor | np.ndarray | np.generic):
        is_number = key.ndim == 0 and torch.as_tensor(key).dtype not in (torch.bool, torch.float32, torch.float64)
    return int(key) if is_number else key


def spelled_out(keys: Sequence[Any], ndim: int) -> list[Any]:
    """Expand the ellipsis and omitted dimensions to full slices: one key for each dimension."""
    dots = [at for at, key_ in enumerate(keys) if key_ is Ellipsis]
    count = sum(key_ is not None and key_ is not Ellipsis for key_ in keys)
    if count > ndim or len(dots) > 1:
        raise RangeError(f"{count} indices of a {ndim}-dimensional tensor: give at most {ndim}, and one ellipsis")
    at = dots[0] if dots else len(keys)
    slices: list[Any] = [slice(None)] * (ndim - count)
    return [*keys[:at], *slices, *keys[at + 1 :]]


def _chosen(key: Any, size: int, dim: int) -> Chosen:
    if isinstance(key, bool):
        raise UnsupportedError("a bool as index: use None for a new dimension, or an empty slice")
    if isinstance(key, int):
        return Chosen((_number(key, size, dim),), is_one=True)
    if isinstance(key, slice):
        if key.step is not None and key.step < 1:
            raise SizeError(f"a step of {key.step} along dim {dim}: it must be positive, as in torch")
        return Chosen(range(*key.indices(size)))
    array = torch.as_tensor(key) if not isinstance(key, list) or key else torch.empty(0, dtype=torch.int64)
    if array.ndim == 0 and not array.is_floating_point() and array.dtype != torch.bool:
        return Chosen((_number(int(array), size, dim),), is_one=True)
    if array.ndim != 1 or array.is_floating_point():
        raise UnsupportedError(
            f"an index of shape {tuple(array.shape)} and dtype {array.dtype}: index a dimension by a list of numbers or a mask"
        )
    if array.dtype == torch.bool:
        if len(array) != size:
            raise RangeError(f"a mask of length {len(array)} along dim {dim}, whose size is {size}")
        array = array.nonzero().reshape(-1)
    return Chosen(tuple(_number(number, size, dim) for number in array.tolist()))


def _number(number: int, size: int, dim: int) -> int:
    if not -size <= number < size:
        raise RangeError(f"index {number} is out of range along dim {dim}, whose size is {size}")
    return number % size


def _along(input: SparseTensor, dim: int, chosen: Chosen) -> Any:
    at = place(dim, input.ndim)
    return selected(input, [chosen if d == at else Chosen(range(size)) for d, size in enumerate(input.shape)])


def select(input: SparseTensor, dim: int, index: int) -> Any:
    """The slice at one coordinate of a dimension; the dimension is removed."""
    at = place(dim, input.ndim)
    return _along(input, at, Chosen((_number(int(index), input.shape[at], at),), is_one=True))


def index_select(input: SparseTensor, dim: int, index: torch.Tensor) -> Any:
    """The slices at these coordinates of a dimension, in the given order."""
    at = place(dim, input.ndim)
    return _along(input, at, _chosen(torch.atleast_1d(torch.as_tensor(index)), input.shape[at], at))


def narrow(input: SparseTensor, dim: int, start: int, length: int) -> Any:
    """``length`` slices of a dimension, from ``start`` on."""
    at = place(dim, input.ndim)
    size = input.shape[at]
    first = start + size * (start < 0)
    if not 0 <= first <= first + length <= size:
        raise RangeError(f"narrow from {start} with length {length} along dim {dim}, whose size is {size}")
    return _along(input, at, Chosen(range(first, first + length)))


def triangle(input: SparseTensor, diagonal: int, lower: bool) -> SparseTensor:
    """The entries on and below (``lower``) or on and above a diagonal of the last two dimensions."""
    if input.ndim < 2:
        raise SizeError(f"tril and triu take matrices, not {input.ndim} dimensions")

    def move(indices: np.ndarray) -> Moved:
        above = indices[-1] - indices[-2] - diagonal
        kept = np.flatnonzero(above <= 0 if lower else above >= 0)
        return indices[:, kept], kept

    return rearranged(input, ("triangle", diagonal, lower), input.shape, move)


def tril(input: SparseTensor, diagonal: int = 0) -> SparseTensor:
    """The entries on and below a diagonal."""
    return triangle(input, diagonal, lower=True)


def triu(input: SparseTensor, diagonal: int = 0) -> SparseTensor:
    """The entries on and above a diagonal."""
    return triangle(input, diagonal, lower=False)


def diagonal(input: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The entries at ``j - i == offset`` of two dimensions, as the last dimension of a SparseTensor."""
    first, second = place(dim1, input.ndim), place(dim2, input.ndim)
    if first == second:
        raise SizeError(f"diagonal of dim {dim1} and dim {dim2}: give two different dimensions")
    rows, columns = input.shape[first], input.shape[second]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    other_dims = [d for d in range(input.ndim) if d not in (first, second)]

    def move(indices: np.ndarray) -> Moved:
        kept = np.flatnonzero(indices[second] - indices[first] == offset)
        along = np.minimum(indices[first], indices[second])
        return np.stack([*(indices[d][kept] for d in other_dims), along[kept]]), kept

    return rearranged(input, ("diagonal", offset, first, second), [*(input.shape[d] for d in other_dims), length], move, order=False)
