"""Indexing: parts of a SparseTensor, by numbers, slices, masks and lists of numbers, as torch has them."""

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
    """The coordinates of one dimension that are taken, in their new order; ``is_one`` where the dimension goes with that."""

    numbers: range | tuple[int, ...]
    is_one: bool = False


def getitem(input: SparseTensor, key: Any) -> Any:
    """``A[i]``, ``A[1:3]``, ``A[:, mask]``, ``A[[2, 0]]``, ``A[..., None]``; a SparseTensor, or a strided tensor of no dimensions.

    One dimension may be indexed by a list, a mask of its length, or a tensor of numbers; ``gathering`` has several.

    Raises:
        SizeError: a number is out of range, or there are more than there are dimensions.

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
    """The entries at the chosen coordinates."""
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
    """The entries in the chosen rows of a CSR matrix, or columns of a CSC matrix; None of other formats, and where all are chosen.

    So one row of a long matrix is found in the time that it takes to read that row.
    """
    if sorted_format(input.format) not in (CSR, CSC):
        return None
    outer = input.format.mode_order[0]
    given = chosen[outer].numbers
    if given == range(input.shape[outer]):
        return None
    rows = np.arange(given.start, given.stop, given.step) if isinstance(given, range) else np.unique(np.array(given, np.int64))
    pos, crd = input.pattern.level_arrays(1)
    counts = pos[rows + 1] - pos[rows]
    numbers = ranges(pos[rows], counts)
    columns, of_entries = crd[numbers].astype(np.int64), rows.repeat(counts)
    return np.stack([columns, of_entries] if outer else [of_entries, columns]), numbers


def _matches(coordinates: np.ndarray, numbers: range | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Where coordinates stand among numbers, and whose these are: one may stand there several times, or not at all."""
    if isinstance(numbers, range):
        places, rest = np.divmod(coordinates - numbers.start, numbers.step)
        inside = (rest == 0) & (places >= 0) & (places < len(numbers))
        return places[inside], np.flatnonzero(inside)
    wanted = np.array(numbers, np.int64)
    order = np.argsort(wanted, kind="stable")
    first, last = (np.searchsorted(wanted[order], coordinates, side) for side in ("left", "right"))
    counts = last - first
    check_entries(int(counts.sum()), 2, COORDINATE, "the result", f"{len(numbers)} indices", "index in parts, each of fewer numbers")
    which = np.repeat(np.arange(len(coordinates)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[first[which] + within], which


def plain(key: Any) -> Any:
    """Numbers of numpy's, and tensors that hold one, as integers."""
    is_number = hasattr(key, "__index__") and not isinstance(key, bool)
    if isinstance(key, torch.Tensor | np.ndarray | np.generic):
        is_number = key.ndim == 0 and torch.as_tensor(key).dtype not in (torch.bool, torch.float32, torch.float64)
    return int(key) if is_number else key


def spelled_out(keys: Sequence[Any], ndim: int) -> list[Any]:
    """A key for each dimension: the ellipsis, and what is left out, as slices."""
    dots = [at for at, key_ in enumerate(keys) if key_ is Ellipsis]
    given = sum(key_ is not None and key_ is not Ellipsis for key_ in keys)
    if given > ndim or len(dots) > 1:
        raise RangeError(f"{given} indices of a {ndim}-dimensional tensor: give at most {ndim}, and one ellipsis")
    at = dots[0] if dots else len(keys)
    whole: list[Any] = [slice(None)] * (ndim - given)
    return [*keys[:at], *whole, *keys[at + 1 :]]


def _chosen(key: Any, size: int, dim: int) -> Chosen:
    if isinstance(key, bool):
        raise UnsupportedError("a truth value as index: use None for a new dimension, or an empty slice")
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
    """The slice at one coordinate of a dimension, without it."""
    at = place(dim, input.ndim)
    return _along(input, at, Chosen((_number(int(index), input.shape[at], at),), is_one=True))


def index_select(input: SparseTensor, dim: int, index: torch.Tensor) -> Any:
    """The slices at these coordinates of a dimension, in their order."""
    at = place(dim, input.ndim)
    return _along(input, at, _chosen(torch.atleast_1d(torch.as_tensor(index)), input.shape[at], at))


def narrow(input: SparseTensor, dim: int, start: int, length: int) -> Any:
    """So many slices of a dimension, from one on."""
    at = place(dim, input.ndim)
    size = input.shape[at]
    first = start + size * (start < 0)
    if not 0 <= first <= first + length <= size:
        raise RangeError(f"narrow from {start} with length {length} along dim {dim}, whose size is {size}")
    return _along(input, at, Chosen(range(first, first + length)))


def triangle(input: SparseTensor, diagonal: int, lower: bool) -> SparseTensor:
    """The entries on one side of a diagonal of the last two dimensions, and on it."""
    if input.ndim < 2:
        raise SizeError(f"tril and triu take matrices, not {input.ndim} dimensions")

    def move(indices: np.ndarray) -> Moved:
        above = indices[-1] - indices[-2] - diagonal
        kept = np.flatnonzero(above <= 0 if lower else above >= 0)
        return indices[:, kept], kept

    result: SparseTensor = rearranged(input, ("triangle", diagonal, lower), input.shape, move)
    return result


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
        raise SizeError(f"diagonal of dim {dim1} and dim {dim2}: these are the same dimension")
    rows, columns = input.shape[first], input.shape[second]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    others = [d for d in range(input.ndim) if d not in (first, second)]

    def move(indices: np.ndarray) -> Moved:
        kept = np.flatnonzero(indices[second] - indices[first] == offset)
        along = np.minimum(indices[first], indices[second])
        return np.stack([*(indices[d][kept] for d in others), along[kept]]), kept

    return rearranged(input, ("diagonal", offset, first, second), [*(input.shape[d] for d in others), length], move, order=False)
