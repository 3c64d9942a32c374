"""Simulated partitions in 1D and 1.5D, by hand, and the product under a memory limit, at small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import numscorch as ns
from benchmarks import mapped
from benchmarks.ranks.large_graphs import in_blocks, mesh_graph, rmat_graph
from benchmarks.ranks.partitions import reordered, simulate

MESHES = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4), (6, 2), (6, 3)]


@pytest.mark.parametrize(("ranks", "replicas"), MESHES)
def test_simulated_halo_rows_are_counted_by_hand(ranks: int, replicas: int) -> None:
    """Each rank needs the distinct columns of its entries that it does not own."""
    full = torch.rand(12, 12, generator=torch.Generator().manual_seed(1)) < 0.3
    entries, halos, neighbours, returned = [], [], [], []
    for i in range(ranks // replicas):
        rows = full.chunk(ranks // replicas)[i]
        for j in range(replicas):
            shared = [chunk for chunk in range(ranks) if chunk % replicas == j]
            columns = {chunk: rows.chunk(ranks, 1)[chunk] for chunk in shared}
            entries.append(sum(int(part.sum()) for part in columns.values()))
            needed = {chunk: int(part.any(0).sum()) for chunk, part in columns.items() if chunk != i * replicas + j}
            halos.append(sum(needed.values()))
            neighbours.append(sum(count > 0 for count in needed.values()))
            has_entries = torch.stack([part.any(1) for part in columns.values()]).any(0)
            returned.append(sum(int(rows.sum()) for at, rows in enumerate(has_entries.chunk(replicas)) if at != j))
    case = simulate(ns.from_torch(full.float(), ns.CSR).indices(), 12, ranks, replicas)
    assert case.imbalance == pytest.approx(max(entries) * ranks / int(full.sum()))
    assert case.halo == pytest.approx(max(halos) / (12 / ranks))
    assert case.neighbours == max(neighbours)
    assert case.returned == pytest.approx(max(returned) / (12 / ranks))
    assert case.bytes_of_step(5) == pytest.approx((sum(halos) + sum(returned)) * 5 * 4)


def test_ranks_without_a_mesh_are_refused() -> None:
    with pytest.raises(ValueError, match="give a number of replicas that divides"):
        simulate(torch.zeros(2, 1, dtype=torch.int64), 4, 4, 3)


def test_reordered_entries_have_balanced_chunks() -> None:
    A = rmat_graph(9, 8)
    before, after = (simulate(reordered(A, permute, 8), 512, 8) for permute in (None, "nnz"))
    assert after.imbalance < 1.3 < before.imbalance
    ends = reordered(A, torch.arange(511, -1, -1), 8)
    assert torch.equal(ends, 511 - A.indices())


def test_blocks_of_a_mesh_have_smaller_halos_than_planes() -> None:
    nodes, order = 32**3, in_blocks(32**3)
    assert torch.equal(order.sort().values, torch.arange(nodes))
    block = order[:512]  # 8 x 8 x 8 nodes
    assert set((block % 32).tolist()) == set((block // 32 % 32).tolist()) == set((block // 32**2).tolist()) == set(range(8))
    A = mesh_graph(nodes, 10)
    planes, blocks = (simulate(reordered(A, permute, 64), nodes, 64) for permute in (None, order))
    assert blocks.mean_halo < 0.7 * planes.mean_halo


def test_a_mapped_matrix_is_multiplied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mapped.build(tmp_path, 1)
    mapped.multiply(tmp_path)
    assert "sampled rows equal" in capsys.readouterr().out
