"""Sorted coordinates: coalesce and sort for SparseTensors; other tensors go to torch."""

from __future__ import annotations

from typing import Any

import torch

from ..convert.construct import assemble, from_coo
from ..convert.conversions import converted, to_format
from ..convert.matrices import sorts
from ..errors import UnsupportedError
from ..ir.format import sorted_format
from ..tensors.methods import METHODS
from ..tensors.modes import as_numpy
from ..tensors.packing import coordinates, of_entries
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import disorder


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
    """Sort coordinates and sum entries with equal ones; calls ``input.coalesce()``, also for torch's sparse tensors.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> ns.coalesce(A) is A
    True
    """
    return input.coalesce()


def sort(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Sort the coordinates in each row of a SparseTensor; other tensors go to torch.sort.

    Raises:
        UnsupportedError: a SparseTensor with further arguments: torch.sort sorts values, this function coordinates.

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

    Returns the tensor itself if it stores no zero, and dense tensors unchanged. Formats of blocks, diagonals and fixed lengths store
    zeros beside other entries. Gradients flow to the remaining values.

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


METHODS.update(coalesce=ordered, sort=sort)
