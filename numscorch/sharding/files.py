"""Read a matrix from a file so that each rank reads its rows only."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..errors import FormatError
from ..files.load import load as load_file
from ..ir.format import CSR
from .agreement import collective
from .construct import from_local_rows
from .partition import read_partition
from .tensor import ShardedSparseTensor


def load(path: str | PathLike[str], mesh: DeviceMesh, *, partition: str | Sequence[int] = "rows") -> ShardedSparseTensor:
    """Read a CSR matrix that :func:`numscorch.save` has written to a .npz archive. A collective operation.

    Each rank maps the file into memory, and reads the row starts and its own rows.

    Args:
        path: the file, which all ranks see.
        mesh: a mesh of one dimension.
        partition: as for :func:`shard`.

    Raises:
        FormatError: the file is not such an archive, or the matrix is not in CSR.
        OSError: the file can't be read.
        SizeError: the partition does not fit.
    """
    group = mesh.get_group()
    with collective(group, "load"):
        A = load_file(path, mmap=True)
        if A.format != CSR:
            raise FormatError(f"{path} holds a tensor in {A.format.name}: save A.to(ns.CSR), whose rows can be read by themselves")
        pos = A.pattern.arrays[1][0]
        start, stop = read_partition(partition, pos.diff(), group.size()).range_of(group.rank())
        local = A[start:stop].to(CSR)
        return from_local_rows(local.with_values(torch.clone(local.values)), mesh)
