"""Indexing by several lists, by multi-dimensional masks and by index tensors; gather, take, argwhere; and assignment to entries.

Gathering n single entries returns a dense tensor in O(n log nnz); slices stay sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from ..convert.values import densified, looked_up, others_at, strided, values_of
from ..errors import IndexKindError, OperandError, RangeError, SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..ir.format import COO
from ..machine.memory import COORDINATE, check_entries
from ..tensors.modes import as_numpy
from ..tensors.packing import check_countable, coordinates, numbered, sorting
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import as_own, is_sparse
from .indexing import as_plain_index, expand_keys, in_range, select_coordinates, selection_of
from .rearranging import normalize_dim, reshape
from .unary import written


def getitem(input: SparseTensor, key: Any) -> Any:
    """``A[i]``, ``A[1:3]``, ``A[..., None]``, ``A[[2, 0]]``, ``A[:, mask]``, ``A[rows, columns]``, ``A[A > 0]``, ``A[index]``.

    Returns a SparseTensor, or a strided tensor if integers, lists or masks index every dimension.

    Raises:
        RangeError: an index is out of range, or there are more indices than dimensions.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> A[[0, 1], [1, 0]], A[A > 2]
    (tensor([2., 3.]), tensor([3., 4.]))
    """
    indices = list(map(as_plain_index, key if isinstance(key, tuple) else (key,)))
    for key_ in indices:
        if not isinstance(key_, INDICES):
            raise IndexKindError(f"{key_!r} as index: index by integers, slices, None, ..., lists of integers, masks and tensors")
    keys = expand_keys(_without_masks(indices, input), input.ndim)
    lists = [key_ for key_ in keys if isinstance(key_, torch.Tensor)]
    is_selection = len(lists) == 1 and lists[0].ndim == 1 and not any(is_sparse(key_) for key_ in indices)
    simple = [slice(None) if isinstance(key_, torch.Tensor) and not is_selection else key_ for key_ in keys]
    selected = [key_ for key_ in simple if key_ is not None]
    result = select_coordinates(input, [selection_of(*args) for args in zip(selected, input.shape, range(input.ndim), strict=True)])
    places, at = [], 0
    for key_ in keys:
        result = result.unsqueeze(at) if key_ is None else result
        places += [at] if isinstance(key_, torch.Tensor) else []
        at += not isinstance(key_, int)
    return _picked(result, places, lists) if lists and not is_selection else result


LISTS = (list, range, torch.Tensor, np.ndarray, SparseTensor)
MASKS = (torch.bool, torch.uint8)
INDICES = (int, slice, type(None), type(Ellipsis), *LISTS)


def _without_masks(keys: Sequence[Any], input: SparseTensor) -> list[Any]:
    """Convert lists to index tensors, and each mask to one index tensor for each of its dimensions.

    Raises:
        RangeError: a mask's shape differs from the dimensions that it indexes.
        UnsupportedError: an index holds neither integers nor booleans.
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
    """A list, array or tensor as a mask, which may be sparse, or as a strided tensor of int64. As in torch, uint8 is a mask.

    Raises:
        UnsupportedError: the index holds neither integers nor booleans.
    """
    key = key.copy() if isinstance(key, np.ndarray) else as_own(key)  # torch takes no negative strides
    if is_sparse(key) and key.dtype in MASKS:
        return key if _is_mask(key) else key != 0
    key = densified(key, "indexing") if is_sparse(key) else key
    array = torch.as_tensor(key) if not isinstance(key, list) or key else torch.empty(0, dtype=torch.int64)
    array = array != 0 if array.dtype == torch.uint8 else array
    if _is_mask(array) and not array.ndim:
        raise UnsupportedError(f"{key!r} as index: use None for a new dimension, or an empty slice")
    if array.is_floating_point() or array.is_complex():
        raise UnsupportedError(f"{key!r} as index: index by lists or dense tensors of integers, or by masks")
    return array if _is_mask(array) else array.to(torch.int64)


def _places_of(mask: Any) -> Any:
    """The coordinates of a mask's True entries, in row-major order."""
    if not isinstance(mask, SparseTensor):
        return mask.nonzero(as_tuple=True)
    entries = mask.to(COO(mask.ndim))
    return coordinates(entries.pattern)[:, values_of(entries)]


def _picked(input: SparseTensor, places: Sequence[int], lists: Sequence[torch.Tensor]) -> Any:
    """The entries or slices at the coordinates that index tensors give for some dimensions; the index tensors broadcast."""
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


def setitem(input: SparseTensor, key: Any, value: Any) -> None:
    """``A[key] = value`` in place, for stored entries only; unstored entries must stay 0.

    Raises:
        SizeError: the value does not broadcast to the indexed shape.
        UnsupportedError: the assignment would store new entries, or the values are a leaf that requires grad.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> A[0, 0] = 5
    >>> A[1] = torch.tensor([0.0, 7.0])
    >>> A.values
    tensor([5., 7.])
    """
    positions = torch.arange(1, input.pattern.nnz + 1)  # 0 marks unstored entries
    chosen = getitem(SparseTensor(input.pattern, positions), key)
    value = (value if isinstance(value, torch.Tensor | SparseTensor) else torch.as_tensor(value)).to(input.dtype)
    if broadcast_shape("an assignment", value.shape, chosen.shape) != tuple(chosen.shape):
        raise SizeError(f"a value of shape {tuple(value.shape)} for entries of shape {tuple(chosen.shape)}")
    if isinstance(chosen, SparseTensor):
        at, new = values_of(chosen), others_at(chosen, value)
        nonzeros = int((value != 0).to(torch.int64).sum()) * (prod(chosen.shape) // max(prod(value.shape), 1))
    else:
        full = (densified(value, "an assignment") if is_sparse(value) else value).expand(chosen.shape)
        at, new, nonzeros = chosen[chosen > 0], full[chosen > 0], int((full != 0).sum())
    new = new.expand(at.shape)
    if (missing := nonzeros - int((new != 0).sum())) > 0:
        raise UnsupportedError(
            f"the assignment would store {missing} new entries, but the pattern of a tensor never changes: "
            "add new entries with A + ns.from_coo(indices, values, A.shape), or assign to A.values"
        )
    written(input, input.values.index_put((at - 1,), new))


def fill_diagonal_(input: SparseTensor, fill_value: Any, wrap: bool = False) -> SparseTensor:
    """torch.Tensor.fill_diagonal_: write a number to the main diagonal in place; its entries must be stored, unless the number is 0.

    Raises:
        SizeError: the tensor is a vector, or has more than two dimensions of different sizes.
        UnsupportedError: a diagonal entry is not stored, or ``wrap=True`` is given for a matrix with more rows than columns.

    >>> import numscorch as ns
    >>> ns.eye(2, format=ns.CSR).fill_diagonal_(3).to_dense()
    tensor([[3., 0.],
            [0., 3.]])
    """
    shape = tuple(input.shape)
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise SizeError(f"fill_diagonal_ of shape {shape}: it takes matrices, and tensors whose dimensions have one size")
    if wrap and shape[0] > shape[1] + 1:
        raise UnsupportedError("fill_diagonal_ with wrap=True of a SparseTensor: leave it out, or assign to A[rows, columns]")
    setitem(input, (torch.arange(min(shape)),) * len(shape), fill_value)
    return input


def check_looked_up(shape: Sequence[int], order: int) -> None:
    """Refuse a lookup whose result of this shape, with its coordinates, exceeds the memory limit.

    Raises:
        SizeError: the message has the size and the limit.
    """
    check_entries(prod(shape), order, COORDINATE, f"the dense result of shape {tuple(shape)}", "an index", "index in parts")


def index_select(input: SparseTensor, dim: int, index: torch.Tensor) -> Any:
    """The slices at these coordinates of a dimension, in the given order.

    Raises:
        UnsupportedError: the index has more than one dimension.
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
    """torch.gather: the entries at these coordinates along one dimension; dense, in the shape of the index.

    Raises:
        SizeError: the index has another number of dimensions, a larger size, or a coordinate out of range.

    >>> import numscorch as ns
    >>> gather(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]])), 1, torch.tensor([[1], [0]]))
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
    return _along(input, at, index)


def _along(input: SparseTensor, at: int, index: torch.Tensor) -> torch.Tensor:
    """The entries at the index's coordinates along one dimension, and at their own positions along all others."""
    check_looked_up(index.shape, input.ndim)
    rows = (torch.arange(extent) % max(size, 1) for extent, size in zip(index.shape, input.shape, strict=True))
    places = list(torch.meshgrid(*rows, indexing="ij"))
    places[at] = in_range(index, input.shape[at], at)
    return looked_up(input, [coords.reshape(-1) for coords in places]).reshape(index.shape)


def take(input: SparseTensor, index: torch.Tensor) -> torch.Tensor:
    """The entries at these row-major positions, dense."""
    check_countable(input.shape)
    number = in_range(numbers_of(index, "take"), prod(input.shape), 0).reshape(-1)
    return looked_up(input, torch.unravel_index(number, input.shape)).reshape(index.shape)


def take_along_dim(input: SparseTensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Like :func:`gather`, but other dimensions broadcast; without a dimension, like :func:`take`."""
    if dim is None:
        return take(input, indices.reshape(-1))
    at, indices = normalize_dim(dim, input.ndim), numbers_of(indices, "take_along_dim")
    if indices.ndim != input.ndim:
        raise SizeError(f"take_along_dim of a {input.ndim}-dimensional tensor by a {indices.ndim}-dimensional index: they must agree")
    shape = list(broadcast_shape("take_along_dim", *([1 if d == at else size for d, size in enumerate(t.shape)] for t in (input, indices))))
    shape[at] = indices.shape[at]
    return _along(input, at, indices.expand(shape))


def masked_select(input: Any, mask: Any) -> torch.Tensor:
    """The entries where a mask is True, in row-major order; dense. Tensor and mask broadcast; either one may be sparse.

    Raises:
        OperandError: the mask is not boolean.
        SizeError: the shapes do not broadcast.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> masked_select(A, torch.tensor([False, True])), masked_select(A, A > 2)
    (tensor([2., 4.]), tensor([3., 4.]))
    """
    mask = as_own(mask if hasattr(mask, "dtype") else torch.as_tensor(mask))
    if mask.dtype != torch.bool:
        raise OperandError(f"masked_select by a mask of {mask.dtype}: it takes bool, as A != 0")
    shape = broadcast_shape("masked_select", input.shape, mask.shape)
    input, mask = (t if tuple(t.shape) == shape else t.expand(shape) for t in (input, mask))
    return getitem(input, mask) if isinstance(input, SparseTensor) else input[tuple(_places_of(mask))]


def argwhere(input: SparseTensor) -> torch.Tensor:
    """The coordinates of nonzero entries, one row for each, in row-major order; int64 of shape (n, ndim).

    >>> import numscorch as ns
    >>> argwhere(ns.from_torch(torch.eye(2)))
    tensor([[0, 0],
            [1, 1]])
    """
    indices = coordinates(input.pattern)[:, values_of(input).detach() != 0]
    columns = [as_numpy(row) for row in indices]
    return indices[:, torch.from_numpy(sorting(columns, input.shape, indices.shape[1])[0])].t().contiguous()


def masked_getitem(input: torch.Tensor, key: Any) -> torch.Tensor:
    """``D[A > 0]`` for a dense tensor and a sparse mask: the entries where the mask is True, in row-major order.

    Raises:
        OperandError: the sparse index holds floating-point or complex values.
        RangeError: the mask's shape differs from the dimensions that it indexes.
    """
    return input[_dense_key(input, key)]


def masked_setitem(input: torch.Tensor, key: Any, value: Any) -> None:
    """``D[A > 0] = value`` for a dense tensor and a sparse mask."""
    input[_dense_key(input, key)] = strided(value)


def _dense_key(input: torch.Tensor, key: Any) -> tuple[Any, ...]:
    keys: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        if not isinstance(part, SparseTensor):
            keys.append(part)
            continue
        if part.dtype.is_floating_point or part.dtype.is_complex:
            raise OperandError(f"an index of sparse {part.dtype} values: index by a sparse mask, as A != 0, or by integers")
        if part.dtype not in MASKS:
            keys.append(densified(part, "an index", "unstored entries are indices 0"))
            continue
        if len(keys) == 0 and part.shape != input.shape[: part.ndim]:
            raise RangeError(f"a mask of shape {tuple(part.shape)} for the first dimensions of a tensor of shape {tuple(input.shape)}")
        keys += argwhere(part).unbind(1)
    return tuple(keys)


GATHERING: dict[str, Callable[..., Any]] = {
    "argwhere": argwhere,
    "fill_diagonal_": fill_diagonal_,
    "gather": gather,
    "index_select": index_select,
    "masked_select": masked_select,
    "take": take,
    "take_along_dim": take_along_dim,
}
