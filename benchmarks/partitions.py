"""Halo sizes, imbalance and predicted step times of products on up to 1,024 ranks: ``python -m benchmarks.partitions``.

Partitions of three graphs are simulated: a mesh, an R-MAT graph whose rows are dealt out by their number of entries, and graphs of
``--data``. The cost of a step of SpMM with k columns on the slowest rank is

    entries x k x seconds per entry and column + messages x alpha + bytes / bandwidth

The seconds per entry and column are measured here, on one thread; alpha and the bandwidths are those of networks, or measured on the
loopback interface with ``benchmarks.scaling``.

Sources: Chakrabarti, Zhan and Faloutsos, "R-MAT", SDM 2004; Tripathy, Yelick and Buluc, "Reducing Communication in Graph Neural
Network Training", SC 2020 (1D and 1.5D).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import numscorch as ns
from numscorch.sharding import Partition

from .scaling import COLUMNS, mesh_graph

RANKS = tuple(2**power for power in range(1, 11))
RMAT = (0.57, 0.19, 0.19, 0.05)  # the probabilities of the quadrants in Graph500
ALPHA = 20e-6  # seconds per message between machines
NETWORKS = {"10 Gb/s": 1.25e9, "100 Gb/s": 12.5e9, "400 Gb/s": 50e9}  # bytes per second
NODES, EDGES = 100_000_000, 1_000_000_000  # of the large graph
REPLICATION = 4  # copies of each block of the dense operand in 1.5D


@dataclass(frozen=True)
class Simulated:
    """A graph on P ranks: the largest numbers over ranks, per node of the graph.

    Args:
        ranks: P.
        imbalance: the largest number of entries of a rank, divided by the mean.
        halo: the largest number of halo rows of a rank, divided by the rows of a rank.
        mean_halo: the mean number of halo rows, divided by the rows of a rank.
        neighbours: the largest number of ranks from which a rank receives rows.
    """

    ranks: int
    imbalance: float
    halo: float
    mean_halo: float
    neighbours: int


def rmat_graph(scale: int, degree: int) -> ns.SparseTensor:
    """An R-MAT graph of 2**scale nodes."""
    generator = torch.Generator().manual_seed(0)
    count = degree << scale
    ends = torch.zeros(2, count, dtype=torch.int64)
    limits = torch.tensor(RMAT).cumsum(0)
    for _ in range(scale):
        quadrant = torch.searchsorted(limits, torch.rand(count, generator=generator)).clamp(max=3)
        ends = 2 * ends + torch.stack([quadrant // 2, quadrant % 2])
    return ns.from_coo(ends, torch.ones(count), (1 << scale, 1 << scale), format=ns.CSR)


def dealt(A: ns.SparseTensor, ranks: int) -> torch.Tensor:
    """The place of each row if rows are dealt out by their number of entries."""
    order = torch.argsort(torch.bincount(A.indices()[0], minlength=A.shape[0]), descending=True, stable=True)
    places = torch.empty_like(order)
    places[torch.cat([order[rank::ranks] for rank in range(ranks)])] = torch.arange(len(order))
    return places


def simulate(A: ns.SparseTensor, ranks: int, is_dealt: bool) -> Simulated:
    """Partition a square matrix into even chunks, and count."""
    rows, columns = A.indices()
    if is_dealt:
        places = dealt(A, ranks)
        rows, columns = places[rows], places[columns]
    partition = Partition.even(A.shape[0], ranks)
    owner, source = partition.owners(rows), partition.owners(columns)
    entries = torch.bincount(owner, minlength=ranks)
    needed = torch.unique((owner * A.shape[0] + columns)[owner != source])
    halo = torch.bincount(needed // A.shape[0], minlength=ranks)
    pairs = torch.unique((owner * ranks + source)[owner != source])
    size = A.shape[0] / ranks
    return Simulated(
        ranks,
        float(entries.max() * ranks / entries.sum()),
        float(halo.max() / size),
        float(halo.double().mean() / size),
        int(torch.bincount(pairs // ranks, minlength=ranks).max()),
    )


def seconds_per_entry(A: ns.SparseTensor) -> float:
    """Seconds of SpMM on one thread, per entry and column."""
    torch.set_num_threads(1)
    x = torch.rand(A.shape[1], COLUMNS)
    times = []
    for _ in range(6):
        started = time.perf_counter()
        A @ x
        times.append(time.perf_counter() - started)
    return min(times) / A.nnz / COLUMNS


def step_of(
    case: Simulated, rate: float, bandwidth: float, nodes: int = NODES, edges: int = EDGES, share: float = 1.0
) -> tuple[float, float]:
    """Seconds of the slowest rank's product, and of its exchange; ``share`` is that of halo rows over the simulated one."""
    halo_bytes = share * case.halo * nodes / case.ranks * COLUMNS * 4
    return edges / case.ranks * case.imbalance * COLUMNS * rate, case.neighbours * ALPHA + halo_bytes / bandwidth


def replicated(case: Simulated, rate: float, bandwidth: float) -> float:
    """Seconds of a step in 1.5D: groups of P / c ranks exchange blocks, and c partial results are summed."""
    groups = max(case.ranks // REPLICATION, 1)
    product = EDGES / case.ranks * case.imbalance * COLUMNS * rate
    block = NODES / groups * COLUMNS * 4
    received = block * groups / REPLICATION  # each rank takes 1 / c of the stages
    return product + groups / REPLICATION * ALPHA + (received + 2 * block * (REPLICATION - 1) / REPLICATION) / bandwidth


def table(name: str, A: ns.SparseTensor, is_dealt: bool, rate: float) -> list[str]:
    """A table of a graph: simulated partitions, and the efficiency of the large graph with such partitions.

    The halo of a mesh is the surface of a part, so its share of the rows falls with the third root of the nodes. That of a graph
    without locality depends on the number of ranks only.
    """
    share = 1.0 if is_dealt else (A.shape[0] / NODES) ** (1 / 3)
    lines = [f"{name}: {A.shape[0]} nodes, {A.nnz} entries; large graph: {NODES:.0e} nodes, {EDGES:.0e} edges, {share:.2f} of halo / rows"]
    head = f"{'P':>5} {'imbalance':>9} {'halo/rows':>9} {'mean':>7} {'neighbours':>10} {'GB a step':>9}"
    lines.append(head + "".join(f" {network:>9}" for network in NETWORKS) + f" {'1.5D, 100':>9}")
    for ranks in RANKS:
        if ranks * 4 > A.shape[0]:
            break
        case = simulate(A, ranks, is_dealt)
        cells = []
        for bandwidth in NETWORKS.values():
            product, exchange = step_of(case, rate, bandwidth, share=share)
            cells.append(EDGES * COLUMNS * rate / ranks / (product + exchange))
        replicas = EDGES * COLUMNS * rate / ranks / replicated(case, rate, NETWORKS["100 Gb/s"])
        sent = share * case.mean_halo * NODES * COLUMNS * 4 / 1e9
        lines.append(
            f"{ranks:>5} {case.imbalance:>9.2f} {case.halo:>9.2f} {case.mean_halo:>7.2f} {case.neighbours:>10} {sent:>9.1f}"
            + "".join(f" {cell:>9.0%}" for cell in cells)
            + f" {replicas:>9.0%}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the mesh (default: %(default)s)")
    parser.add_argument("--scale", type=int, default=20, help="of the R-MAT graph: 2**scale nodes (default: %(default)s)")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="graphs (.npz) or matrices")
    chosen = parser.parse_args(arguments)
    graphs = {"mesh": (mesh_graph(chosen.nodes), False), "R-MAT": (rmat_graph(chosen.scale, 10), True)}
    for path in chosen.data:
        A = ns.load(path)
        graphs[path.stem] = (A, True)
    rates = {name: seconds_per_entry(A) for name, (A, _) in graphs.items()}
    for name, (A, is_dealt) in graphs.items():
        rate = rates[name if name in ("mesh", "R-MAT") else "R-MAT"]
        print(f"seconds per entry and column: {rate:.2e}")
        print("\n".join(table(name, A, is_dealt, rate)), flush=True)


if __name__ == "__main__":
    main()
