"""Construct sharded matrices: from a matrix that one rank or every rank holds, or from the rows that each rank has read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard

from ..convert.construct import from_coo, from_torch
from ..errors import OperandError, SizeError, UnsupportedError
from ..ir.format import CSR
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor
from .agreement import agree, check_equal, collective, reporting_lost_ranks
from .layout import Layout, local_matrix
from .partition import Partition, read_partition
from .permutations import Permutation, permuted, read_permutation
from .tensor import ShardedSparseTensor

ROWS = (Shard(0),)


def shard(
    A: SparseTensor | torch.Tensor | None,
    mesh: DeviceMesh,
    placements: Placement | Sequence[Placement] = ROWS,
    *,
    partition: str | Sequence[int] = "rows",
    permute: Permutation = None,
) -> ShardedSparseTensor:
    """Distribute the rows of a matrix over the ranks of a mesh. A collective operation. O(nnz log nnz) per rank.

    Args:
        A: a matrix that every rank holds, whose values may require grad; or one that a single rank holds, and None on the others.
        mesh: a mesh of one dimension, as ``torch.distributed.init_device_mesh("cpu", (ranks,))`` returns.
        placements: ``[Shard(0)]``.
        partition: ``"rows"`` for torch's even chunks, which ``DTensor`` operands and results need; ``"nnz"`` for ranges of rows with
            about as many entries each; or the number of rows of each rank. The columns of a square matrix have the partition of its
            rows; those of another matrix have torch's chunks.
        permute: a reordering of rows and columns of a square matrix before they are distributed: ``"nnz"`` reorders them by their
            number of entries, so that even chunks have about as many entries each; ``"metis"`` keeps connected nodes together (needs
            ``pymetis``); or the original row for each place. :meth:`ShardedSparseTensor.rows_of` and
            :meth:`ShardedSparseTensor.gathered` apply and undo it.

    Raises:
        OperandError: no rank has the matrix, or some but not all, or one rank has it and its values require grad.
        RankError: the ranks hold different matrices, or have different arguments or versions of numscorch or torch.
        SizeError: ``A`` is no matrix, or the partition or the permutation does not fit.
        UnsupportedError: the placements are not ``[Shard(0)]``, the mesh has several dimensions, or pymetis isn't installed.

    Source: Tripathy, Yelick and Buluc, "Reducing Communication in Graph Neural Network Training", SC 2020, section 4.1.
    """
    group = _group_of(mesh)
    with collective(group, "shard"):
        placements = [placements] if isinstance(placements, Placement) else list(placements)
        if placements not in ([Shard(0)], [Shard(-2)]):
            raise UnsupportedError(f"placements={placements}: rows are distributed, give [Shard(0)]")
        whole = _shared(None if A is None else _matrix(A), group)
        places = read_permutation(whole, permute, group.size())
        moved = whole if places is None else permuted(whole, places)
        counts = torch.bincount(moved.indices()[0], minlength=moved.shape[0])
        rows = read_partition(partition, counts, group.size())
        columns = rows if moved.shape[0] == moved.shape[1] else Partition.even(moved.shape[1], group.size())
        check_equal(group, "the partition, or the permutation", (rows, None if places is None else zlib.crc32(places.numpy().tobytes())))
        start, stop = rows.range_of(group.rank())
        exchange, numbered = local_matrix(moved[start:stop].to(CSR), columns, mesh)
        return ShardedSparseTensor(Layout(mesh, (whole.shape[0], whole.shape[1]), rows, exchange, numbered, places), numbered.values)


def from_local_rows(local: SparseTensor | torch.Tensor, mesh: DeviceMesh, columns: Sequence[int] | None = None) -> ShardedSparseTensor:
    """Make a sharded matrix of the rows that each rank has read itself. A collective operation. O(nnz log nnz) per rank.

    Args:
        local: this rank's rows, a matrix (rows of this rank, columns of the whole matrix). Gradients flow to its values.
        mesh: a mesh of one dimension.
        columns: how many columns each rank owns, and thus how many rows of a dense operand. By default, as many as rows if the matrix
            is square, else torch's chunks.

    Raises:
        RankError: the ranks have different numbers of columns, data types, or versions of numscorch or torch.
        SizeError: the matrix does not have two dimensions, or ``columns`` does not fit.
        UnsupportedError: the mesh has several dimensions.
    """
    group = _group_of(mesh)
    with collective(group, "from_local_rows"):
        matrix = _matrix(local)
        width = matrix.shape[1]
        check_equal(group, "the number of columns, the data type, or columns=", (width, matrix.dtype, columns and list(columns)))
        rows = Partition.of_sizes(agree(group, "counts the rows of a matrix", matrix.shape[0]))
        if columns is not None:
            column_partition = read_partition(columns, torch.zeros(width), group.size())
        else:
            column_partition = rows if rows.size == width else Partition.even(width, group.size())
        exchange, numbered = local_matrix(matrix, column_partition, mesh)
        return ShardedSparseTensor(Layout(mesh, (rows.size, width), rows, exchange, numbered), numbered.values)


def _group_of(mesh: DeviceMesh) -> dist.ProcessGroup:
    """The process group of a mesh, whose ranks have the same versions of numscorch and torch.

    Raises:
        RankError: they have not.
        UnsupportedError: the mesh has several dimensions.
    """
    if mesh.ndim != 1:
        raise UnsupportedError(f"a mesh of {mesh.ndim} dimensions: rows are distributed over a mesh of one, such as mesh['rows']")
    group = mesh.get_group()
    check_equal(group, "the version of numscorch or torch", (version("numscorch"), torch.__version__))
    return group


def _matrix(A: SparseTensor | torch.Tensor) -> SparseTensor:
    """The matrix in CSR."""
    A = A.tensor if isinstance(A, SparseParameter) else A
    matrix = A if isinstance(A, SparseTensor) else from_torch(A)
    if matrix.ndim != 2:
        raise SizeError(f"a tensor of {matrix.ndim} dimensions: only matrices are sharded")
    return matrix.to(CSR)


def _shared(A: SparseTensor | None, group: dist.ProcessGroup) -> SparseTensor:
    """The matrix on all ranks, which a single rank or every rank holds.

    Raises:
        OperandError: no rank has the matrix, or some but not all, or gradients could not reach the values.
        RankError: the ranks hold different ones.
    """
    holders = [rank for rank, has in enumerate(agree(group, "counts the ranks with a matrix", A is not None)) if has]
    if len(holders) not in (1, group.size()):
        raise OperandError(f"ranks {holders} hold the matrix, but the others pass None: pass it on one rank, or on all")
    if A is not None and A.requires_grad and len(holders) < group.size():
        raise OperandError(
            f"the values on rank {holders[0]} require grad, but other ranks pass None: pass the matrix on all ranks, or detach it"
        )
    whole = A if A is not None and len(holders) == group.size() else _broadcast(A, holders[0], group)
    check_equal(group, "the matrix", (tuple(whole.shape), whole.nnz, whole.dtype, _checksum(whole)))
    return whole


def _checksum(A: SparseTensor) -> int:
    """A checksum of pattern and values."""
    total = 0
    for array in (*A.pattern.arrays[1], A.values.detach()):
        array = array.view(torch.int16) if array.dtype == torch.bfloat16 else array.resolve_conj()
        total = zlib.crc32(array.contiguous().numpy().tobytes(), total)
    return total


def _broadcast(A: SparseTensor | None, source: int, group: dist.ProcessGroup) -> SparseTensor:
    """The matrix of one rank, on all ranks."""
    pieces: list[Any] = [None]
    if A is not None:
        pieces = [(tuple(A.shape), A.indices(), A.values.detach())]
    agree(group, "receives the matrix")
    with reporting_lost_ranks(group, "receives the matrix"):
        dist.broadcast_object_list(pieces, dist.get_global_rank(group, source), group)
    shape, indices, values = pieces[0]
    return A if A is not None else from_coo(indices, values, shape, format=CSR)
