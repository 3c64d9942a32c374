"""Read the values of SparseTensors: as dense tensors, as torch's sparse tensors, by entry, and at arbitrary coordinates.

Gradients flow to the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from ..errors import UnsupportedError
from ..ir.format import COO, CSC, CSR, sorted_format
from ..ir.level import INT32_MAX, INT64_MAX
from ..ir.parts import Part
from ..machine.memory import check_bytes
from ..schedule import tuning
from ..tensors.ledgers import densifying, note
from ..tensors.modes import as_numpy, made_outside
from ..tensors.packing import (
    at_positions,
    check_countable,
    coordinates,
    entry_columns,
    has_gaps,
    numbered,
    of_entries,
    placed,
    positions_of,
)
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import layout_of, native_tensor, over_the_edge, quietly
from .construct import from_torch
from .conversions import can_copy, converted, converted_so_far, copied, to_format


def to_dense(A: SparseTensor) -> torch.Tensor:
    """Convert to a dense tensor of the same shape; unstored entries are 0, and gradients flow to the values.

    A dense format returns a view. Other formats take O(size of the result); large tensors use a kernel.

    Raises:
        SizeError: the dense tensor exceeds the memory limit.
    """
    order = A.format.mode_order
    if A.format.is_dense:
        stored = A.values.reshape([A.pattern.shape[d] for d in order])
        return stored.permute([order.index(d) for d in range(A.ndim)])
    check_bytes(prod(A.pattern.shape) * A.dtype.itemsize, f"the dense tensor of shape {A.pattern.shape}", A.format, "keep it sparse")
    if can_copy(A.values) and converted_so_far(A.format, None, A.pattern.nnz) >= tuning.COMPILE_ENTRIES:
        return copied(A, None)
    place = made_outside(lambda: numbered(_columns(A.pattern), A.pattern.shape))
    return placed(of_entries(A.pattern, A.values), place, prod(A.pattern.shape)).reshape(A.pattern.shape)


def dense_as_asked(A: SparseTensor) -> torch.Tensor:
    """Implement ``A.to_dense()``: add the densification to the ledgers, unless the result is a view."""
    if not A.format.is_dense:
        note("densification", f"{A.format.name} {A.pattern.shape}", prod(A.pattern.shape) * A.dtype.itemsize)
    return to_dense(A)


def densified(A: Any, operator: str, instead: str = "A.to_dense() requests it") -> Any:
    """Convert a SparseTensor or a torch sparse tensor to dense for an operator without a sparse implementation.

    Other values are returned unchanged. Adds the conversion to the ledgers, and warns; see :func:`~numscorch.tensors.ledgers.densifying`.

    Raises:
        UnsupportedError: in strict mode.
    """
    is_own = isinstance(A, SparseTensor)
    if not is_own and (not isinstance(A, torch.Tensor) or A.layout is torch.strided):
        return A
    if not (is_own and A.format.is_dense):
        densifying(operator, f"{A.format.name if is_own else A.layout} {tuple(A.shape)}", prod(A.shape) * A.dtype.itemsize, instead)
    return to_dense(A) if is_own else A.to_dense()


def to_torch(A: SparseTensor, copy: bool = True) -> torch.Tensor:
    """Convert to a torch CSR, CSC, BSR, BSC or COO tensor, batched or hybrid like the format; gradients flow to the values.

    Formats that torch lacks are converted first, to CSR, CSC or COO; unordered rows are sorted.

    Args:
        A: the tensor.
        copy: False shares values and index arrays, except the row starts of batches and COO indices that did not come from torch;
            both are built once, in O(nnz), and cached with the pattern.

    Raises:
        SizeError: the number of entries exceeds int64.
        UnsupportedError: the tensor has no dimensions, or the matrices of a batch store different numbers of values.
    """
    layout = A.pattern.remember("torch layout in order", lambda: layout_of(sorted_format(A.format)))
    if layout is None or over_the_edge(A.pattern, layout):
        return to_torch(nearest(A, "torch"), copy)
    A = A if A.format.is_ordered else to_format(A, sorted_format(A.format))
    native = native_tensor(A.pattern, A.values, layout)
    return quietly(native.clone) if copy else native


def nearest(A: SparseTensor, library: str) -> SparseTensor:
    """Convert to the closest format that every library has: CSR or CSC for matrices, else COO.

    Raises:
        UnsupportedError: the tensor has no dimensions.
    """
    if not A.ndim:
        raise UnsupportedError(f"{library} has no sparse layout for a tensor without dimensions: use .to_dense()")
    return to_format(A, COO(A.ndim) if A.ndim != 2 else CSC if A.format.is_plain and not A.format.is_row_major else CSR)


# ---- by entry, in O(nnz) memory


def values_of(A: SparseTensor) -> torch.Tensor:
    """The values of the entries, in the order of ``coordinates``; excludes positions without an entry, unlike ``values``.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), "(i, j) -> (i: dense, j: bitmap)")
    >>> values_of(A), A.values
    (tensor([1., 2., 3.]), tensor([1., 2., 3., 0.]))
    """
    return of_entries(A.pattern, A.values)


def with_entries(A: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """A tensor with the same pattern and new values, one for each entry."""
    return SparseTensor(A.pattern, at_positions(A.pattern, values))


def others_at(A: SparseTensor, other: Any) -> torch.Tensor:
    """The values of another tensor or number, broadcast to this tensor's shape, at its entries; 0 for unstored values.

    >>> import numscorch as ns
    >>> others_at(ns.from_torch(torch.eye(2)), torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """
    if not isinstance(other, torch.Tensor | SparseTensor):
        return torch.as_tensor(other)
    if isinstance(other, torch.Tensor) and other.layout is not torch.strided:
        other = from_torch(other, copy=False)
    if isinstance(other, SparseTensor) and other.pattern is A.pattern:
        return values_of(other)
    coords = made_outside(lambda: _columns(A.pattern, A.ndim - other.ndim))
    indices = [row if size != 1 else torch.zeros_like(row) for row, size in zip(coords, other.shape, strict=True)]
    return looked_up(other, indices) if isinstance(other, SparseTensor) else other[tuple(indices)] if indices else other


def strided(result: Any) -> torch.Tensor:
    """Convert a result to dense where torch returns a dense tensor, without a ledger entry."""
    return to_dense(result) if isinstance(result, SparseTensor) else result


def looked_up(A: SparseTensor, indices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values at arbitrary coordinates, 0 for unstored entries; O(n log nnz) for n coordinates.

    Args:
        A: the tensor.
        indices: for each dimension, the coordinates: int64, shape (n,), in range.

    Raises:
        SizeError: the number of entries of the shape exceeds int64.

    >>> import numscorch as ns
    >>> looked_up(ns.from_torch(torch.eye(2)), [torch.tensor([1, 0]), torch.tensor([1, 1])])
    tensor([1., 0.])
    """
    matches, positions = matches_in(A.pattern, indices)
    return placed(A.values.index_select(0, positions), matches, len(indices[0]))


def as_stored(gradient: SparseTensor | torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The values of a gradient in a pattern's storage order; the gradient may be dense, in another format, or without some entries."""
    if isinstance(gradient, torch.Tensor):  # the pattern stores all entries
        return at_positions(pattern, gradient[tuple(coordinates(pattern))])
    if gradient.pattern.stores_as(pattern):
        return gradient._values
    if not gradient.format.is_ordered:
        gradient = to_format(gradient, sorted_format(gradient.format))
    conversion, values = converted(pattern, gradient.format), gradient._values
    if conversion.pattern.nnz != gradient.pattern.nnz:  # an intersection with an operand that stores less
        return at_positions(pattern, looked_up(gradient, made_outside(lambda: _columns(pattern))))
    if conversion.order is None:
        return values
    values = values if conversion.slots is None else values.index_select(0, conversion.slots)
    return placed(values, conversion.order.long(), pattern.nnz)  # index_copy requires int64


def matches_in(pattern: Pattern, indices: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of these coordinates are stored entries of a pattern, and the positions of their values; O(n log nnz)."""
    check_countable(pattern.shape)
    numbers, places = pattern.remember("numbered", lambda: _numbered(pattern))
    parts, sizes = _key_of(pattern)
    wanted = numbered([part.of(indices, pattern.shape) for part in parts], sizes)
    at = torch.searchsorted(numbers, wanted, out_int32=len(numbers) <= INT32_MAX).clamp(max=max(len(numbers) - 1, 0))
    matches = (numbers.index_select(0, at) == wanted).nonzero()[:, 0] if len(numbers) else at[:0].to(torch.int64)
    entries = at.index_select(0, matches)
    return matches, entries if places is None else places.index_select(0, entries)


def _columns(pattern: Pattern, first: int = 0) -> list[torch.Tensor]:
    """The coordinates in each dimension from ``first`` on, as int64, which autograd may keep."""
    return [torch.from_numpy(column.astype(np.int64)) for column in entry_columns(pattern)[first:]]


def _key_of(pattern: Pattern) -> tuple[Sequence[Part], tuple[int, ...]]:
    """The parts of coordinates, and their extents, that number entries in storage order if possible, else in row-major order."""
    sizes = pattern.format.sizes(pattern.shape)
    if has_gaps(pattern) or prod(sizes) > INT64_MAX:
        return list(map(Part, range(len(pattern.shape)))), pattern.shape
    return pattern.format.parts, sizes


def _numbered(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The sorted linear indices of all entries by :func:`_key_of`, and the positions of their values; None if these are 0, 1, 2, ..."""
    (parts, sizes), columns = _key_of(pattern), entry_columns(pattern)
    numbers = np.zeros(len(columns[0]) if columns else 1, np.int64)
    for part, size in zip(parts, sizes, strict=True):
        numbers *= size
        numbers += part.of(columns, pattern.shape)
    if not has_gaps(pattern) and bool((numbers[1:] >= numbers[:-1]).all()):
        return torch.from_numpy(numbers), None
    ordered, order = torch.sort(torch.from_numpy(numbers))
    return ordered, torch.from_numpy(positions_of(pattern, as_numpy(order)))
