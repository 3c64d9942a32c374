"""Functions in place, by torch's names with an underscore: what the function returns is written over the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import SizeError
from ..tensors.sparse_tensor import SparseTensor
from .unary import written

PATTERNS = "entries are neither added nor dropped in place: use what the operator without the underscore returns"


def in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes what another one returns over the values of its first argument.

    Raises:
        SizeError: the result is dense, or has another pattern.
        UnsupportedError: the tensor's data type cannot hold the result; or its values are a leaf that requires grad.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> in_place("sin", torch.sin)(A).values, A.values
    (tensor([0.8415, 0.8415]), tensor([0.8415, 0.8415]))
    """

    def write(input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        result = function(input, *args, **kwargs)
        if not isinstance(result, SparseTensor):
            raise SizeError(f"{name}_ of {input}: the result is dense, and {PATTERNS}")
        if not input.pattern.stores_as(result.pattern):
            raise SizeError(f"{name}_ of {input}\n  gives {result}: their patterns differ, and {PATTERNS}")
        return written(input, result.values)

    write.__name__ = write.__qualname__ = f"{name}_"
    write.__doc__ = f"torch's {name}_: {name} in place, where the result has the tensor's pattern."
    return write


NEVER = ("detach",)  # torch's function with an underscore does something else


def in_place_of(table: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions in place of a table's functions, where torch's tensors have them, and the table has not."""
    names = [name for name in table if callable(getattr(torch.Tensor, f"{name}_", None)) and f"{name}_" not in table]
    return {f"{name}_": in_place(name, table[name]) for name in names if name not in NEVER}
