"""Make einsum, evaluate and torch's functions accept sharded matrices."""

from __future__ import annotations

from ..tensors.distributed import HANDLERS, Handler
from .operators import IMPLEMENTED
from .products import sharded_einsum, sharded_evaluate
from .tensor import FUNCTIONS, ShardedSparseTensor


def register() -> None:
    """Register the implementations."""
    FUNCTIONS.update(IMPLEMENTED)
    HANDLERS[ShardedSparseTensor] = Handler(sharded_einsum, sharded_evaluate)
