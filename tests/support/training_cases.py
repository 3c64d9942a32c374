"""Helpers for tests of training: bitwise comparison of states, serialization, and masks of sparse weights."""

from __future__ import annotations

import io
from typing import Any

import torch


def equal(first: Any, second: Any) -> bool:
    """Whether two states are bitwise equal."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(value, second[name]) for name, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


def read_back(state: Any) -> Any:
    """Round trip through torch.save and torch.load with weights_only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def stored(weight: Any) -> torch.Tensor:
    """Mask of stored elements of a sparse tensor or parameter, including padding and explicit zeros."""
    tensor = getattr(weight, "tensor", weight)
    mask: torch.Tensor = tensor.with_values(torch.ones(tensor.pattern.nnz, dtype=tensor.dtype)).to_dense() != 0
    return mask


def dense(weight: Any, values: torch.Tensor | None = None) -> torch.Tensor:
    """A sparse weight as a dense tensor, optionally with other values."""
    result: torch.Tensor = weight.tensor.with_values(weight.values.detach() if values is None else values).to_dense()
    return result


def at_entries(weight: Any, given: torch.Tensor) -> torch.Tensor:
    """Elements of a dense tensor at the stored entries of a weight."""
    return given[tuple(weight.tensor.indices())]
