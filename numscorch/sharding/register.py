"""Make einsum, evaluate and torch's functions accept sharded matrices, and ``DTensor`` operands beside sparse tensors."""

from __future__ import annotations

from torch.distributed.tensor import DTensor

from ..tensors.distributed import HANDLERS, Handler
from ..tensors.graph_breaks import graph_break
from .dtensor_products import dtensor_add_bias, dtensor_einsum, dtensor_evaluate
from .layout import SAVED
from .operators import IMPLEMENTED, linear
from .parameter import ShardedSparseParameter
from .products import sharded_einsum, sharded_evaluate
from .tensor import FUNCTIONS, TRANSPOSED_FUNCTIONS, ShardedSparseTensor, Transposed
from .transposed import TRANSPOSED, transposed_einsum, transposed_evaluate

LOCAL = "give A.to_local(), this rank's rows with all columns, beside whole dense operands"


def register() -> None:
    """Register the implementations."""
    FUNCTIONS.update({function: graph_break(call) for function, call in IMPLEMENTED.items()})
    HANDLERS[ShardedSparseTensor] = Handler(
        sharded_einsum, sharded_evaluate, linear, parameter=ShardedSparseParameter, local=LOCAL, saved=SAVED
    )
    TRANSPOSED_FUNCTIONS.update({function: graph_break(call) for function, call in TRANSPOSED.items()})
    HANDLERS[Transposed] = Handler(transposed_einsum, transposed_evaluate, local=LOCAL, saved=SAVED)
    HANDLERS[DTensor] = Handler(dtensor_einsum, dtensor_evaluate, add_bias=dtensor_add_bias)
