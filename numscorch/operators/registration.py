"""What torch is told of SparseTensors at import: how trees of tensors hold them, how a DataLoader makes batches of them, and that
torch.masked dispatches on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import default_collate_fn_map

from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .stacking import stack

REDUCTIONS = ("sum", "prod", "amax", "amin", "mean", "median", "norm", "var", "std", "logsumexp", "argmax", "argmin")
MASKED = (*REDUCTIONS, "cumsum", "cumprod", "softmax", "log_softmax", "softmin", "normalize", "logaddexp")


def _flatten(A: SparseTensor) -> tuple[list[torch.Tensor], Pattern]:
    return [A._values], A.pattern


def _flatten_with_keys(A: SparseTensor) -> tuple[list[tuple[pytree.KeyEntry, Any]], Pattern]:
    return [(pytree.GetAttrKey("values"), A._values)], A.pattern


def _unflatten(values: Any, pattern: Pattern) -> SparseTensor:
    (value,) = values
    return SparseTensor.trusted(pattern, value)  # whatever a tree function put in the values' place


def _collate(batch: Sequence[SparseTensor], *, collate_fn_map: Any = None) -> Any:
    """A batch of tensors, which may store different entries: one tensor with a dimension more."""
    return stack(batch)


def _overridable(name: str) -> None:
    """Let a function of torch.masked dispatch on ``__torch_function__``, as torch's other functions do: it reads layouts instead."""
    theirs = getattr(torch.masked, name)

    @wraps(theirs)
    def function(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if has_torch_function(given):
            return handle_torch_function(function, given, *args, **kwargs)
        return theirs(*args, **kwargs)

    setattr(torch.masked, name, function)


def register() -> None:
    """Tell torch, once."""
    for name in MASKED:
        _overridable(name)
    pytree.register_pytree_node(
        SparseTensor, _flatten, _unflatten, serialized_type_name="numscorch.SparseTensor", flatten_with_keys_fn=_flatten_with_keys
    )
    default_collate_fn_map[SparseTensor] = _collate
