"""Matrices that are distributed over the ranks of ``torch.distributed``: shard, products with ``DTensor``, gradients.

Each rank holds consecutive rows. A product sends the rows of a dense operand that other ranks need. Meanwhile, each rank computes the
product with the rows that it owns.
"""

from ..operators.naming import publish
from .constructors import from_local_rows, load, shard
from .exchange import HaloExchange
from .operators import register as _register
from .partition import Partition, ShardingReport
from .sharded_parameter import ShardedSparseParameter
from .tensor import ShardedSparseTensor

__all__ = [
    "HaloExchange",
    "Partition",
    "ShardedSparseParameter",
    "ShardedSparseTensor",
    "ShardingReport",
    "from_local_rows",
    "load",
    "shard",
]

publish(globals())
_register()
