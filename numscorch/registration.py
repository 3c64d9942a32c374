"""What torch is told of SparseTensors at import: how trees of tensors hold them, and how a DataLoader makes batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import default_collate_fn_map

from .operators.stacking import stack
from .pattern import Pattern
from .sparse_tensor import SparseTensor


def _flatten(A: SparseTensor) -> tuple[list[torch.Tensor], Pattern]:
    return [A._values], A.pattern


def _flatten_with_keys(A: SparseTensor) -> tuple[list[tuple[pytree.KeyEntry, Any]], Pattern]:
    return [(pytree.GetAttrKey("values"), A._values)], A.pattern


def _unflatten(values: Any, pattern: Pattern) -> SparseTensor:
    (own,) = values
    return SparseTensor.trusted(pattern, own)  # whatever a tree function put in the values' place


def _collate(batch: Sequence[SparseTensor], *, collate_fn_map: Any = None) -> Any:
    """A batch of tensors, which may store different entries: one tensor with a dimension more."""
    return stack(batch)


def register() -> None:
    """Tell torch, once."""
    pytree.register_pytree_node(
        SparseTensor, _flatten, _unflatten, serialized_type_name="numscorch.SparseTensor", flatten_with_keys_fn=_flatten_with_keys
    )
    default_collate_fn_map[SparseTensor] = _collate
