"""Registration of SparseTensor with torch at import: as a pytree node, for DataLoader batches, and for torch.masked."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import default_collate_fn_map

from ..tensors.sparse_tensor import SparseTensor
from .stacking import stack

REDUCTIONS = ("sum", "prod", "amax", "amin", "mean", "median", "norm", "var", "std", "logsumexp", "argmax", "argmin")
MASKED = (*REDUCTIONS, "cumsum", "cumprod", "softmax", "log_softmax", "softmin", "normalize", "logaddexp")


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
        SparseTensor,
        lambda A: ([A._values], A.pattern),
        lambda values, pattern: SparseTensor.trusted(pattern, *values),  # tree functions may replace the values by any object
        serialized_type_name="numscorch.SparseTensor",
        flatten_with_keys_fn=lambda A: ([(pytree.GetAttrKey("values"), A._values)], A.pattern),
    )
    default_collate_fn_map[SparseTensor] = lambda batch, *, collate_fn_map=None: stack(batch)
