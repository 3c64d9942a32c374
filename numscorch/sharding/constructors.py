"""Construct sharded matrices: from a matrix that one rank or every rank holds, from the rows that each rank has read, or from a file."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard

from ..convert.construct import from_coo, from_csr, from_torch
from ..errors import FormatError, OperandError, RankError, SizeError, UnsupportedError
from ..files.archives import MARK, read_arrays, tensor_of
from ..files.load import check_there, suffix_of
from ..ir.format import CSR
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor
from .layout import CRD, PERMUTATION, POS, SHAPE, VALUES, local_part, make_layout, part_of_whole
from .partition import Grid, Partition, read_grid, read_partition
from .ranks import Ranks, agree, check_equal, collective, every, reporting_lost_ranks
from .tensor import ShardedSparseTensor

ROWS = (Shard(0),)
Permutation = str | Sequence[int] | torch.Tensor | None


def shard(
    A: SparseTensor | torch.Tensor | None,
    mesh: DeviceMesh,
    placements: Placement | Sequence[Placement] = ROWS,
    *,
    partition: str | Sequence[int] = "rows",
    permute: Permutation = None,
) -> ShardedSparseTensor:
    """Distribute a matrix over the ranks of a mesh. A collective operation: all ranks call it.

    Args:
        A: a SparseTensor, a sparse parameter, or a dense or sparse matrix of torch. Every rank passes the matrix, or a single rank passes
            it and the others pass None. The values may require grad only if every rank passes the matrix.
        mesh: a device mesh, such as ``torch.distributed.init_device_mesh("cpu", (ranks,))``.
        placements: one placement for each dimension of the mesh. ``Shard(0)`` distributes the rows over a dimension. ``Shard(1)`` over a
            later dimension distributes the columns, too. Over a dimension with ``Replicate()``, ranks hold the same entries.
        partition: ``"rows"`` for torch's even chunks; ``"nnz"`` for ranges of rows with about equal numbers of entries; or the number of
            rows for each rank of the dimension with ``Shard(0)``. ``DTensor`` operands and results need ``"rows"``. The columns of a
            square matrix have the partition of its rows. The columns of other matrices have torch's chunks.
        permute: a reordering of rows and columns of a square matrix before they are distributed. ``"nnz"`` balances the numbers of
            entries in even chunks. ``"metis"`` keeps connected nodes together; it needs ``pymetis``. A sequence has the original row
            for each new row. :meth:`ShardedSparseTensor.rows_of` and :meth:`ShardedSparseTensor.gathered` apply and undo the
            reordering. The rows of ``DTensor`` operands and results are in the new order: make operands with
            ``DTensor.from_local(A.rows_of(x), mesh, [Shard(0)], shape=x.shape, stride=x.stride())``.

    Returns:
        The sharded matrix. Each rank holds its rows in CSR.

    Raises:
        OperandError: ``mesh`` is not a device mesh, no rank passes the matrix, or several ranks but not all pass it; or a single rank
            passes it, and its values require grad.
        RankError: the ranks pass different matrices or arguments, have different versions of numscorch or torch, or another rank raised
            an error; or this rank is not part of the mesh.
        SizeError: ``A`` does not have two dimensions, or the partition or the permutation does not fit.
        UnsupportedError: the placements are not supported, or ``pymetis`` is not installed.

    Complexity:
        O(nnz log nnz) per rank, and memory for the whole matrix on each rank. :func:`from_local_rows` and :func:`load` need memory for the
        rank's rows only.

    Source: Tripathy, Yelick and Buluc, "Reducing Communication in Graph Neural Network Training", SC 2020, sections 4.1 and 4.2.

    >>> import torch, numscorch as ns, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    >>> A = shard(ns.from_torch(torch.eye(3)), mesh)
    >>> A
    ShardedSparseTensor(shape=(3, 3), rank 0 of 1: rows 0 to 3, nnz=3, 0 halo rows, float32)
    >>> A @ A.rows_of(torch.ones(3))
    tensor([1., 1., 1.])
    >>> dist.destroy_process_group()
    """
    with _constructing("shard", mesh, placements) as (ranks, grid):
        whole = _shared(None if A is None else _matrix(A), ranks)
        places = read_permutation(whole, permute, grid.ranks.size)
        moved = whole if places is None else permuted(whole, places)
        rows = read_partition(partition, torch.bincount(moved.indices()[0], minlength=moved.shape[0]), grid.rows)
        order = None if places is None else zlib.crc32(places.numpy().tobytes())
        check_equal(ranks, "the placements, the partition, or the permutation", (grid.placements, rows, order))
        local = moved[slice(*rows.range_of(grid.block))].to(CSR)
    return _sharded_block(local, rows, grid, permutation=places)


def from_local_rows(
    local: SparseTensor | torch.Tensor,
    mesh: DeviceMesh,
    columns: Sequence[int] | None = None,
    placements: Placement | Sequence[Placement] = ROWS,
) -> ShardedSparseTensor:
    """Make a sharded matrix from the rows that each rank holds. A collective operation: all ranks call it.

    Args:
        local: the rows of this rank, a sparse or dense matrix (rows of this rank, columns of the whole matrix). Gradients flow to its
            values. Ranks that differ only in dimensions of the mesh without ``Shard(0)`` pass the same rows.
        mesh: a device mesh.
        columns: the number of columns that each rank owns. A rank owns as many rows of a dense operand. By default, a rank of a square
            matrix owns as many columns as rows; the columns of other matrices have torch's chunks. A dimension with ``Shard(1)`` divides
            the columns again.
        placements: as for :func:`shard`.

    Returns:
        The sharded matrix, whose rows are the rows of all ranks in the order of the ranks.

    Raises:
        OperandError: ``mesh`` is not a device mesh.
        RankError: the ranks have different numbers of columns, data types, placements, or versions of numscorch or torch; ranks pass
            different rows where they must be the same; or another rank raised an error.
        SizeError: the matrix does not have two dimensions, or ``columns`` does not fit.
        UnsupportedError: the placements are not supported.

    Complexity:
        O(nnz log nnz) per rank, for the entries of the rank.

    >>> import torch, numscorch as ns, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    >>> from_local_rows(torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]]), mesh)
    ShardedSparseTensor(shape=(2, 3), rank 0 of 1: rows 0 to 2, nnz=3, 0 halo rows, float32)
    >>> dist.destroy_process_group()
    """
    with _constructing("from_local_rows", mesh, placements) as (ranks, grid):
        matrix = _matrix(local)
        width = matrix.shape[1]
        options = width, matrix.dtype, columns and list(columns), grid.placements
        check_equal(ranks, "the number of columns, the data type, columns=, or placements=", options)
        blocks = set(every(ranks, "the sizes of blocks", (grid.block, matrix.shape[0], _checksum(matrix))))
        if len(blocks) != grid.rows:
            raise RankError(
                "ranks with the same block of rows pass different rows: those of ranks that differ only in dimensions of the mesh without "
                "Shard(0) must be the same"
            )
        rows = Partition.of_sizes([size for _, size, _ in sorted(blocks)])
        column_partition = None if columns is None else read_partition(columns, torch.zeros(width), grid.rows)
    return _sharded_block(matrix, rows, grid, column_partition)


def load(
    path: str | PathLike[str],
    mesh: DeviceMesh,
    placements: Placement | Sequence[Placement] = ROWS,
    *,
    partition: str | Sequence[int] = "rows",
    key: str | None = None,
) -> ShardedSparseTensor:
    """Read a sharded matrix from a .npz archive of :func:`numscorch.save` or from a checkpoint.

    A collective operation: all ranks call it. Each rank reads the row starts and its own rows. An archive is mapped into memory.

    Args:
        path: an archive with a matrix in CSR; or the folder of a checkpoint of any number of ranks, written by
            ``torch.distributed.checkpoint.save({"A": A}, checkpoint_id=path)``. All ranks must be able to read the path.
        mesh, placements, partition: as for :func:`shard`. Rows of a checkpoint are permuted as in the saved matrix.
        key: the name of the matrix in a checkpoint, such as ``"A"``; not needed if the checkpoint has only one sharded matrix.

    Returns:
        The sharded matrix.

    Raises:
        FormatError: the file is not such an archive, or its tensor is not in CSR.
        OperandError: ``mesh`` is not a device mesh, the checkpoint has no sharded matrix of this name, or it has several and no key is
            given.
        OSError: the file cannot be read.
        RankError: the ranks pass different arguments, have different versions of numscorch or torch, or another rank raised an error.
        SizeError: the partition does not fit.
        UnsupportedError: the placements are not supported.

    >>> import tempfile
    >>> import torch, numscorch as ns, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ns.save(ns.from_torch(torch.eye(3)), f"{folder}/matrix.npz")
    ...     A = load(f"{folder}/matrix.npz", mesh)
    >>> A.nnz
    3
    >>> dist.destroy_process_group()
    """
    if Path(path).is_dir():
        return _from_checkpoint(fspath(path), mesh, placements, partition, key)
    with _constructing("load", mesh, placements) as (_, grid):
        file = Path(path)
        check_there(file, "ns.sharding.load", (".npz",), others=" archives of ns.save, and folders of checkpoints")
        arrays = read_arrays(file, None, True) if suffix_of(file) == ".npz" else {}
        if MARK not in arrays:
            raise FormatError(
                f"{file} is not a .npz archive of ns.save, whose rows each rank can read by itself: write one in one process, as in "
                "ns.save(ns.load(path), 'matrix.npz'), or load the file on one rank, as in shard(ns.load(path) if rank == 0 else None, "
                "mesh)"
            )
        A = tensor_of(file, arrays, check_invariants=False)
        if A.format != CSR:
            raise FormatError(f"{path} holds a tensor in {A.format.name}: save A.to(ns.CSR), whose rows can be read by themselves")
        entries_per_row = A.pattern.arrays[1][0].diff()
        local = A[slice(*read_partition(partition, entries_per_row, grid.rows).range_of(grid.block))].to(CSR)
        local = local.with_values(torch.clone(local.values))
    return from_local_rows(local, mesh, placements=placements)


@contextmanager
def _constructing(name: str, mesh: DeviceMesh, placements: Placement | Sequence[Placement]) -> Iterator[tuple[Ranks, Grid]]:
    """Context of a collective operation of all ranks of a mesh; yields the ranks and the grid of the matrix."""
    ranks = Ranks.of(mesh)
    with collective(ranks, name):
        check_equal(ranks, "the version of numscorch or torch", (version("numscorch"), torch.__version__))
        yield ranks, read_grid(mesh, placements)


def _sharded_block(
    local: SparseTensor, rows: Partition, grid: Grid, columns: Partition | None = None, permutation: torch.Tensor | None = None
) -> ShardedSparseTensor:
    """The sharded matrix, from the rows of this rank's block. Ranks that hold copies of one block do not wait for each other.

    By default, a square matrix has one partition for rows and columns, and another matrix has torch's chunks of columns.
    """
    width = local.shape[1]
    columns = columns or (rows if rows.size == width else Partition.even(width, grid.rows))
    with collective(grid.ranks, "sharding a matrix"):
        return ShardedSparseTensor(*make_layout(local, rows, columns, grid, permutation))


def _matrix(A: SparseTensor | torch.Tensor) -> SparseTensor:
    A = A.tensor if isinstance(A, SparseParameter) else A
    matrix = A if isinstance(A, SparseTensor) else from_torch(A)
    if matrix.ndim != 2:
        raise SizeError(f"a tensor of {matrix.ndim} dimensions: only matrices are sharded")
    return matrix.to(CSR)


def _shared(A: SparseTensor | None, ranks: Ranks) -> SparseTensor:
    """Return, on all ranks, the matrix that a single rank or every rank holds.

    Raises:
        OperandError: no rank has the matrix, or more than one but not all; or gradients could not reach the values.
        RankError: the ranks hold different matrices.
    """
    holders = [rank for rank, has in enumerate(agree(ranks, "counts the ranks with a matrix", A is not None)) if has]
    if not holders:
        raise OperandError("all ranks pass None for the matrix: pass it on one rank, or on all")
    if len(holders) not in (1, ranks.size):
        raise OperandError(f"ranks {holders} hold the matrix, but the others pass None: pass it on one rank, or on all")
    if A is not None and A.requires_grad and len(holders) < ranks.size:
        raise OperandError(
            f"the values on rank {holders[0]} require grad, but other ranks pass None: pass the matrix on all ranks, or detach it"
        )
    whole = A if A is not None and len(holders) == ranks.size else _broadcast(A, holders[0], ranks)
    check_equal(ranks, "the matrix", (tuple(whole.shape), whole.nnz, whole.dtype, _checksum(whole)))
    return whole


def _checksum(A: SparseTensor) -> int:
    total = 0
    for array in (*A.pattern.arrays[1], A.values.detach()):
        array = array.view(torch.int16) if array.dtype == torch.bfloat16 else array.resolve_conj()
        total = zlib.crc32(array.contiguous().numpy().tobytes(), total)
    return total


def _broadcast(A: SparseTensor | None, source: int, ranks: Ranks) -> SparseTensor:
    mine = None if A is None else (tuple(A.shape), A.indices(), A.values.detach())
    agree(ranks, "receives the matrix")
    with reporting_lost_ranks(ranks, "receives the matrix"):
        shape, indices, values = ranks.broadcast_object(mine, source)
    return A if A is not None else from_coo(indices, values, shape, format=CSR)


def read_permutation(A: SparseTensor, permute: Permutation, ranks: int) -> torch.Tensor | None:
    """The original row at each place, or None if rows are not reordered.

    Args:
        A: a square matrix.
        permute: ``"nnz"``, ``"metis"``, the original row at each place, or None.
        ranks: the number of ranks.

    Raises:
        SizeError: the matrix is not square, or the permutation is unknown or does not fit.
        UnsupportedError: pymetis isn't installed.
    """
    if permute is None:
        return None
    size = A.shape[0]
    if A.shape[1] != size:
        raise SizeError(f"permute= of a matrix of shape {tuple(A.shape)}: rows and columns are reordered alike, so it must be square")
    if isinstance(permute, str):
        return _by_name(A, permute, ranks)
    places = torch.as_tensor(permute, dtype=torch.int64)
    if not torch.equal(places.sort().values, torch.arange(size)):
        raise SizeError(f"permute= has {len(places)} numbers, but must have each of 0 to {size - 1} once")
    return places


def _by_name(A: SparseTensor, name: str, ranks: int) -> torch.Tensor:
    if name == "nnz":  # rows sorted by length are dealt out like cards, so that each chunk gets rows of all lengths
        order = torch.argsort(torch.bincount(A.indices()[0], minlength=A.shape[0]), descending=True, stable=True)
        return torch.cat([order[rank::ranks] for rank in range(ranks)])
    if name == "metis":
        try:
            import pymetis  # type: ignore[import-not-found]
        except ImportError as error:
            raise UnsupportedError("permute='metis' needs pymetis: pip install pymetis") from error
        pos, crd = (A + A.t()).to(CSR).pattern.arrays[1]
        _, part = pymetis.part_graph(ranks, xadj=pos.tolist(), adjncy=crd.tolist())
        return torch.argsort(torch.tensor(part), stable=True)
    raise SizeError(f"permute={name!r}: give 'nnz', 'metis', or the original row at each place")


def permuted(A: SparseTensor, places: torch.Tensor) -> SparseTensor:
    to = torch.empty_like(places).index_copy_(0, places, torch.arange(len(places)))
    return from_coo(to[A.indices()], A.values, A.shape, format=CSR)


def _from_checkpoint(
    path: str, mesh: DeviceMesh, placements: Placement | Sequence[Placement], partition: str | Sequence[int], key: str | None
) -> ShardedSparseTensor:
    with _constructing("load", mesh, placements) as (ranks, grid):
        prefix, saved = _saved_matrix(path, key)
        pos, shape, permutation = _read(
            path, prefix, {name: torch.empty(saved[name].size, dtype=torch.int64) for name in (POS, SHAPE, PERMUTATION)}
        )
        rows = read_partition(partition, pos.diff(), grid.rows)
        check_equal(ranks, "the placements, the partition, or the matrix of the checkpoint", (grid.placements, rows, prefix))
        start, stop = rows.range_of(grid.block)
        first, last = int(pos[start]), int(pos[stop])
        entries = {
            name: part_of_whole(torch.empty(last - first, dtype=saved[name].properties.dtype), first, int(pos[-1]), grid)
            for name in (CRD, VALUES)
        }
        crd, values = (local_part(array, first, last) for array in _read(path, prefix, entries))
        local = from_csr(pos[start : stop + 1] - first, crd, values, (stop - start, int(shape[1])), assume_sorted=True)
    return _sharded_block(local, rows, grid, permutation=permutation if len(permutation) else None)


def _read(path: str, prefix: str, arrays: Mapping[str, torch.Tensor]) -> list[Any]:
    state: dict[str, Any] = {prefix + name: array for name, array in arrays.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each rank reads by itself
        load_checkpoint(state, checkpoint_id=path, no_dist=True)
    return list(state.values())


def _saved_matrix(path: str, key: str | None) -> tuple[str, dict[str, Any]]:
    """The prefix of a sharded matrix's names in a checkpoint, and the metadata of its arrays by name."""
    known = FileSystemReader(path).read_metadata().state_dict_metadata
    prefixes = [name.removesuffix(SHAPE) for name in known if name.endswith(SHAPE) and name.removesuffix(SHAPE) + POS in known]
    chosen = [prefix for prefix in prefixes if key is None or prefix == f"{key}."]
    if len(chosen) != 1:
        names = ", ".join(repr(prefix.removesuffix(".")) for prefix in prefixes) or "none"
        raise OperandError(f"the checkpoint {path} with key={key!r}: its sharded matrices are {names}; give the key of one")
    return chosen[0], {name: known[chosen[0] + name] for name in (POS, CRD, VALUES, SHAPE, PERMUTATION)}
