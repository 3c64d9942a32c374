"""A cache of values derived from tensors, valid until the tensor changes or is freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from ..tensors.modes import made_outside

T = TypeVar("T")
MOST_REMEMBERED = 32  # capacity of the cache, in values per tensor

Entry = tuple["weakref.ref[Tensor]", tuple[int, int], dict[Hashable, Any]]
_entries: dict[int, Entry] = {}


def remembered(tensor: Tensor, key: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``, cached by tensor and key until the tensor changes.

    The cache does not modify the tensor. Cached values must not refer to the tensor, because that would keep it alive.

    The cache detects changes by autograd's version counter and by the data pointer, which ``tensor.data = other`` changes. It does not
    detect writes through ``.data`` or a numpy array that shares the memory: write within ``torch.no_grad()`` instead. Tensors
    created under ``torch.inference_mode()`` have no version counter, and tensors within a torch.func transform have no data pointer:
    nothing is cached for them.

    >>> weights, total = torch.ones(2), lambda: remembered(weights, "sum", lambda: float(weights.sum()))
    >>> total(), weights.mul_(5).tolist(), total()
    (2.0, [5.0, 5.0], 10.0)
    >>> weights.data.mul_(5).tolist(), total()
    ([25.0, 25.0], 10.0)
    >>> weights.data = torch.ones(2)
    >>> total()
    2.0
    """
    if tensor.is_inference() or is_functorch_wrapped_tensor(tensor):
        return make()
    entry, state = _entries.get(id(tensor)), (tensor._version, tensor.data_ptr() if tensor.layout is torch.strided else 0)
    if entry is None or entry[0]() is not tensor or entry[1] != state:
        entry = _entries[id(tensor)] = weakref.ref(tensor, partial(_forget, _entries, id(tensor))), state, {}
    values = entry[2]
    if key not in values:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):  # later calls may train, or use another precision
            computed = made_outside(make)
        if len(values) >= MOST_REMEMBERED:
            values.clear()
        values[key] = computed
    return values[key]


def _forget(entries: dict[int, Entry], number: int, dead: weakref.ref[Tensor]) -> None:
    """Drop the entry of a freed tensor, unless another tensor has reused its id."""
    entry = entries.get(number)  # a parameter, because the module's globals are gone at interpreter shutdown
    if entry is not None and entry[0] is dead:
        del entries[number]
