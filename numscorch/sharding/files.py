"""Read a matrix from a file or a checkpoint so that each rank reads its rows only."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

from ..convert.construct import from_csr
from ..errors import FormatError, OperandError
from ..files.archives import MARK, read_arrays, tensor_of
from ..files.load import check_there, suffix_of
from ..ir.format import CSR
from ..tensors.sparse_tensor import SparseTensor
from .agreement import Ranks, check_equal, collective
from .construct import ROWS, from_local_rows, sharded_block
from .partition import Partition, read_grid, read_partition
from .states import CRD, PERMUTATION, POS, SHAPE, VALUES, local_part, part_of_whole
from .tensor import ShardedSparseTensor


def load(
    path: str | PathLike[str],
    mesh: DeviceMesh,
    placements: Placement | Sequence[Placement] = ROWS,
    *,
    partition: str | Sequence[int] = "rows",
    key: str | None = None,
) -> ShardedSparseTensor:
    """Read a CSR matrix that :func:`numscorch.save` has written to a .npz archive, or a checkpoint of a sharded matrix.

    A collective operation. Each rank reads the row starts and its own rows; it maps an archive into memory.

    Args:
        path: the archive; or the folder of a checkpoint, as ``torch.distributed.checkpoint.save({"A": A}, checkpoint_id=path)`` writes
            it under any number of ranks. All ranks see it.
        mesh, placements, partition: as for :func:`shard`. A permutation of rows is that of the saved matrix.
        key: the name of the matrix in a checkpoint, ``"A"``; not needed if there is only one.

    Raises:
        FormatError: the file is not such an archive, or the matrix is not in CSR.
        OperandError: the checkpoint has no sharded matrix of this name, or has several.
        OSError: the file can't be read.
        SizeError: the partition does not fit.
        UnsupportedError: the placements are not supported.
    """
    if Path(path).is_dir():
        return _from_checkpoint(fspath(path), mesh, placements, partition, key)
    with collective(Ranks.of(mesh), "load"):
        grid = read_grid(mesh, placements)
        A = _mapped(Path(path))
        if A.format != CSR:
            raise FormatError(f"{path} holds a tensor in {A.format.name}: save A.to(ns.CSR), whose rows can be read by themselves")
        pos = A.pattern.arrays[1][0]
        start, stop = read_partition(partition, pos.diff(), grid.rows).range_of(grid.block)
        local = A[start:stop].to(CSR)
        local = local.with_values(torch.clone(local.values))
    return from_local_rows(local, mesh, placements=placements)


def _mapped(file: Path) -> SparseTensor:
    """The matrix of an archive, mapped into memory.

    Raises:
        FormatError: it is another file.
        OSError: the file can't be read.
    """
    check_there(file, "ns.sharding.load", (".npz",), others=" archives of ns.save, and folders of checkpoints")
    arrays = read_arrays(file, None, True) if suffix_of(file) == ".npz" else {}
    if MARK not in arrays:
        raise FormatError(
            f"{file} is not a .npz archive of ns.save, whose rows each rank can read by itself: write one in one process, as in "
            "ns.save(ns.load(path), 'matrix.npz'), or load the file on one rank, as in shard(ns.load(path) if rank == 0 else None, mesh)"
        )
    return tensor_of(file, arrays, check_invariants=False)


def _from_checkpoint(
    path: str, mesh: DeviceMesh, placements: Placement | Sequence[Placement], partition: str | Sequence[int], key: str | None
) -> ShardedSparseTensor:
    ranks = Ranks.of(mesh)
    with collective(ranks, "load"):
        grid = read_grid(mesh, placements)
        prefix, saved = _saved_matrix(path, key)
        pos, shape, permutation = _read(
            path, prefix, {name: torch.empty(saved[name].size, dtype=torch.int64) for name in (POS, SHAPE, PERMUTATION)}
        )
        height, width = shape.tolist()
        rows = read_partition(partition, pos.diff(), grid.rows)
        columns = rows if height == width else Partition.even(width, grid.rows)
        check_equal(ranks, "the placements, the partition, or the matrix of the checkpoint", (grid.placements, rows, prefix))
        start, stop = rows.range_of(grid.block)
        first, last = int(pos[start]), int(pos[stop])
        entries = {
            name: part_of_whole(torch.empty(last - first, dtype=saved[name].properties.dtype), first, int(pos[-1]), grid)
            for name in (CRD, VALUES)
        }
        crd, values = (local_part(array, first, last) for array in _read(path, prefix, entries))
        local = from_csr(pos[start : stop + 1] - first, crd, values, (stop - start, width), assume_sorted=True)
    return sharded_block(local, rows, columns, grid, permutation if len(permutation) else None)


def _read(path: str, prefix: str, arrays: Mapping[str, torch.Tensor]) -> list[Any]:
    """Read arrays, or parts of them, from a checkpoint."""
    state: dict[str, Any] = {prefix + name: array for name, array in arrays.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each rank reads by itself
        load_checkpoint(state, checkpoint_id=path, no_dist=True)
    return list(state.values())


def _saved_matrix(path: str, key: str | None) -> tuple[str, dict[str, TensorStorageMetadata]]:
    """The prefix of the names of a sharded matrix in a checkpoint, and what is known of its arrays."""
    known = FileSystemReader(path).read_metadata().state_dict_metadata
    prefixes = [name.removesuffix(SHAPE) for name in known if name.endswith(SHAPE) and name.removesuffix(SHAPE) + POS in known]
    chosen = [prefix for prefix in prefixes if key is None or prefix == f"{key}."]
    if len(chosen) != 1:
        names = ", ".join(repr(prefix.removesuffix(".")) for prefix in prefixes) or "none"
        raise OperandError(f"the checkpoint {path} with key={key!r}: its sharded matrices are {names}; give the key of one")
    arrays: dict[str, Any] = {name: known[chosen[0] + name] for name in (POS, CRD, VALUES, SHAPE, PERMUTATION)}
    return chosen[0], arrays
