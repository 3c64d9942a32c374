"""In-place operators: torch's names with an underscore, which overwrite the values with the operator's result, and torch.nn.init."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch.nn import init

from ..errors import SizeError
from ..tensors.sparse_tensor import SparseTensor
from .naming import with_name
from .unary import written

PATTERNS = "entries are neither added nor dropped in place: use the operator without the underscore"


def in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that writes another one's result over the values of its first argument.

    Raises:
        SizeError: the result is dense, or has another pattern.
        UnsupportedError: the result cannot be cast to the tensor's data type, or its values are a leaf that requires grad.

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

    return with_name(write, f"{name}_", f"torch's {name}_: {name} in place; the result must have the tensor's pattern.")


NEVER = ("detach",)  # detach_ is not detach in place


def in_place_of(table: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The in-place variants that torch's tensors have and the table lacks."""
    names = [name for name in table if callable(getattr(torch.Tensor, f"{name}_", None)) and f"{name}_" not in table]
    return {f"{name}_": in_place(name, table[name]) for name in names if name not in NEVER}


def of_values(function: Callable[..., torch.Tensor]) -> Callable[..., SparseTensor]:
    """Apply a function of torch.nn.init that does not depend on the shape to the stored values.

    >>> import numscorch as ns
    >>> of_values(init.constant_)(ns.from_torch(torch.eye(2)), val=3.0).to_dense()
    tensor([[3., 0.],
            [0., 3.]])
    """

    def initialise(tensor: SparseTensor, **options: Any) -> SparseTensor:
        function(tensor.values, **options)
        return tensor

    return initialise


def kaiming_uniform_(
    tensor: SparseTensor, a: float = 0, mode: Any = "fan_in", nonlinearity: Any = "leaky_relu", generator: torch.Generator | None = None
) -> SparseTensor:
    """torch.nn.init.kaiming_uniform_ of the stored values, with the fan of the full tensor."""
    bound = init.calculate_gain(nonlinearity, a) * sqrt(3 / init._calculate_correct_fan(tensor, mode))  # type: ignore[arg-type]
    init.uniform_(tensor.values, -bound, bound, generator)
    return tensor


INITIAL: dict[Callable[..., Any], Callable[..., Any]] = {
    **{function: of_values(function) for function in (init.constant_, init.normal_, init.uniform_)},
    init.kaiming_uniform_: kaiming_uniform_,
}
