"""The beginning of programs that shard matrices over 1, 2 and 3 ranks, or over a mesh of two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

RANKS = [1, 2, 3]
GRIDS = [(1, 2), (2, 1), (2, 2), (3, 2)]

PRELUDE = """
import random
import numscorch as ns
from numscorch.sharding import from_local_rows, shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


extents = tuple(map(int, os.environ.get("MESH", str(ranks)).split("x")))
mesh = init_device_mesh("cpu", extents)
placements = [Shard(0), Shard(1)][: len(extents)]

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


def on_mesh(extents: Sequence[int]) -> dict[str, Any]:
    """The arguments of ``together`` for a mesh of these extents."""
    return {"ranks": prod(extents), "MESH": "x".join(map(str, extents))}
