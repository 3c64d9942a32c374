"""The beginning of programs that shard matrices over 1, 2 and 3 ranks."""

from __future__ import annotations

RANKS = [1, 2, 3]

PRELUDE = """
import random
import numscorch as ns
from numscorch.sharding import from_local_rows, shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


mesh = init_device_mesh("cpu", (ranks,))

def matrix(rows, columns, density, seed, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=g, dtype=dtype) * (torch.rand(rows, columns, generator=g) < density)

def dense(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)

def same(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)

def rows_of(A, x):
    return A.rows_of(x, 0)
"""
