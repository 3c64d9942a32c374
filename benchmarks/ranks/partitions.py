"""Partitions of square matrices over many ranks, simulated in one process: entries, halo rows and messages of each rank.

Source: Tripathy, Yelick and Buluc, "Reducing Communication in Graph Neural Network Training", SC 2020 (1D and 1.5D).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import numscorch as ns
from numscorch.sharding import Partition
from numscorch.sharding.constructors import Permutation, read_permutation


@dataclass(frozen=True)
class Simulated:
    """A square matrix on P ranks.

    In 1D (``replicas`` = 1), each rank has the entries of a chunk of rows. In 1.5D, the ranks form a mesh of P / c x c: the c ranks of
    a row of the mesh divide the entries of c chunks of rows by their columns, and sum their results.

    Args:
        nodes: rows of the matrix.
        ranks: P.
        replicas: c.
        imbalance: the largest number of entries of a rank, divided by the mean.
        halo: the largest number of halo rows of a rank, divided by the rows of a chunk.
        mean_halo: the mean number of halo rows, divided by the rows of a chunk.
        neighbours: the largest number of ranks from which a rank receives halo rows.
        returned: the largest number of rows of partial results that a rank sends to their owners, divided by the rows of a chunk.
        mean_returned: the mean of it.
    """

    nodes: int
    ranks: int
    replicas: int
    imbalance: float
    halo: float
    mean_halo: float
    neighbours: int
    returned: float = 0.0
    mean_returned: float = 0.0

    def bytes_of_step(self, columns: int) -> float:
        """Bytes that all ranks send for a product with a float32 operand: halo rows, and partial results in 1.5D."""
        return (self.mean_halo + self.mean_returned) * self.nodes * columns * 4


def reordered(A: ns.SparseTensor, permute: Permutation, ranks: int) -> torch.Tensor:
    """The rows and columns of the entries, (2, nnz), after ``shard(..., permute=permute)`` on this number of ranks."""
    ends = A.indices()
    order = read_permutation(A, permute, ranks)
    if order is None:
        return ends
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places[ends]


def simulate(ends: torch.Tensor, nodes: int, ranks: int, replicas: int = 1) -> Simulated:
    """Partition a square matrix into torch's chunks, and count. O(nnz log nnz).

    Rank r owns chunk r of a dense operand and of the result. Its entries have the rows of the chunks of its row of the mesh, and the
    columns of the chunks r, r + c, r - c, ..., which the ranks of its column of the mesh own.

    Args:
        ends: rows and columns of the entries, (2, nnz).
        nodes: the number of rows.
        ranks: the number of ranks.
        replicas: the replication factor, which divides the number of ranks.

    Raises:
        ValueError: ``replicas`` does not divide ``ranks``.

    >>> simulate(torch.tensor([[0, 0, 1, 3], [0, 3, 2, 3]]), 4, 2)
    Simulated(nodes=4, ranks=2, replicas=1, imbalance=1.5, halo=1.0, mean_halo=0.5, neighbours=1, returned=0.0, mean_returned=0.0)
    """
    if ranks % replicas:
        raise ValueError(f"{ranks} ranks do not form rows of {replicas}: give a number of replicas that divides the number of ranks")
    chunks = Partition.even(nodes, ranks)
    rows, columns = ends
    owner, source = chunks.owners(rows), chunks.owners(columns)
    rank = owner // replicas * replicas + source % replicas
    entries = torch.bincount(rank, minlength=ranks)
    is_received = rank != source
    halo = _distinct(rank[is_received], columns[is_received], ranks, nodes)
    neighbours = _distinct(rank[is_received], source[is_received], ranks, ranks)
    is_returned = rank != owner
    returned = _distinct(rank[is_returned], rows[is_returned], ranks, nodes)
    size = nodes / ranks
    return Simulated(
        nodes,
        ranks,
        replicas,
        float(entries.max() * ranks / entries.sum()),
        float(halo.max() / size),
        float(halo.double().mean() / size),
        int(neighbours.max()),
        float(returned.max() / size),
        float(returned.double().mean() / size),
    )


def _distinct(keys: torch.Tensor, values: torch.Tensor, count: int, size: int) -> torch.Tensor:
    """The number of distinct values below ``size`` for each of ``count`` keys."""
    pairs = np.sort((keys * size + values).numpy())  # NumPy sorts integers several times as fast as torch
    is_first = np.diff(pairs, prepend=-1) > 0
    return torch.bincount(torch.from_numpy(pairs[is_first]) // size, minlength=count)
