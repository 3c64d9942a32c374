"""Registration of SparseTensor with torch at import: as a pytree node, for DataLoader batches, and for torch.masked."""

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
    return SparseTensor.trusted(pattern, value)  # tree functions may replace the values by any object


def _collate(batch: Sequence[SparseTensor], *, collate_fn_map: Any = None) -> Any:
    """Stack a batch of tensors along a new dimension; their patterns may differ."""
    return stack(batch)


def _overridable(name: str) -> None:
    """Make a function of torch.masked dispatch on ``__torch_function__``; torch's own checks layouts instead."""
    torch_function = getattr(torch.masked, name)

    @wraps(torch_function)
    def function(*args: Any, **kwargs: Any) -> Any:
        arguments = (*args, *kwargs.values())
        if has_torch_function(arguments):
            return handle_torch_function(function, arguments, *args, **kwargs)
        return torch_function(*args, **kwargs)

    setattr(torch.masked, name, function)


def register() -> None:
    """Register SparseTensor with torch; called once."""
    for name in MASKED:
        _overridable(name)
    pytree.register_pytree_node(
        SparseTensor, _flatten, _unflatten, serialized_type_name="numscorch.SparseTensor", flatten_with_keys_fn=_flatten_with_keys
    )
    default_collate_fn_map[SparseTensor] = _collate
