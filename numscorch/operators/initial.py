"""torch.nn.init for sparse tensors: the stored values are initialized; the pattern does not change."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch.nn import init

from ..tensors.sparse_tensor import SparseTensor


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
