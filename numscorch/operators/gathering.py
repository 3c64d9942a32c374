"""Indexing by several lists, by masks of several dimensions and by tensors of numbers; gather, take; and writing to entries.

What is picked entry by entry comes back dense, in O(n log nnz) for n of them; slices stay sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from ..convert.dense import densified
from ..convert.entries import looked_up, others_at, values_of
from ..errors import IndexKindError, OperandError, SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..ir.format import COO
from ..machine.memory import COORDINATE, check_entries
from ..tensors.packing import coordinates
from ..tensors.sparse_tensor import SparseTensor
from . import indexing
from .elementwise import is_sparse
from .indexing import Chosen, plain, spelled_out
from .rearranging import place, reshape
from .unary import written


def getitem(input: SparseTensor, key: Any) -> Any:
    """``A[i]``, ``A[1:3]``, ``A[..., None]``, ``A[[2, 0]]``, ``A[:, mask]``, ``A[rows, columns]``, ``A[A > 0]``, ``A[index]``.

    A SparseTensor, but where every dimension is indexed by numbers, which picks entries: then a strided tensor.

    Raises:
        SizeError: a number is out of range, or there are more than there are dimensions.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> A[[0, 1], [1, 0]], A[A > 2]
    (tensor([2., 3.]), tensor([3., 4.]))
    """
    given = list(map(plain, key if isinstance(key, tuple) else (key,)))
    for key_ in given:
        if not isinstance(key_, INDICES):
            raise IndexKindError(f"{key_!r} as index: index by integers, slices, None, ..., lists of integers, masks and tensors")
    lists = [key_ for key_ in given if _is_list(key_)]
    if not lists or (len(lists) == 1 and not is_sparse(lists[0]) and np.ndim(lists[0]) == 1):
        return indexing.getitem(input, tuple(given))
    keys = spelled_out(_without_masks(given, input), input.ndim)
    places, at = [], 0
    for key_ in keys:
        places += [at] if isinstance(key_, torch.Tensor) else []
        at += not isinstance(key_, int)
    result = indexing.getitem(input, tuple(slice(None) if isinstance(key_, torch.Tensor) else key_ for key_ in keys))
    return _picked(result, places, [key_ for key_ in keys if isinstance(key_, torch.Tensor)])


INDICES = (int, slice, type(None), type(Ellipsis), list, range, torch.Tensor, np.ndarray, SparseTensor)


def _is_list(key: Any) -> bool:
    return isinstance(key, list | torch.Tensor | np.ndarray | SparseTensor)


def _without_masks(keys: Sequence[Any], input: SparseTensor) -> list[Any]:
    """Lists as tensors of numbers, and masks as the numbers of the places where they hold, one tensor for each dimension.

    Raises:
        SizeError: a mask's shape is another than that of the dimensions that it indexes.
        UnsupportedError: an index is neither numbers nor truth values.
    """
    counts = [getattr(key, "ndim", 1) if _is_list(key) and _is_mask(key) else key is not None for key in keys]
    dots = next((at for at, key in enumerate(keys) if key is Ellipsis), len(keys))
    plain_keys: list[Any] = []
    for at, key in enumerate(keys):
        if not _is_list(key):
            plain_keys.append(key)
            continue
        if not _is_mask(key):
            plain_keys.append(_numbers(key))
            continue
        mask = key if isinstance(key, SparseTensor) else torch.as_tensor(key)
        first = sum(counts[:at]) if at < dots else input.ndim - sum(counts[at:])
        if tuple(mask.shape) != tuple(input.shape[first : first + mask.ndim]):
            raise SizeError(
                f"a mask of shape {tuple(mask.shape)} at dim {first} of a tensor of shape {tuple(input.shape)}: they must agree"
            )
        plain_keys += list(_places_of(mask))
    return plain_keys


def _is_mask(key: Any) -> bool:
    return (torch.as_tensor(key) if isinstance(key, list | np.ndarray) else key).dtype == torch.bool


def _numbers(key: Any) -> torch.Tensor:
    key = densified(key, "indexing") if is_sparse(key) else key
    array = torch.as_tensor(key) if not isinstance(key, list) or key else torch.empty(0, dtype=torch.int64)
    if array.is_floating_point() or array.is_complex():
        raise UnsupportedError(f"{key!r} as index: index by lists or dense tensors of integers, or by masks")
    return array.to(torch.int64)


def _places_of(mask: Any) -> Any:
    """Where a mask holds, row by row."""
    if not isinstance(mask, SparseTensor):
        return mask.nonzero(as_tuple=True)
    entries = mask.to(COO(mask.ndim))
    return coordinates(entries.pattern)[:, values_of(entries)]


def _picked(input: SparseTensor, places: Sequence[int], lists: Sequence[torch.Tensor]) -> Any:
    """The entries, or slices, at the places in some dimensions that lists of one shape name together."""
    sizes = [input.shape[at] for at in places]
    inside = [in_range(numbers, size, at) for numbers, size, at in zip(lists, sizes, places, strict=True)]
    shape: tuple[int, ...] = ()
    for numbers in inside:
        shape = broadcast_shape("lists", shape, numbers.shape)
    check_looked_up(shape, len(places))
    inside = [numbers.expand(shape) for numbers in inside]
    if len(places) == input.ndim:
        return looked_up(input, [numbers.reshape(-1) for numbers in inside]).reshape(shape)
    first = places[0] if list(places) == list(range(places[0], places[0] + len(places))) else 0
    rest = [d for d in range(input.ndim) if d not in places]
    permuted = input.permute(*rest[:first], *places, *rest[first:])
    before, after = permuted.shape[:first], permuted.shape[first + len(places) :]
    merged = reshape(permuted, (*before, prod(sizes), *after))
    number = torch.zeros((), dtype=torch.int64)
    for numbers, size in zip(inside, sizes, strict=True):
        number = number * size + numbers
    whole = [Chosen(range(size)) for size in merged.shape]
    whole[first] = Chosen(tuple(number.reshape(-1).tolist()))
    return reshape(indexing.selected(merged, whole), (*before, *shape, *after))


def in_range(numbers: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Coordinates counted from the front.

    Raises:
        SizeError: one is out of range.
    """
    outside = ((numbers < -size) | (numbers >= size)).nonzero()
    if len(outside):
        raise SizeError(f"index {int(numbers[tuple(outside[0])])} is out of range along dim {dim}, whose size is {size}")
    return torch.where(numbers < 0, numbers + size, numbers)


def setitem(input: SparseTensor, key: Any, value: Any) -> None:
    """``A[key] = value``, in place, where that changes stored entries only; what isn't stored must stay 0.

    Raises:
        SizeError: the value doesn't fit.
        UnsupportedError: an entry that isn't stored would be written, which patterns don't allow; or the values are a leaf
            that requires grad.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> A[0, 0] = 5
    >>> A[1] = torch.tensor([0.0, 7.0])
    >>> A.values
    tensor([5., 7.])
    """
    positions = torch.arange(1, input.pattern.nnz + 1)  # 0 is none
    chosen = getitem(SparseTensor(input.pattern, positions), key)
    value = (value if isinstance(value, torch.Tensor | SparseTensor) else torch.as_tensor(value)).to(input.dtype)
    if broadcast_shape("an assignment", value.shape, chosen.shape) != tuple(chosen.shape):
        raise SizeError(f"a value of shape {tuple(value.shape)} for entries of shape {tuple(chosen.shape)}")
    if isinstance(chosen, SparseTensor):
        at, new = values_of(chosen), others_at(chosen, value)
        wanted = int((value != 0).to(torch.int64).sum()) * (prod(chosen.shape) // max(prod(value.shape), 1))
    else:
        full = (densified(value, "an assignment") if is_sparse(value) else value).expand(chosen.shape)
        at, new, wanted = chosen[chosen > 0], full[chosen > 0], int((full != 0).sum())
    new = new.expand(at.shape)
    if (lost := wanted - int((new != 0).sum())) > 0:
        raise UnsupportedError(
            f"the assignment would store {lost} new entries, but the pattern of a tensor never changes: "
            "add what is new, as A + ns.from_coo(indices, values, A.shape), or assign to A.values"
        )
    written(input, input.values.index_put((at - 1,), new))


def check_looked_up(shape: Sequence[int], order: int) -> None:
    """Refuse to look up entries in a result of this shape if they are larger than the memory limit.

    Raises:
        SizeError: with both sizes.
    """
    check_entries(prod(shape), order, COORDINATE, f"the dense result of shape {tuple(shape)}", "an index", "index in parts")


def gather(input: SparseTensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> torch.Tensor:
    """The entries at these coordinates of one dimension, dense, in the shape of the index.

    Raises:
        SizeError: the index has other dimensions, or larger ones, or a number that is out of range.

    >>> import numscorch as ns
    >>> gather(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]])), 1, torch.tensor([[1], [0]]))
    tensor([[2.],
            [3.]])
    """
    at = place(dim, input.ndim)
    if not index.numel():  # torch takes an index of any shape then
        return input.values.new_zeros(index.shape)
    fits = index.ndim == input.ndim and all(
        d == at or extent <= size for d, (extent, size) in enumerate(zip(index.shape, input.shape, strict=True))
    )
    if not fits:
        raise SizeError(f"gather along dim {dim} of shape {tuple(input.shape)} by an index of shape {tuple(index.shape)}: it must fit")
    return _along(input, at, index)


def _along(input: SparseTensor, at: int, index: torch.Tensor) -> torch.Tensor:
    """Entries in the index's shape, each of its own place in all dimensions but one."""
    check_looked_up(index.shape, input.ndim)
    places = []
    for d, (numbers, size) in enumerate(zip(index.shape, input.shape, strict=True)):
        step = torch.arange(numbers) if size != 1 else torch.zeros(numbers, dtype=torch.int64)
        places.append(in_range(index, size, d) if d == at else step.reshape([-1 if other == d else 1 for other in range(index.ndim)]))
    flat = [numbers.expand(index.shape).reshape(-1) for numbers in places]
    return looked_up(input, flat).reshape(index.shape)


def take(input: SparseTensor, index: torch.Tensor) -> torch.Tensor:
    """The entries of these numbers, counted row by row, dense."""
    number = in_range(index, prod(input.shape), 0).reshape(-1)
    places = []
    for size in reversed(input.shape):
        places.append(number % size)
        number = number // size
    return looked_up(input, places[::-1]).reshape(index.shape)


def take_along_dim(input: SparseTensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """The same as :func:`gather`, but that other dimensions broadcast; without a dimension, as :func:`take`."""
    if dim is None:
        return take(input, indices.reshape(-1))
    at = place(dim, input.ndim)
    if indices.ndim != input.ndim:
        raise SizeError(f"take_along_dim of a {input.ndim}-dimensional tensor by a {indices.ndim}-dimensional index: they must agree")
    shape = list(broadcast_shape("take_along_dim", *([1 if d == at else size for d, size in enumerate(t.shape)] for t in (input, indices))))
    shape[at] = indices.shape[at]
    return _along(input, at, indices.expand(shape))


def masked_select(input: Any, mask: Any) -> torch.Tensor:
    """The entries where a mask holds, dense, row by row; tensor and mask broadcast, and either one may be sparse.

    Raises:
        OperandError: the mask holds other values than bool.
        SizeError: the shapes don't broadcast.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> masked_select(A, torch.tensor([False, True])), masked_select(A, A > 2)
    (tensor([2., 4.]), tensor([3., 4.]))
    """
    if mask.dtype != torch.bool:
        raise OperandError(f"masked_select by a mask of {mask.dtype}: it takes bool, as A != 0")
    shape = broadcast_shape("masked_select", input.shape, mask.shape)
    input, mask = (t if tuple(t.shape) == shape else t.expand(shape) for t in (input, mask))
    chosen: torch.Tensor = getitem(input, mask) if isinstance(input, SparseTensor) else input[tuple(_places_of(mask))]
    return chosen


GATHERING: dict[str, Callable[..., Any]] = {
    "gather": gather,
    "masked_select": masked_select,
    "take": take,
    "take_along_dim": take_along_dim,
}
