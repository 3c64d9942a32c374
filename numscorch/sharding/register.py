"""Make einsum, evaluate and torch's functions accept sharded matrices, and ``DTensor`` operands beside sparse tensors."""

from __future__ import annotations

from torch.distributed.tensor import DTensor

from ..tensors.distributed import HANDLERS, Handler
from .dtensor_products import dtensor_einsum, dtensor_evaluate
from .operators import IMPLEMENTED, linear
from .parameter import ShardedSparseParameter
from .products import sharded_einsum, sharded_evaluate
from .tensor import FUNCTIONS, TRANSPOSED_FUNCTIONS, ShardedSparseTensor, Transposed
from .transposed import TRANSPOSED, transposed_einsum, transposed_evaluate


def register() -> None:
    """Register the implementations."""
    FUNCTIONS.update(IMPLEMENTED)
    HANDLERS[ShardedSparseTensor] = Handler(sharded_einsum, sharded_evaluate, linear, ShardedSparseParameter)
    TRANSPOSED_FUNCTIONS.update(TRANSPOSED)
    HANDLERS[Transposed] = Handler(transposed_einsum, transposed_evaluate)
    HANDLERS[DTensor] = Handler(dtensor_einsum, dtensor_evaluate)
