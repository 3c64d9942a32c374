"""Partitions of the rows or columns of a matrix: consecutive ranges, one for each rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from ..errors import SizeError


@dataclass(frozen=True)
class Partition:
    """Consecutive ranges of rows.

    Args:
        starts: the first row of each rank, and the number of rows.
    """

    starts: tuple[int, ...]

    @classmethod
    def even(cls, size: int, ranks: int) -> Partition:
        """torch's chunks of ``Shard(0)``: each rank has ``ceil(size / ranks)`` rows, the last ones fewer or none.

        >>> Partition.even(7, 4)
        Partition(starts=(0, 2, 4, 6, 7))
        """
        chunk = -(-size // ranks)
        return cls(tuple(min(rank * chunk, size) for rank in range(ranks + 1)))

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Partition:
        """Ranges of given lengths.

        >>> Partition.of_sizes([5, 2])
        Partition(starts=(0, 5, 7))
        """
        return cls((0, *accumulate(sizes)))

    @classmethod
    def balanced(cls, weights: torch.Tensor, ranks: int) -> Partition:
        """Ranges whose sums of weights are about equal: each cut is next to the row that crosses an equal share. O(rows).

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
        """Each range divided into torch's chunks.

        >>> Partition((0, 5, 7)).split(2)
        Partition(starts=(0, 3, 5, 6, 7))
        """
        pieces = [Partition.even(size, count).sizes for size in self.sizes]
        return Partition.of_sizes([size for sizes in pieces for size in sizes])

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
        """The first row of a rank, and the first row after its rows."""
        return self.starts[rank], self.starts[rank + 1]

    def owner(self, row: int) -> int:
        """The rank that has a row.

        >>> Partition((0, 2, 2, 5)).owner(2)
        2
        """
        return bisect_right(self.starts, row) - 1

    def owners(self, rows: torch.Tensor) -> torch.Tensor:
        """The ranks that have these rows."""
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
