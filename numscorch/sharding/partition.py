"""Partitions of the rows or columns of a matrix, the grid of ranks that hold the parts, and a report on their sizes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from ..errors import RangeError, SizeError, UnsupportedError
from .ranks import Ranks


@dataclass(frozen=True)
class Partition:
    """A partition of rows or columns into consecutive ranges, one for each rank.

    Attributes:
        starts: the first row of each rank, followed by the number of rows.

    >>> rows = Partition((0, 5, 7))
    >>> rows.size, rows.ranks, rows.sizes, rows.range_of(1)
    (7, 2, (5, 2), (5, 7))
    """

    starts: tuple[int, ...]

    @classmethod
    def even(cls, size: int, ranks: int) -> Partition:
        """Make torch's chunks of ``Shard(0)``: each rank has ``ceil(size / ranks)`` rows, and the last ranks fewer or none.

        Args:
            size: the number of rows.
            ranks: the number of ranks.

        >>> Partition.even(7, 4)
        Partition(starts=(0, 2, 4, 6, 7))
        """
        chunk = -(-size // ranks)
        return cls(tuple(min(rank * chunk, size) for rank in range(ranks + 1)))

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Partition:
        """Make ranges of given lengths.

        Args:
            sizes: the number of rows of each rank.

        >>> Partition.of_sizes([5, 2])
        Partition(starts=(0, 5, 7))
        """
        return cls((0, *accumulate(sizes)))

    @classmethod
    def balanced(cls, weights: torch.Tensor, ranks: int) -> Partition:
        """Make ranges whose sums of weights are about equal.

        Each boundary lies directly before or after the row in which the sum crosses an equal share.

        Args:
            weights: one weight for each row, such as its number of entries, shape (rows,).
            ranks: the number of ranks.

        Complexity:
            O(rows).

        >>> import torch
        >>> Partition.balanced(torch.tensor([9, 1, 1, 1, 1, 1]), 2), Partition.balanced(torch.tensor([1, 1, 1, 1, 1, 9]), 2)
        (Partition(starts=(0, 1, 6)), Partition(starts=(0, 5, 6)))
        """
        sums = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumsum(weights.double(), 0)])
        total = float(sums[-1])
        if not total:
            return cls.even(len(weights), ranks)
        goals = torch.tensor([total * rank / ranks for rank in range(1, ranks)], dtype=torch.float64)
        after = torch.searchsorted(sums, goals).clamp(min=1, max=len(weights))
        cuts = torch.where(goals - sums[after - 1] < sums[after] - goals, after - 1, after)
        return cls((0, *cuts.tolist(), len(weights)))

    def split(self, count: int) -> Partition:
        """Divide each range into torch's chunks.

        Args:
            count: the number of chunks of each range.

        >>> Partition((0, 5, 7)).split(2)
        Partition(starts=(0, 3, 5, 6, 7))
        """
        return Partition.of_sizes([piece for size in self.sizes for piece in Partition.even(size, count).sizes])

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.starts[-1]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of each rank."""
        return tuple(stop - start for start, stop in pairwise(self.starts))

    def range_of(self, rank: int) -> tuple[int, int]:
        """Return the first row of a rank, and the first row after its rows.

        Args:
            rank: the number of the rank.
        """
        return self.starts[rank], self.starts[rank + 1]

    def owner(self, row: int) -> int:
        """Return the rank that has a row.

        Args:
            row: the number of the row.

        Raises:
            RangeError: there is no such row.

        >>> Partition((0, 2, 2, 5)).owner(2)
        2
        """
        if not 0 <= row < self.size:
            raise RangeError(f"owner of row {row} in a partition of {self.size} rows: rows are counted from 0")
        return bisect_right(self.starts, row) - 1

    def owners(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the ranks that have some rows.

        Args:
            rows: numbers of rows, an integer tensor of any shape.

        Returns:
            An integer tensor of the same shape.

        >>> import torch
        >>> Partition((0, 2, 2, 5)).owners(torch.tensor([4, 0]))
        tensor([2, 0])
        """
        return torch.searchsorted(torch.tensor(self.starts[1:]), rows, right=True)


def read_partition(partition: str | Sequence[int], counts: torch.Tensor, ranks: int) -> Partition:
    """The partition that a user requests.

    Args:
        partition: ``"rows"`` for torch's chunks, ``"nnz"`` for ranges with about as many entries each, or the number of rows of each rank.
        counts: entries per row.
        ranks: number of ranks.

    Raises:
        SizeError: the partition is unknown, or does not fit.
    """
    if partition == "rows":
        return Partition.even(len(counts), ranks)
    if partition == "nnz":
        return Partition.balanced(counts, ranks)
    if isinstance(partition, str):
        raise SizeError(f"partition={partition!r}: give 'rows', 'nnz', or the number of rows of each rank")
    sizes = [int(size) for size in partition]
    if len(sizes) != ranks or min(sizes, default=0) < 0 or sum(sizes) != len(counts):
        raise SizeError(f"partition={sizes}: give {ranks} numbers of rows, one for each rank, that add up to {len(counts)}")
    return Partition.of_sizes(sizes)


class Grid:
    """The ranks of a mesh over which a matrix is distributed: its rows over one dimension, and possibly its columns over a later one.

    Rows and columns are divided into one part for each of these ranks, in row-major order, as ``DTensor`` does for
    ``[Shard(0), Shard(0)]``. A rank owns its part of both. It holds the entries whose rows a rank of the same mesh row owns, and whose
    columns a rank of the same mesh column owns.

    Args:
        mesh: the mesh.
        row_dim: the dimension of the mesh over which the rows are distributed.
        column_dim: the dimension over which the columns are distributed; None if each rank has whole rows.

    Attributes:
        dims: the dimensions of the mesh over which the matrix is distributed; it is replicated over other dimensions.
        placements: the placements of the matrix.
        ranks: the ranks that hold the matrix together, one for each part.
        rows: the number of blocks of rows.
        columns: the number of ranks that share a block of rows.
        block: the block of rows of this rank.
        share: the position of this rank among those that share its block of rows.
        row_parts: the parts of the rows that ranks with this block own.
    """

    def __init__(self, mesh: DeviceMesh, row_dim: int, column_dim: int | None):
        self.mesh, self.row_dim, self.column_dim = mesh, row_dim, column_dim
        self.dims = (row_dim,) if column_dim is None else (row_dim, column_dim)
        kinds: dict[int | None, Placement] = {row_dim: Shard(0), column_dim: Shard(1)}
        self.placements = [kinds.get(dim, Replicate()) for dim in range(mesh.ndim)]
        self.ranks = Ranks.of(mesh, self.dims)
        self.rows, self.block = mesh.size(row_dim), mesh.get_local_rank(row_dim)
        self.columns, self.share = (1, 0) if column_dim is None else (mesh.size(column_dim), mesh.get_local_rank(column_dim))
        self.row_parts = range(self.block * self.columns, (self.block + 1) * self.columns)

    def chunks(self, size: int) -> Partition:
        """The parts that ``DTensor`` has: torch's chunks, divided into torch's chunks."""
        return Partition.even(size, self.rows).split(self.columns)


def read_grid(mesh: DeviceMesh, placements: Placement | Sequence[Placement]) -> Grid:
    """The grid that a user requests.

    Raises:
        UnsupportedError: there is not one placement for each dimension of the mesh, or they are not supported.
    """
    given = [placements] if isinstance(placements, Placement) else list(placements)
    dims = [placement.dim % 2 if isinstance(placement, Shard) else None for placement in given]
    known = all(isinstance(placement, Shard | Replicate) for placement in given)
    if len(given) != mesh.ndim or not known or [dim for dim in dims if dim is not None] not in ([0], [0, 1]):
        raise UnsupportedError(
            f"placements={given} on a mesh of {mesh.ndim} dimensions: give one for each dimension. Supported are Shard(0) for the rows, "
            "at most one Shard(1) for the columns after it, and Replicate() for other dimensions"
        )
    return Grid(mesh, dims.index(0), dims.index(1) if 1 in dims else None)


@dataclass(frozen=True)
class ShardingReport:
    """The load and the communication of each rank, as :meth:`ShardedSparseTensor.report` returns them; prints as a table.

    Attributes:
        entries: number of entries of each rank.
        halo_rows: number of rows of a dense operand that each rank receives for a product.
        cut: number of entries of each rank whose columns other ranks own.
        partial_rows: number of rows of a result that each rank sends to their owners; 0 if each rank has whole rows.

    >>> print(ShardingReport(entries=(6, 4), halo_rows=(1, 2), cut=(1, 3), partial_rows=(0, 0)))
    rank      entries    halo rows  cut entries partial rows
       0            6            1            1            0
       1            4            2            3            0
    edge cut 40.0%, imbalance 1.20
    """

    entries: tuple[int, ...]
    halo_rows: tuple[int, ...]
    cut: tuple[int, ...]
    partial_rows: tuple[int, ...]

    @property
    def imbalance(self) -> float:
        """The largest number of entries of a rank, divided by the mean."""
        total = sum(self.entries)
        return max(self.entries) * len(self.entries) / total if total else 1.0

    @property
    def edge_cut(self) -> float:
        """The fraction of entries whose columns other ranks own."""
        return sum(self.cut) / max(sum(self.entries), 1)

    def __str__(self) -> str:
        lines = [f"{'rank':>4} {'entries':>12} {'halo rows':>12} {'cut entries':>12} {'partial rows':>12}"]
        for rank, row in enumerate(zip(self.entries, self.halo_rows, self.cut, self.partial_rows, strict=True)):
            lines.append(" ".join([f"{rank:>4}", *(f"{count:>12}" for count in row)]))
        return "\n".join([*lines, f"edge cut {self.edge_cut:.1%}, imbalance {self.imbalance:.2f}"])
