"""What is made of a tensor, remembered beside it until it is written to or dies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from ..tensors.pattern import _untransformed

T = TypeVar("T")
MOST_REMEMBERED = 32  # things that are remembered beside one tensor

Entry = tuple["weakref.ref[Tensor]", tuple[int, int], dict[Hashable, Any]]
_entries: dict[int, Entry] = {}


def remembered(tensor: Tensor, key: Hashable, make: Callable[[], T]) -> T:
    """What ``make`` returns, made at the first call with this key since the tensor was last written to.

    Nothing is set on a user's tensor, and what is remembered must not refer to it, which would keep it alive.

    Two numbers show a change: the tensor's version, as torch counts it for autograd, and the address of its memory, which
    ``tensor.data = other`` changes. Writes into the memory through ``.data`` or a numpy array that shares it are not seen: write within
    ``torch.no_grad()`` instead. A tensor that was made under ``torch.inference_mode()`` has no version, and one within a transform of
    torch.func no address: nothing is remembered beside them, and each call makes it again.

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
    known = entry[2]
    if key not in known:
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):  # for training, in any precision, too
            computed = _untransformed(make)
        if len(known) >= MOST_REMEMBERED:
            known.clear()
        known[key] = computed
    value: T = known[key]
    return value


def _forget(entries: dict[int, Entry], number: int, dead: weakref.ref[Tensor]) -> None:
    """Drop the entry of a dead tensor, unless its number belongs to another one by now."""
    entry = entries.get(number)  # not that of the module, which has no names left when the interpreter ends
    if entry is not None and entry[0] is dead:
        del entries[number]
