"""Read a matrix from a file so that each rank reads its rows only."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

from ..errors import FormatError
from ..files.load import load as load_file
from ..ir.format import CSR
from .agreement import collective
from .construct import ROWS, from_local_rows
from .grid import read_grid
from .partition import read_partition
from .ranks import Ranks
from .tensor import ShardedSparseTensor


def load(
    path: str | PathLike[str],
    mesh: DeviceMesh,
    placements: Placement | Sequence[Placement] = ROWS,
    *,
    partition: str | Sequence[int] = "rows",
) -> ShardedSparseTensor:
    """Read a CSR matrix that :func:`numscorch.save` has written to a .npz archive. A collective operation.

    Each rank maps the file into memory, and reads the row starts and its own rows.

    Args:
        path: the file, which all ranks see.
        mesh, placements, partition: as for :func:`shard`.

    Raises:
        FormatError: the file is not such an archive, or the matrix is not in CSR.
        OSError: the file can't be read.
        SizeError: the partition does not fit.
        UnsupportedError: the placements are not supported.
    """
    with collective(Ranks.of(mesh), "load"):
        grid = read_grid(mesh, placements)
        A = load_file(path, mmap=True)
        if A.format != CSR:
            raise FormatError(f"{path} holds a tensor in {A.format.name}: save A.to(ns.CSR), whose rows can be read by themselves")
        pos = A.pattern.arrays[1][0]
        start, stop = read_partition(partition, pos.diff(), grid.rows).range_of(grid.block)
        local = A[start:stop].to(CSR)
        local = local.with_values(torch.clone(local.values))
    return from_local_rows(local, mesh, placements=placements)
