"""torch's own sparse tensors as operands: each is wrapped once and remembered beside it.

Nothing is set on a user's tensor, where it would travel into pickles, and nothing remembered
refers to it, which would keep it alive.
"""

from __future__ import annotations

import weakref

import torch

from ..convert.construct import from_torch
from ..tensors.sparse_tensor import SparseTensor

Entry = tuple[weakref.ref[torch.Tensor], int, SparseTensor]
_wrappers: dict[int, Entry] = {}


def wrap(tensor: torch.Tensor) -> SparseTensor:
    """The tensor as a SparseTensor that shares its memory; validated again after it was written to."""
    entry = _wrappers.get(id(tensor))
    if entry is not None and entry[0]() is tensor and entry[1] == tensor._version:
        return entry[2]
    return _wrap_anew(tensor)


def _wrap_anew(tensor: torch.Tensor) -> SparseTensor:
    wrapper = from_torch(tensor.detach())
    # an inference tensor has no version, and a copy of its values would miss what is written to them elsewhere
    if tensor.is_inference() or wrapper.values.data_ptr() != _values_of(tensor).data_ptr():
        return wrapper
    key = id(tensor)
    _wrappers[key] = (weakref.ref(tensor, lambda dead: _forget(key, dead)), tensor._version, wrapper)
    return wrapper


def _values_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def _forget(key: int, dead: weakref.ref[torch.Tensor]) -> None:
    """Drop the entry of a dead tensor, unless its id belongs to another one by now."""
    entry = _wrappers.get(key)
    if entry is not None and entry[0] is dead:
        del _wrappers[key]
