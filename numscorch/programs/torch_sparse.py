"""Sparse torch tensors as operands: each tensor's SparseTensor wrapper is created once and cached.

The cache sets no attribute on a user's tensor, because pickles would include it, and holds no strong reference to it.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch

from ..convert.construct import from_torch
from ..ir.format import COO, CSR
from ..tensors.modes import in_transform, made_outside, unlifted
from ..tensors.sparse_tensor import SparseTensor

_wrappers: dict[int, tuple[weakref.ref[torch.Tensor], int, SparseTensor]] = {}


def wrap(tensor: torch.Tensor) -> SparseTensor:
    """A SparseTensor that shares the tensor's memory; it is validated again after a write to the tensor."""
    entry = _wrappers.get(id(tensor))
    if entry is not None and entry[0]() is tensor and entry[1] == tensor._version:
        return entry[2]
    wrapper = made_outside(lambda: from_torch(unlifted(tensor).detach(), copy=False))
    if in_transform():
        return wrapper
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    # not cached: inference tensors have no version counter, and copied values would miss later writes
    if tensor.is_inference() or wrapper.values.data_ptr() != values.data_ptr():
        return wrapper
    key = id(tensor)
    _wrappers[key] = (weakref.ref(tensor, partial(forget, _wrappers, key)), tensor._version, wrapper)
    return wrapper


def by_rows(operand: SparseTensor) -> SparseTensor:
    """Convert a COO matrix to CSR, sharing its values and column indices; return other formats unchanged.

    >>> by_rows(wrap(torch.eye(2).to_sparse())).format.name
    'CSR'
    """
    return operand.to(CSR) if operand.format == COO(2) else operand


def forget(entries: dict[int, Any], number: int, dead: weakref.ref[torch.Tensor]) -> None:
    """Drop the cache entry of a freed tensor, unless a new tensor has its id: an entry starts with the weak reference to its tensor."""
    entry = entries.get(number)  # a parameter, because the module's globals are gone at interpreter shutdown
    if entry is not None and entry[0] is dead:
        del entries[number]
