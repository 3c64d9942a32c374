"""Check that inputs and weights have the same data type, as torch's layers require."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedError
from ..tensors.sparse_tensor import SparseTensor


def check_dtype(layer: torch.nn.Module, weight: Any, input: Any, name: str = "input") -> None:
    """Check that an input has the data type of a layer's weights; under autocast, torch and einsum convert both.

    Raises:
        UnsupportedError: the data types differ.

    >>> layer = torch.nn.Linear(2, 2)
    >>> check_dtype(layer, layer.weight, torch.ones(2, dtype=torch.float64), "x")
    Traceback (most recent call last):
    ...
    numscorch.UnsupportedError: x has data type float64, but the weights of Linear have float32: pass x.to(torch.float32), or ...
    """
    if not isinstance(input, torch.Tensor | SparseTensor) or input.dtype == weight.dtype or torch.is_autocast_enabled("cpu"):
        return
    kind, expected, other = type(layer).__name__, str(weight.dtype), str(input.dtype)
    text = f"{name} has data type {other.removeprefix('torch.')}, but the weights of {kind} have {expected.removeprefix('torch.')}"
    convert = f", or convert the layer with layer.to({other})" if input.dtype.is_floating_point else ""
    raise UnsupportedError(f"{text}: pass {name}.to({expected}){convert}")
