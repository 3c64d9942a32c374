"""Indexing by integers, slices, lists, masks and index tensors, with torch's semantics; and select, narrow, gather, take, nonzero.

Gathering n single entries returns a dense tensor in O(n log nnz); slices stay sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_torch
from ..convert.matrices import listing
from ..convert.row_selection import with_rows
from ..convert.values import densified, looked_up, values_of
from ..errors import IndexKindError, OperandError, RangeError, SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..ir.format import COO
from ..machine.memory import COORDINATE, check_entries
from ..schedule import tuning
from ..tensors.coordinate_order import sorting
from ..tensors.modes import as_numpy, made_outside
from ..tensors.packing import check_countable, coordinates, entry_columns, numbered
from ..tensors.restriction import Numbers, entries_of, has_fibres, is_whole, run_of, select as restrict
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import as_own, is_sparse
from .naming import with_name
from .reshaping import fitting, normalize_dim, rebuilt, reshape, sum_of

NUMBERS = (torch.int8, torch.int16, torch.int32, torch.int64)  # data types of integer indices; other types are masks or invalid
VECTOR = COO(1)
Selection = int | Numbers  # an integer removes the dimension


def select_coordinates(input: SparseTensor, selections: Sequence[Selection]) -> Any:
    """A copy of the entries at the selected coordinates, one selection for each dimension."""
    if (run := run_of(input.pattern, selections)) is not None:
        (start, stop, crd), values = run, input._values
        if crd is not None:
            size, dtype = input.pattern.shape[input.format.mode_order[-1]], input.pattern.index_dtype
            row = made_outside(lambda: listing([torch.from_numpy(crd.astype(dtype))], (size,), VECTOR))
            return SparseTensor.trusted(row, values[start:stop].clone())
        return values[start].clone() if stop == start + 1 else sum_of(values[start:stop])  # a sum takes twice as long
    if all(not isinstance(selection, int) and is_whole(selection, size) for selection, size in zip(selections, input.shape, strict=True)):
        return input.clone()
    selected = [range(selection, selection + 1) if isinstance(selection, int) else selection for selection in selections]
    remaining = [d for d, selection in enumerate(selections) if not isinstance(selection, int)]
    key = None if any(isinstance(selection, np.ndarray) for selection in selections) else ("selected", *selections)
    shape = tuple(len(selected[d]) for d in remaining)
    input, selected = with_rows(input, selected)
    if len(shape) == input.ndim and all(map(is_whole, selected, input.shape)):
        return input
    return rebuilt(input, key, shape, lambda: restrict(input.pattern, selected, remaining, fitting(input, shape, True)))


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
            raise SizeError(f"a step of {key.step} along dim {dim}: it must be positive, as in torch; A.flip({dim}) reverses a dimension")
        return range(*key.indices(size))
    if isinstance(key, torch.Tensor):
        return as_numpy(in_range(key, size, dim))
    if not -size <= key < size:
        raise RangeError(f"index {key} is out of range along dim {dim}, whose size is {size}")
    return key % size


def in_range(numbers: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Check coordinates, and make negative ones nonnegative.

    Raises:
        RangeError: a coordinate is out of range.
    """
    if not numbers.numel() or (numbers.min() >= 0 and numbers.max() < size):
        return numbers
    outside = ((numbers < -size) | (numbers >= size)).nonzero()
    if len(outside):
        raise RangeError(f"index {int(numbers[tuple(outside[0])])} is out of range along dim {dim}, whose size is {size}")
    return torch.where(numbers < 0, numbers + size, numbers)


def _along(input: SparseTensor, dim: int, selection: Selection) -> Any:
    return select_coordinates(input, [selection if d == dim else range(size) for d, size in enumerate(input.shape)])


def select(input: SparseTensor, dim: int, index: int) -> Any:
    """The slice at one coordinate of a dimension; the dimension is removed.

    Args:
        input: a SparseTensor.
        dim: the dimension.
        index: the coordinate; negative ones count from the end.

    Returns:
        A SparseTensor; for vectors, a dense tensor without dimensions.

    Raises:
        OperandError: an argument is not an integer.
        RangeError: the dimension does not exist, or the coordinate is out of range.

    >>> import numscorch as ns
    >>> ns.select(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]])), 1, 0).to_dense()
    tensor([0., 3.])
    """
    at = normalize_dim(dim, input.ndim)
    return _along(input, at, selection_of(index, input.shape[at], at))


def narrow(input: SparseTensor, dim: int, start: int, length: int) -> Any:
    """A range of consecutive coordinates of a dimension.

    Args:
        input: a SparseTensor.
        dim: the dimension.
        start: the first coordinate; negative ones count from the end.
        length: the number of coordinates.

    Returns:
        A SparseTensor whose dimension ``dim`` has size ``length``; a copy of the entries.

    Raises:
        OperandError: an argument is not an integer.
        RangeError: the dimension does not exist, or the range exceeds it.

    >>> import numscorch as ns
    >>> ns.narrow(ns.from_torch(torch.tensor([0.0, 2.0, 3.0])), 0, 1, 2).to_dense()
    tensor([2., 3.])
    """
    at = normalize_dim(dim, input.ndim)
    size = input.shape[at]
    first = start + size * (start < 0)
    if not 0 <= first <= first + length <= size:
        raise RangeError(f"narrow from {start} with length {length} along dim {dim}, whose size is {size}")
    return _along(input, at, range(first, first + length))


def getitem(input: SparseTensor, key: Any) -> Any:
    """``A[i]``, ``A[1:3]``, ``A[..., None]``, ``A[[2, 0]]``, ``A[:, mask]``, ``A[rows, columns]``, ``A[A > 0]``, ``A[index]``.

    Returns a SparseTensor, or a strided tensor if integers, lists or masks index every dimension. ``A[rows[:, None], columns]`` and
    ``A[np.ix_(rows, columns)]`` return the SparseTensor of these rows and columns.

    Complexity:
        O(entries of the selected rows + result), where rows are the coordinates of leading dense levels; O(nnz + result) in other
        formats. Selections that do not increase sort the result, unless they select rows.

    Raises:
        RangeError: an index is out of range, or there are more indices than dimensions.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> A[[0, 1], [1, 0]], A[A > 2]
    (tensor([2., 3.]), tensor([3., 4.]))
    """
    if isinstance(key, SparseTensor) and key.dtype == torch.bool and _shares_entries(input, key):
        return _entries_at(input, as_numpy(key.values))
    given = key if isinstance(key, tuple) else (key,)
    shape = input.pattern.shape
    if len(given) <= len(shape) and {int, slice}.issuperset(map(type, given)):
        given = (*given, *[slice(None)] * (len(shape) - len(given)))
        return select_coordinates(input, list(map(selection_of, given, shape, range(len(shape)))))
    indices = list(map(as_plain_index, given))
    for key_ in indices:
        if not isinstance(key_, INDICES):
            raise IndexKindError(f"{key_!r} as index: index by integers, slices, None, ..., lists of integers, masks and tensors")
    keys = expand_keys(_without_masks(indices, input), input.ndim)
    lists = [key_ for key_ in keys if isinstance(key_, torch.Tensor)]
    is_selection = _is_outer(keys) and not any(is_sparse(key_) for key_ in indices)
    simple = [key_ if not isinstance(key_, torch.Tensor) else key_.reshape(-1) if is_selection else slice(None) for key_ in keys]
    selected = [key_ for key_ in simple if key_ is not None]
    result = select_coordinates(input, [selection_of(*args) for args in zip(selected, input.shape, range(input.ndim), strict=True)])
    keys, sizes = [key_ for key_ in keys if not isinstance(key_, int)], iter(result.shape)
    if len(keys) > result.ndim:
        result = result.reshape([1 if key_ is None else next(sizes) for key_ in keys])
    places = [at for at, key_ in enumerate(keys) if isinstance(key_, torch.Tensor)]
    return _picked(result, places, lists) if lists and not is_selection else result


def _shares_entries(input: SparseTensor, mask: SparseTensor) -> bool:
    """Whether a mask stores the entries of a tensor, in an order that the format determines."""
    format = input.format
    return format.is_ordered and has_fibres(format) and not format.is_dense and input.pattern.stores_as(mask.pattern)


def _entries_at(input: SparseTensor, is_kept: np.ndarray) -> torch.Tensor:
    """The values of the entries that a mask of the stored values keeps, in row-major order of the coordinates."""
    kept = np.flatnonzero(is_kept)
    values = input.values.index_select(0, torch.from_numpy(kept))
    if input.format.is_row_major:
        return values
    pattern = made_outside(lambda: entries_of(input.pattern, is_kept, kept))
    return SparseTensor.trusted(pattern, values).to(COO(input.ndim)).values


def _is_outer(keys: Sequence[Any]) -> bool:
    """Whether index tensors select rows and columns, as those of ``np.ix_`` do: the n-th one varies along its n-th dimension only."""
    keys = [key for key in keys if not isinstance(key, int)]
    places = [at for at, key in enumerate(keys) if isinstance(key, torch.Tensor)]
    order = max((keys[at].ndim for at in places), default=0)
    axes = [(number, axis, size) for number, at in enumerate(places) for axis, size in enumerate(keys[at].shape, order - keys[at].ndim)]
    is_adjacent = not places or places[-1] - places[0] < len(places)
    return is_adjacent and order == len(places) and all(axis == number or size == 1 for number, axis, size in axes)


LISTS = (list, range, torch.Tensor, np.ndarray, SparseTensor)
MASKS = (torch.bool, torch.uint8)
INDICES = (int, slice, type(None), type(Ellipsis), *LISTS)


def _without_masks(keys: Sequence[Any], input: SparseTensor) -> list[Any]:
    """Convert lists to index tensors, and a mask to several: one for each dimension of the mask.

    Raises:
        RangeError: a mask's shape differs from the dimensions that it indexes.
        IndexKindError: an index holds neither integers nor booleans.
        UnsupportedError: an index is a boolean without dimensions.
    """
    keys = [_as_indices(key) if isinstance(key, LISTS) else key for key in keys]
    counts = [key.ndim if _is_mask(key) else key is not None for key in keys]
    dots = next((at for at, key in enumerate(keys) if key is Ellipsis), len(keys))
    without: list[Any] = []
    for at, key in enumerate(keys):
        first = sum(counts[:at]) if at < dots else input.ndim - sum(counts[at:])
        if _is_mask(key) and tuple(key.shape) != tuple(input.shape[first : first + key.ndim]):
            shapes = f"{tuple(key.shape)} at dim {first} of a tensor of shape {tuple(input.shape)}"
            raise RangeError(f"a mask of shape {shapes}: they must agree")
        without += _places_of(key) if _is_mask(key) else [key]
    return without


def _is_mask(key: Any) -> bool:
    return getattr(key, "dtype", None) == torch.bool


def _as_indices(key: Any) -> Any:
    """Convert a list, array or tensor to a mask, sparse or strided, or to a strided int64 tensor. As in torch, uint8 is a mask.

    Raises:
        IndexKindError: the index holds neither integers nor booleans.
        UnsupportedError: the index is a boolean without dimensions.
    """
    key = key.copy() if isinstance(key, np.ndarray) else as_own(key)  # torch supports no negative strides
    if is_sparse(key) and key.dtype in MASKS:
        return key if _is_mask(key) else key != 0
    key = densified(key, "indexing")
    array = torch.as_tensor(key) if not isinstance(key, list) or key else torch.empty(0, dtype=torch.int64)
    array = array != 0 if array.dtype == torch.uint8 else array
    if _is_mask(array) and not array.ndim:
        raise UnsupportedError(f"{key!r} as index: use None for a new dimension, or an empty slice")
    if array.is_floating_point() or array.is_complex():
        raise IndexKindError(f"{key!r} as index: index by lists or dense tensors of integers, or by masks")
    return array if _is_mask(array) else array.to(torch.int64)


def _places_of(mask: Any) -> Any:
    """The coordinates of a mask's True entries, in row-major order."""
    if not isinstance(mask, SparseTensor):
        return tuple(map(torch.from_numpy, np.nonzero(as_numpy(mask))))  # 5 times as fast as torch's
    entries = mask.to(COO(mask.ndim))
    return coordinates(entries.pattern)[:, values_of(entries)]


def _picked(input: SparseTensor, places: Sequence[int], lists: Sequence[torch.Tensor]) -> Any:
    """Index the dimensions ``places`` with the index tensors ``lists``, which broadcast; returns entries or slices."""
    sizes = [input.shape[at] for at in places]
    arrays = [in_range(numbers, size, at) for numbers, size, at in zip(lists, sizes, places, strict=True)]
    shape = broadcast_shape("lists", *(numbers.shape for numbers in arrays))
    check_looked_up(shape, len(places))
    arrays = [numbers.expand(shape) for numbers in arrays]
    if len(places) == input.ndim:
        return looked_up(input, [numbers.reshape(-1) for numbers in arrays]).reshape(shape)
    first = places[0] if list(places) == list(range(places[0], places[0] + len(places))) else 0
    other_dims = [d for d in range(input.ndim) if d not in places]
    permuted = input.permute(*other_dims[:first], *places, *other_dims[first:])
    before, after = permuted.shape[:first], permuted.shape[first + len(places) :]
    merged = reshape(permuted, (*before, prod(sizes), *after))
    number = numbered(arrays, sizes)
    return reshape(index_select(merged, first, number.reshape(-1)), (*before, *shape, *after))


def check_looked_up(shape: Sequence[int], order: int) -> None:
    """Refuse a lookup whose result of this shape, with its coordinates, exceeds the memory limit.

    Raises:
        SizeError: the message has the size and the limit.
    """
    check_entries(prod(shape), order, COORDINATE, f"the dense result of shape {tuple(shape)}", "an index", "index in parts")


def index_select(input: SparseTensor, dim: int, index: torch.Tensor) -> Any:
    """The slices of a dimension at the coordinates in ``index``, in that order.

    Args:
        input: a SparseTensor.
        dim: the dimension.
        index: a dense vector of integers, or a list of them; coordinates may be repeated.

    Returns:
        A SparseTensor whose dimension ``dim`` has the size of ``index``.

    Raises:
        OperandError: the index holds floating-point or boolean values.
        RangeError: the dimension does not exist, or a coordinate is out of range.
        UnsupportedError: the index has more than one dimension.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> ns.index_select(A, 0, torch.tensor([1, 1])).to_dense()
    tensor([[3., 4.],
            [3., 4.]])
    """
    at, index = normalize_dim(dim, input.ndim), torch.atleast_1d(torch.as_tensor(index))
    if index.ndim != 1 or index.dtype == torch.uint8:
        raise UnsupportedError(f"an index of {index.dtype} and shape {tuple(index.shape)}: index a dimension by a list of numbers")
    return getitem(input, (*[slice(None)] * at, numbers_of(index, "index_select")))


def numbers_of(index: torch.Tensor, operator: str) -> torch.Tensor:
    """The coordinates in an index tensor as int64.

    Raises:
        OperandError: the index holds other values than integers, or is a mask.
    """
    if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
        raise OperandError(f"{operator} by an index of {index.dtype}: it takes int64 coordinates; select by a mask with A[mask]")
    return index.to(torch.int64)


def gather(input: SparseTensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> torch.Tensor:
    """The entries at the coordinates in ``index`` along one dimension.

    Args:
        input: a SparseTensor.
        dim: the dimension.
        index: a dense tensor of integers; other dimensions are at most as large as in ``input``.
        sparse_grad: has no effect; the gradient has the pattern of ``input``.

    Returns:
        A dense tensor in the shape of ``index``.

    Raises:
        OperandError: the index does not hold integers.
        RangeError: the dimension does not exist, or a coordinate is out of range.
        SizeError: the index has another number of dimensions than the tensor, or a larger size.

    >>> import numscorch as ns
    >>> ns.gather(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]])), 1, torch.tensor([[1], [0]]))
    tensor([[2.],
            [3.]])
    """
    at, index = normalize_dim(dim, input.ndim), numbers_of(index, "gather")
    if not index.numel():  # torch accepts an empty index of any shape
        return input.values.new_zeros(index.shape)
    fits = index.ndim == input.ndim and all(
        d == at or extent <= size for d, (extent, size) in enumerate(zip(index.shape, input.shape, strict=True))
    )
    if not fits:
        raise SizeError(f"gather along dim {dim} of shape {tuple(input.shape)} by an index of shape {tuple(index.shape)}: it must fit")
    return _looked_up_along(input, at, index)


def _looked_up_along(input: SparseTensor, at: int, index: torch.Tensor) -> torch.Tensor:
    """One entry for each element of ``index``: the element is the coordinate along ``at``, and its place in ``index`` gives the others."""
    check_looked_up(index.shape, input.ndim)
    rows = (torch.arange(extent) % max(size, 1) for extent, size in zip(index.shape, input.shape, strict=True))
    places = list(torch.meshgrid(*rows, indexing="ij"))
    places[at] = in_range(index, input.shape[at], at)
    return looked_up(input, [coords.reshape(-1) for coords in places]).reshape(index.shape)


def take(input: SparseTensor, index: torch.Tensor) -> torch.Tensor:
    """The entries at row-major positions, as if the tensor were flattened.

    Args:
        input: a SparseTensor.
        index: a dense tensor of integers.

    Returns:
        A dense tensor in the shape of ``index``.

    Raises:
        OperandError: the index is not a tensor, or does not hold integers.
        RangeError: a position is out of range.

    >>> import numscorch as ns
    >>> ns.take(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]])), torch.tensor([1, 2]))
    tensor([2., 3.])
    """
    check_countable(input.shape)
    number = in_range(numbers_of(index, "take"), prod(input.shape), 0).reshape(-1)
    return looked_up(input, torch.unravel_index(number, input.shape)).reshape(index.shape)


def take_along_dim(input: SparseTensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """The entries at the coordinates in ``indices`` along one dimension; other dimensions broadcast, unlike in ``gather``.

    Args:
        input: a SparseTensor.
        indices: a dense tensor of integers with the number of dimensions of ``input``.
        dim: the dimension; None takes entries of the flattened tensor.

    Returns:
        A dense tensor in the broadcast shape of ``indices``; a vector without ``dim``.

    Raises:
        OperandError: the indices are not integers.
        RangeError: the dimension does not exist, or a coordinate is out of range.
        SizeError: the numbers of dimensions differ, or other dimensions do not broadcast.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> ns.take_along_dim(A, torch.tensor([[1, 1, 0]]), 1)
    tensor([[2., 2., 0.],
            [4., 4., 3.]])
    """
    if dim is None:
        return take(input, indices.reshape(-1))
    at, indices = normalize_dim(dim, input.ndim), numbers_of(indices, "take_along_dim")
    if indices.ndim != input.ndim:
        raise SizeError(f"take_along_dim of a {input.ndim}-dimensional tensor by a {indices.ndim}-dimensional index: they must agree")
    shape = list(broadcast_shape("take_along_dim", *([1 if d == at else size for d, size in enumerate(t.shape)] for t in (input, indices))))
    shape[at] = indices.shape[at]
    return _looked_up_along(input, at, indices.expand(shape))


def masked_select(input: Any, mask: Any) -> torch.Tensor:
    """The entries where a mask is True, in row-major order.

    Args:
        input: a tensor, sparse or dense.
        mask: a boolean tensor, sparse or dense, that broadcasts with ``input``.

    Returns:
        A dense vector.

    Raises:
        OperandError: the mask is not boolean.
        SizeError: the shapes do not broadcast.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> ns.masked_select(A, torch.tensor([False, True])), ns.masked_select(A, A > 2)
    (tensor([2., 4.]), tensor([3., 4.]))
    """
    mask = as_own(mask if hasattr(mask, "dtype") else torch.as_tensor(mask))
    if mask.dtype != torch.bool:
        raise OperandError(f"masked_select by a mask of {mask.dtype}: it takes bool, as A != 0")
    shape = broadcast_shape("masked_select", input.shape, mask.shape)
    if tuple(mask.shape) != shape and prod(shape) > tuning.SEARCHED_VALUES and not isinstance(mask, SparseTensor):
        mask = from_torch(mask)  # copying its True entries is faster than searching all of the shape
    input, mask = (t if tuple(t.shape) == shape else t.expand(shape) for t in (input, mask))
    return getitem(input, mask) if isinstance(input, SparseTensor) else input[tuple(_places_of(mask))]


def nonzero(input: SparseTensor, *, as_tuple: bool = False) -> Any:
    """The coordinates of nonzero entries in row-major order; zeros that are stored are left out.

    Args:
        input: a SparseTensor.
        as_tuple: whether to return one vector for each dimension.

    Returns:
        A dense int64 matrix with one row for each entry, or a tuple of vectors.

    Raises:
        OperandError: ``as_tuple`` is not given by keyword.

    >>> import numscorch as ns
    >>> ns.nonzero(ns.from_torch(torch.eye(2)))
    tensor([[0, 0],
            [1, 1]])
    """
    kept = as_numpy(values_of(input).detach() != 0)
    _, columns = sorting([column[kept] for column in entry_columns(input.pattern)], input.shape, int(kept.sum()))
    indices = torch.empty((len(columns[0]) if columns else int(kept.sum()), input.ndim), dtype=torch.int64)
    for d, column in enumerate(columns):
        indices[:, d] = torch.from_numpy(column)
    return tuple(indices.t().contiguous()) if as_tuple else indices


INDEXING: dict[str, Callable[..., Any]] = {
    "argwhere": with_name(
        lambda input: nonzero(input),
        "argwhere",
        """The coordinates of nonzero entries in row-major order; zeros that are stored are left out.

    Args:
        input: a SparseTensor.

    Returns:
        A dense int64 matrix with one row for each entry.

    Raises:
        OperandError: there are further arguments.

    >>> ns.argwhere(ns.from_torch(torch.eye(2)))
    tensor([[0, 0],
            [1, 1]])
    """,
    ),
    "gather": gather,
    "index_select": index_select,
    "masked_select": masked_select,
    "narrow": narrow,
    "nonzero": nonzero,
    "select": select,
    "take": take,
    "take_along_dim": take_along_dim,
}
