"""torch's equality of whole tensors, topk, and sorting of coordinates; unstored entries count as 0."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from ..convert.construct import assemble, from_coo, from_torch
from ..convert.conversions import converted, to_format
from ..convert.matrices import sorts
from ..convert.values import densified, values_of
from ..errors import SizeError, UnsupportedError
from ..ir.format import COO, sorted_format
from ..ir.level import INT64_MAX
from ..machine.memory import COORDINATE, check_entries
from ..tensors.modes import as_numpy
from ..tensors.packing import coordinates, numbered, of_entries
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import disorder
from .attributes import LIKE
from .elementwise import add
from .reshaping import normalize_dim, transpose


def equal(input: Any, other: Any) -> bool:
    """Whether shapes and nonzero entries are equal, independent of the formats."""
    if tuple(input.shape) != tuple(other.shape):
        return False
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor) and input.pattern is other.pattern:
        return torch.equal(input.values, other.values)
    first, second = (_nonzeros(t) for t in (input, other))
    return torch.equal(first.indices(), second.indices()) and torch.equal(first.values, second.values)


def _nonzeros(tensor: Any) -> SparseTensor:
    format = COO(tensor.ndim)
    return eliminate_zeros(tensor.to(format) if isinstance(tensor, SparseTensor) else from_torch(tensor, format, copy=False))


def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether ``|input - other| <= atol + rtol * |other|`` at every entry.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> allclose(A, torch.eye(2)), allclose(A, A + A)
    (True, False)
    """
    with torch.no_grad():
        if not (isinstance(input, SparseTensor) and isinstance(other, SparseTensor)):
            return torch.allclose(densified(input, "allclose"), densified(other, "allclose"), rtol, atol, equal_nan)
        zero = LIKE["zeros_like"](input) + LIKE["zeros_like"](other)  # zeros at the union of both patterns
        left, right = (add(zero, t).values for t in (input, other))
    return torch.allclose(left, right, rtol, atol, equal_nan)


def topk(input: SparseTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest or smallest entries along a dimension and their indices, dense; unstored entries are 0.

    O(nnz log nnz + result). As in torch, the choice among equal entries is unspecified.

    Raises:
        SizeError: the dimension has fewer than k entries.

    >>> import numscorch as ns
    >>> topk(ns.from_torch(torch.tensor([[0.0, -1.0, 5.0]])), 2).values
    tensor([[5., 0.]])
    """
    return torch.return_types.topk(first_of(input, k, dim, largest))


def first_of(input: SparseTensor, k: int, dim: int, largest: bool, nan_first: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of :func:`topk` as a tuple; with ``nan_first``, NaN comes before all numbers, whether ``largest`` or not.

    Raises:
        SizeError: the dimension has fewer than k entries.
    """
    at = normalize_dim(dim, input.ndim) if input.ndim else 0
    if not input.ndim or not 0 <= k <= input.shape[at]:
        raise SizeError(f"topk of {k} entries along dim {dim} of shape {tuple(input.shape)}: the dimension has fewer entries")
    transposed_ = transpose(input, at, input.ndim - 1)
    where, suggestion = f"k={k} of shape {tuple(input.shape)}", "use a smaller k, or compute it in parts"
    check_entries(prod(transposed_.shape[:-1]) * k, 4, COORDINATE, "the dense result", where, suggestion)
    *rows, columns = coordinates(transposed_.pattern)
    *sizes, size = transposed_.shape
    row = numbered(rows, sizes).expand(len(columns))
    free_row, free_column = _unstored(row, columns, (prod(sizes), size), k)
    row, columns, values = torch.cat([row, free_row]), torch.cat([columns, free_column]), values_of(transposed_)
    values = torch.cat([values, values.new_zeros(len(free_row))])
    order = torch.argsort(columns)
    order = order[_order(values.detach()[order], largest, nan_first)]
    leading = _leading(row, order, prod(sizes), k).reshape(*sizes, k)
    return values[leading].transpose(at, -1), columns[leading].transpose(at, -1)


def _order(values: torch.Tensor, largest: bool, nan_first: bool) -> torch.Tensor:
    """The stable sorting permutation of values, largest or smallest first."""
    order = torch.sort(values, descending=largest, stable=True).indices
    return order[torch.sort(values[order].isnan().to(torch.int8), descending=True, stable=True).indices] if nan_first else order


def _leading(row: torch.Tensor, order: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    """The first k entries of each row in a given order, shape (rows, k). No array's size depends on ``order``, so vmap may batch it."""
    starts = torch.searchsorted(torch.sort(row).values, torch.arange(rows))
    order = order[torch.sort(row[order], stable=True).indices]
    return order[starts[:, None] + torch.arange(k)]


def _unstored(row: torch.Tensor, column: torch.Tensor, shape: tuple[int, int], k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of the first k unstored entries of each row.

    The n-th unstored entry follows all stored entries that have at most n unstored entries before them.
    """
    rows, size = shape
    ranks, number = (column, size) if rows * size <= INT64_MAX else (torch.unique(column, return_inverse=True)[1], len(column))
    order = torch.argsort(row * number + ranks)
    row, column = row[order], column[order]
    starts = torch.searchsorted(row, torch.arange(rows + 1))
    behind = (column - (torch.arange(len(row)) - starts[row])).clamp(max=k)
    every, nth = torch.arange(rows).repeat_interleave(k), torch.arange(k).repeat(rows)
    free = nth + torch.searchsorted(row * (k + 1) + behind, every * (k + 1) + nth, right=True) - starts[every]
    return every[free < size], free[free < size]


# ---- order of the entries


def ordered(A: SparseTensor) -> SparseTensor:
    """The tensor with sorted, unique coordinates; the tensor itself if they already are.

    Unordered levels are sorted and become ordered. Unchecked arrays are validated, and entries with equal coordinates are
    summed. The pattern caches the check and the sorting. The first call takes O(nnz), or O(nnz log nnz) if it sorts.

    >>> import numscorch as ns
    >>> A = ns.from_csr([0, 3], [2, 0, 2], [1.0, 2.0, 3.0], (1, 3), assume_sorted=True, check_invariants=False)
    >>> ordered(A).to_scipy().indices.tolist(), ordered(A).values.tolist()
    ([0, 2], [2.0, 4.0])
    """
    target = sorted_format(A.format)
    if sorts(A.pattern, target) and "disorder" not in A.pattern.derived:
        converted(A.pattern, target)  # the conversion also detects repeated coordinates
    if A.pattern.remember("disorder", lambda: disorder(A.pattern)) is None:
        return to_format(A, target)
    return assemble(as_numpy(coordinates(A.pattern)), of_entries(A.pattern, A.values), A.pattern.shape, target)


def coalesce(input: Any) -> Any:
    """Sort coordinates, and sum entries with equal coordinates; calls ``input.coalesce()``, also for torch's sparse tensors.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> ns.coalesce(A) is A
    True
    """
    return input.coalesce()


def sort(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Sort the coordinates in each row of a SparseTensor; other tensors go to torch.sort.

    Raises:
        UnsupportedError: further arguments are given with a SparseTensor; they concern values, but only coordinates are sorted.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2), "(i, j) -> (i: dense, j: compressed(ordered=False))")
    >>> ns.sort(A).format.name, ns.sort(torch.tensor([2, 1])).values
    ('CSR', tensor([1, 2]))
    """
    if not isinstance(input, SparseTensor):
        return torch.sort(input, *args, **kwargs)
    if args or kwargs:
        raise UnsupportedError("sort of a SparseTensor puts the coordinates of each row in order, and takes nothing else: sort A.values")
    return ordered(input)


def eliminate_zeros(input: Any) -> Any:
    """The tensor without stored zeros, in the same format; unlike SciPy's method, it changes nothing in place. O(nnz).

    Returns the tensor itself if it stores no zero, and dense tensors unchanged. Formats with blocks, diagonals or fixed
    lengths still store some zeros, next to other entries. Gradients flow to the remaining values.

    >>> import numscorch as ns
    >>> A = ns.from_coo([[0, 1], [1, 0]], torch.tensor([0.0, 2.0]), (2, 2), ns.CSR)
    >>> A.nnz, A.eliminate_zeros().nnz, ns.eliminate_zeros(A).values
    (2, 1, tensor([2.]))
    """
    if not isinstance(input, SparseTensor):
        return input
    values = of_entries(input.pattern, input.values)
    is_kept = values.detach() != 0
    if is_kept.all():
        return input
    return from_coo(coordinates(input.pattern)[:, is_kept], values[is_kept], input.pattern.shape, input.format)


COMPARISON: dict[str, Callable[..., Any]] = {
    "allclose": allclose,
    "eliminate_zeros": eliminate_zeros,
    "equal": equal,
    "topk": topk,
}
