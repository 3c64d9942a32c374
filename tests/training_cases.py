"""What tests of training compare: states to the bit, files read back, and what a sparse weight stores."""

from __future__ import annotations

import io
from typing import Any

import torch


def equal(first: Any, second: Any) -> bool:
    """Whether two states hold the same, to the bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(own, second[name]) for name, own in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


def read_back(state: Any) -> Any:
    """What torch.load makes of what torch.save wrote, with its default of loading nothing but weights."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def stored(weight: Any) -> torch.Tensor:
    """The mask of what a sparse tensor or parameter stores, padding and explicit zeros among it."""
    tensor = getattr(weight, "tensor", weight)
    made: torch.Tensor = tensor.with_values(torch.ones(tensor.pattern.nnz, dtype=tensor.dtype)).to_dense() != 0
    return made


def dense(weight: Any, values: torch.Tensor | None = None) -> torch.Tensor:
    """A sparse weight as a dense tensor, or another value for each of its entries."""
    made: torch.Tensor = weight.tensor.with_values(weight.values.detach() if values is None else values).to_dense()
    return made


def at_entries(weight: Any, given: torch.Tensor) -> torch.Tensor:
    """What a dense tensor has where a weight stores something."""
    return given[tuple(weight.tensor.indices())]
