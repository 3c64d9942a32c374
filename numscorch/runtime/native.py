"""torch's own sparse tensors as operands: each is wrapped once and remembered beside it.

Nothing is set on a user's tensor, where it would travel into pickles, and nothing remembered
refers to it, which would keep it alive.
"""

from __future__ import annotations

import weakref

import torch

from ..construct import from_torch
from ..sparse_tensor import SparseTensor

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
    # an inference tensor has no version, and values summed into a copy would miss what is written elsewhere
    if tensor.is_inference() or (tensor.layout is torch.sparse_coo and not tensor.is_coalesced()):
        return wrapper
    key = id(tensor)
    _wrappers[key] = (weakref.ref(tensor, lambda dead: _forget(key, dead)), tensor._version, wrapper)
    return wrapper


def _forget(key: int, dead: weakref.ref[torch.Tensor]) -> None:
    """Drop the entry of a dead tensor, unless its id belongs to another one by now."""
    entry = _wrappers.get(key)
    if entry is not None and entry[0] is dead:
        del _wrappers[key]
