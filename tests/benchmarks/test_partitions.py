"""Simulated partitions, the cost model, and the product under a memory limit, at small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import numscorch as ns
from benchmarks import mapped, partitions
from benchmarks.partitions import Simulated, rmat_graph, simulate, step_of


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_simulated_halo_rows_are_counted_by_hand(ranks: int) -> None:
    full = torch.rand(12, 12, generator=torch.Generator().manual_seed(1)) < 0.2
    case = simulate(ns.from_torch(full.float(), ns.CSR), ranks, is_dealt=False)
    size = 12 // ranks
    needed = []
    for rank in range(ranks):
        columns = full[rank * size : (rank + 1) * size].any(0)
        columns[rank * size : (rank + 1) * size] = False
        needed.append(int(columns.sum()))
    assert case.halo == pytest.approx(max(needed) / size)
    assert case.mean_halo == pytest.approx(sum(needed) / ranks / size)
    assert case.imbalance == pytest.approx(max(int(part.sum()) for part in full.split(size)) * ranks / int(full.sum()))


def test_the_cost_of_a_step_is_that_of_the_slowest_rank() -> None:
    product, exchange = step_of(Simulated(4, 1.5, 0.5, 0.4, 3), 1e-10, 1e9, nodes=1000, edges=8000)
    assert product == pytest.approx(8000 / 4 * 1.5 * 64 * 1e-10)
    assert exchange == pytest.approx(3 * partitions.ALPHA + 0.5 * 250 * 256 / 1e9)


def test_tables_list_every_number_of_ranks() -> None:
    lines = partitions.table("R-MAT", rmat_graph(7, 4), True, 1e-10)
    assert [line.split()[0] for line in lines[2:]] == ["2", "4", "8", "16", "32"]


def test_a_mapped_matrix_is_multiplied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mapped.build(tmp_path, 1)
    mapped.multiply(tmp_path)
    assert "sampled rows equal" in capsys.readouterr().out
