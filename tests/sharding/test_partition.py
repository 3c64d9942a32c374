"""Partitions: torch's chunks, balanced ranges, owners, and refused requests."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.sharding.partition import Partition, read_partition


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 5, 6, 20])
def test_even_partitions_are_torchs_chunks(size: int, ranks: int) -> None:
    chunks = [len(chunk) for chunk in torch.arange(size).chunk(ranks)] if size else []
    partition = Partition.even(size, ranks)
    assert list(partition.sizes) == chunks + [0] * (ranks - len(chunks))
    assert partition.size == size and partition.ranks == ranks


@pytest.mark.parametrize("parts", [(2, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("size", [0, 1, 5, 7, 20])
def test_split_partitions_are_nested_chunks(size: int, parts: tuple[int, int]) -> None:
    rows, columns = parts
    chunks = [torch.arange(size)[slice(*Partition.even(size, rows).range_of(row))] for row in range(rows)]
    expected = [chunk[slice(*Partition.even(len(chunk), columns).range_of(column))] for chunk in chunks for column in range(columns)]
    partition = Partition.even(size, rows).split(columns)
    assert [torch.arange(size)[slice(*partition.range_of(part))].tolist() for part in range(rows * columns)] == [
        part.tolist() for part in expected
    ]


@pytest.mark.parametrize("seed", range(20))
def test_balanced_partitions(seed: int) -> None:
    """No rank has more than its share and the largest row."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(0, 50, (seed * 3,), generator=generator)
    ranks = 1 + seed % 5
    partition = Partition.balanced(weights, ranks)
    assert partition.starts[0] == 0 and partition.size == len(weights) and min(partition.sizes) >= 0
    total = int(weights.sum())
    for rank in range(ranks):
        start, stop = partition.range_of(rank)
        assert int(weights[start:stop].sum()) <= total / ranks + int(weights.max() if len(weights) else 0)


def test_owners() -> None:
    partition = Partition.of_sizes([2, 0, 3])
    for row in (-1, 5):
        with pytest.raises(ns.RangeError, match=f"owner of row {row} in a partition of 5 rows"):
            partition.owner(row)
    assert partition.owners(torch.arange(5)).tolist() == [partition.owner(row) for row in range(5)] == [0, 0, 2, 2, 2]


@pytest.mark.parametrize("partition", ["columns", [1, 1], [5, 0, 0], [-1, 5]])
def test_partitions_that_do_not_fit_are_refused(partition: str | list[int]) -> None:
    with pytest.raises(ns.SizeError, match="number"):
        read_partition(partition, torch.ones(4), 2)
