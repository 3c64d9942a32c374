"""``benchmarks.scaling`` at its small size, and the cost model by hand."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from two_processes import two_processes

import numscorch as ns
from benchmarks import scaling
from benchmarks.ranks import large_graphs, partitions, step_costs
from benchmarks.ranks.large_graphs import mesh_graph
from benchmarks.ranks.partitions import Simulated
from benchmarks.ranks.simulated_ranks import EDGES, NODES, Graph, efficiency_table, partition_table, work_of
from benchmarks.ranks.step_costs import NETWORKS, Network, Rates, Work

ROOT = Path(scaling.__file__).parents[1]


def test_a_step_adds_products_messages_and_rows() -> None:
    work = Work(entries=2000, columns=64, received=125, messages=3)
    rates, network = Rates(product=1e-10, copy=1e-9), Network(20e-6, 1e9)
    assert work.product_seconds(rates) == pytest.approx(2000 * 64 * 1e-10)
    assert work.exchange_seconds(rates, network) == pytest.approx(3 * 20e-6 + 125 * 256 * 2e-9)
    assert work.seconds(rates, network) == pytest.approx(work.product_seconds(rates) + work.exchange_seconds(rates, network))


def test_the_large_graph_has_the_work_of_the_slowest_rank() -> None:
    case = Simulated(nodes=1000, ranks=8, replicas=2, imbalance=1.5, halo=0.5, mean_halo=0.4, neighbours=3, returned=1.0)
    work = work_of(case, share=0.2)
    assert work == Work(EDGES / 8 * 1.5, 64, (0.5 + 1.0) * 0.2 * NODES / 8, 4)
    assert work_of(case, 0.2, features=8).columns == 8


def test_ranks_without_halo_are_fully_efficient() -> None:
    diagonal = ns.from_torch(torch.eye(64), ns.CSR)
    graph = Graph("diagonal", diagonal, None)
    products = {2**power: 1e-10 for power in range(7)}
    lines = efficiency_table(graph, graph.simulated([2, 8]), products, copy=1e-9).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]]
    assert len(NETWORKS) == 3
    assert [row[:4] for row in cells] == [["100%"] * 4] * 2  # 1D, and 1.5D with c = 2
    assert [row[-2:] for row in cells] == [["", "100%"], ["100%", "100%"]]  # features


def test_tables_list_every_number_of_ranks() -> None:
    lines = partition_table(Graph("mesh", mesh_graph(128, 4), "nnz").simulated([2, 4, 8, 16, 64])).splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["2", "4", "8", "16"]


@pytest.mark.parametrize("module", [large_graphs, partitions, step_costs])
def test_examples_of_docstrings_run(module: ModuleType) -> None:
    counts = doctest.testmod(module)
    assert counts.attempted and not counts.failed


@two_processes
@pytest.mark.process
def test_the_small_run_prints_all_tables() -> None:
    command = [sys.executable, "-m", "benchmarks.scaling", "--small"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert printed.returncode == 0, printed.stderr
    for title in ("mesh, in blocks", "R-MAT", "Real graphs: skipped", "Gains of ranks", "Predictions of the cost model", "epoch, 2 ranks"):
        assert title in printed.stdout
    sent = next(line for line in printed.stdout.splitlines() if line.startswith("| bytes sent"))
    assert [cell.strip() for cell in sent.split("|")[2:4]] == ["1", "1"]
