"""Construct sharded matrices: from a matrix that one rank or every rank holds, or from the rows that each rank has read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
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
from .agreement import check_equal, every, on_every_rank
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
        OperandError: no rank has the matrix, or some but not all, or the ranks hold different ones.
        SizeError: ``A`` is no matrix, or the partition or the permutation does not fit.
        UnsupportedError: the placements are not ``[Shard(0)]``, the mesh has several dimensions, or pymetis isn't installed.

    Source: Tripathy, Yelick and Buluc, "Reducing Communication in Graph Neural Network Training", SC 2020, section 4.1.
    """
    _check_mesh(mesh)
    placements = [placements] if isinstance(placements, Placement) else list(placements)
    if placements not in ([Shard(0)], [Shard(-2)]):
        raise UnsupportedError(f"placements={placements}: rows are distributed, give [Shard(0)]")
    group = mesh.get_group()
    matrix = on_every_rank(group, lambda: None if A is None else _matrix(A))
    holders = [rank for rank, has in enumerate(every(group, matrix is not None)) if has]
    if len(holders) not in (1, group.size()):
        raise OperandError(f"ranks {holders} hold the matrix, but the others pass None: pass it on one rank, or on all")
    if any(every(group, matrix is not None and matrix.requires_grad and len(holders) < group.size())):
        raise OperandError(
            f"the values on rank {holders[0]} require grad, but other ranks pass None: pass the matrix on all ranks, or detach it"
        )
    whole = matrix if matrix is not None and len(holders) == group.size() else _broadcast(matrix, holders[0], group)
    check_equal(group, "the matrix", (tuple(whole.shape), whole.nnz, whole.dtype, _checksum(whole)))

    def plan() -> tuple[SparseTensor, Partition, Partition, torch.Tensor | None]:
        places = read_permutation(whole, permute, group.size())
        moved = whole if places is None else permuted(whole, places)
        counts = torch.bincount(moved.indices()[0], minlength=moved.shape[0])
        rows = read_partition(partition, counts, group.size())
        columns = rows if moved.shape[0] == moved.shape[1] else Partition.even(moved.shape[1], group.size())
        return moved, rows, columns, places

    moved, rows, columns, places = on_every_rank(group, plan)
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
        OperandError: the ranks have different numbers of columns, or data types.
        SizeError: the matrix does not have two dimensions, or ``columns`` does not fit.
        UnsupportedError: the mesh has several dimensions.
    """
    _check_mesh(mesh)
    group = mesh.get_group()
    matrix = on_every_rank(group, lambda: _matrix(local))
    check_equal(group, "the number of columns, the data type, or columns=", (matrix.shape[1], matrix.dtype, columns and list(columns)))
    rows = Partition.of_sizes(every(group, matrix.shape[0]))
    width = matrix.shape[1]
    if columns is not None:
        column_partition = on_every_rank(group, lambda: read_partition(columns, torch.zeros(width), group.size()))
    else:
        column_partition = rows if rows.size == width else Partition.even(width, group.size())
    exchange, numbered = local_matrix(matrix, column_partition, mesh)
    return ShardedSparseTensor(Layout(mesh, (rows.size, width), rows, exchange, numbered), numbered.values)


def _check_mesh(mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise UnsupportedError(f"a mesh of {mesh.ndim} dimensions: rows are distributed over a mesh of one, such as mesh['rows']")


def _matrix(A: SparseTensor | torch.Tensor) -> SparseTensor:
    """The matrix in CSR."""
    A = A.tensor if isinstance(A, SparseParameter) else A
    matrix = A if isinstance(A, SparseTensor) else from_torch(A)
    if matrix.ndim != 2:
        raise SizeError(f"a tensor of {matrix.ndim} dimensions: only matrices are sharded")
    return matrix.to(CSR)


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
    dist.broadcast_object_list(pieces, dist.get_global_rank(group, source), group)
    shape, indices, values = pieces[0]
    return A if A is not None else from_coo(indices, values, shape, format=CSR)
