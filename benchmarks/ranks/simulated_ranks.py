"""Tables of simulated partitions, and of the efficiency that the cost model predicts for a large graph on up to 1,024 ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain

import numscorch as ns
from numscorch.sharding.constructors import Permutation

from .. import data
from ..report import table
from .large_graphs import in_blocks, mesh_graph, rmat_graph
from .partitions import Simulated, reordered, simulate
from .step_costs import COLUMNS, NETWORKS, Network, Rates, Work, copy_rate, product_rate

RANKS = tuple(2**power for power in range(1, 11))
REPLICAS = (1, 2, 4, 8)
NODES, EDGES = 100_000_000, 1_000_000_000  # of the large graph
DEGREE = EDGES // NODES
SCHEMES = tuple("1D" if replicas == 1 else f"1.5D, c = {replicas}" for replicas in REPLICAS)
FEW_RANKS = (2, 32, 1024)  # of real graphs
LEAST_NODES = 16_384  # of a real graph
LEAST_ROWS = 4  # of a rank
ROWS_BY_FEATURES = 8  # parts of the features, if rows and features are sharded
MEASURED_NETWORK = "100 Gb/s"  # of the schemes other than 1D

Cases = dict[tuple[int, int], Simulated]  # by number of ranks and of replicas


@dataclass(frozen=True)
class Graph:
    """A graph to partition.

    Args:
        name: how tables call it.
        matrix: its adjacency matrix.
        permute: the permutation before it is partitioned.
        is_local: whether its halos are surfaces of parts, so that halo rows per row fall with the third root of the number of nodes.
    """

    name: str
    matrix: ns.SparseTensor
    permute: Permutation
    is_local: bool = False

    def simulated(self, ranks: Sequence[int]) -> Cases:
        """Partitions over these numbers of ranks, as far as each rank has a few rows."""
        nodes, cases = self.matrix.shape[0], {}
        for count in (count for count in ranks if count * LEAST_ROWS <= nodes):
            ends = reordered(self.matrix, self.permute, count)
            for replicas in (replicas for replicas in REPLICAS if count % replicas == 0):
                cases[count, replicas] = simulate(ends, nodes, count, replicas)
        return cases


def partition_table(cases: Cases) -> str:
    """Imbalance, halos and gigabytes of a step for each number of ranks. Sharded features send nothing."""
    head = ("P", "imbalance", "halo / rows", "mean", "neighbours", *(f"GB, {scheme}" for scheme in SCHEMES))
    rows = []
    for ranks in sorted({ranks for ranks, _ in cases}):
        case = cases[ranks, 1]
        sent = (f"{cases[ranks, c].bytes_of_step(COLUMNS) / 1e9:.3g}" if (ranks, c) in cases else "" for c in REPLICAS)
        rows.append((str(ranks), f"{case.imbalance:.2f}", f"{case.halo:.2f}", f"{case.mean_halo:.2f}", str(case.neighbours), *sent))
    return table(head, rows)


def work_of(case: Simulated, share: float, features: int = 1) -> Work:
    """The work of the slowest rank for the large graph, if features have this number of parts, each with ``case.ranks`` ranks.

    Args:
        case: a simulated partition.
        share: exchanged rows per row of the large graph, divided by those of the simulated one.
        features: parts of the features.
    """
    received = (case.halo + case.returned) * share * NODES / case.ranks
    return Work(EDGES / case.ranks * case.imbalance, COLUMNS / features, received, case.neighbours + case.replicas - 1)


def efficiency(work: Work, ranks: int, rates: Rates, network: Network, one_rank: float) -> float:
    """Seconds of one rank, divided by the number of ranks and the seconds of a step.

    Args:
        work: the work of the slowest rank.
        ranks: the number of ranks.
        rates: the rates for the columns of a rank.
        network: the network.
        one_rank: seconds of one rank.
    """
    return one_rank / ranks / work.seconds(rates, network)


def efficiency_table(graph: Graph, cases: Cases, products: dict[int, float], copy: float) -> str:
    """The efficiency of the large graph, for networks in 1D and for all schemes with one network.

    Args:
        graph: the simulated graph.
        cases: its partitions.
        products: seconds per entry and column of a product, by number of columns.
        copy: seconds per byte of copied rows.
    """
    share = (graph.matrix.shape[0] / NODES) ** (1 / 3) if graph.is_local else 1.0
    wide, network, parts = Rates(products[COLUMNS], copy), NETWORKS[MEASURED_NETWORK], ROWS_BY_FEATURES
    one_rank = Work(EDGES, COLUMNS).seconds(wide, network)
    whole = Simulated(graph.matrix.shape[0], 1, 1, 1.0, 0.0, 0.0, 0)

    def cells(ranks: int) -> Iterator[float | None]:
        for speed in NETWORKS.values():
            yield efficiency(work_of(cases[ranks, 1], share), ranks, wide, speed, one_rank)
        for replicas in REPLICAS[1:]:
            case = cases.get((ranks, replicas))
            yield None if case is None else efficiency(work_of(case, share), ranks, wide, network, one_rank)
        case = whole if ranks == parts else cases.get((ranks // parts, 1))
        narrow = Rates(products[COLUMNS // parts], copy)
        yield None if case is None else efficiency(work_of(case, share, parts), ranks, narrow, network, one_rank)
        narrow = Rates(products.get(COLUMNS // ranks, 0.0), copy)
        yield efficiency(work_of(whole, share, ranks), ranks, narrow, network, one_rank) if ranks <= COLUMNS else None

    head = ("P", *(f"1D, {name}" for name in NETWORKS), *SCHEMES[1:], f"rows x {parts} features", "features")
    counts = sorted({ranks for ranks, _ in cases})
    return table(head, [(str(ranks), *("" if cell is None else f"{cell:.0%}" for cell in cells(ranks))) for ranks in counts])


def rate_table(products: dict[str, dict[int, float]]) -> str:
    """Picoseconds per entry and column of products with 64 columns and fewer."""
    widths = sorted(next(iter(products.values())), reverse=True)
    return table(
        ("columns", *map(str, widths)),
        [(name, *(f"{by_width[width] * 1e12:.0f}" for width in widths)) for name, by_width in products.items()],
    )


def sizes_table(scale: int, ranks: Sequence[int]) -> str:
    """Halos and imbalance of R-MAT graphs of several sizes: how far those of a small graph hold for a large one."""
    head = ("P", *chain.from_iterable((f"halo, 2^{size}", f"imbalance, 2^{size}") for size in range(scale - 6, scale + 1, 2)))
    graphs = [Graph("R-MAT", rmat_graph(size, DEGREE), "nnz").simulated(ranks) for size in range(scale - 6, scale + 1, 2)]
    rows = []
    for count in (count for count in ranks if all((count, 1) in cases for cases in graphs)):
        cells = ((f"{cases[count, 1].halo:.2f}", f"{cases[count, 1].imbalance:.2f}") for cases in graphs)
        rows.append((str(count), *chain.from_iterable(cells)))
    return table(head, rows)


def real_graphs() -> Iterator[Graph]:
    """Graphs of the data folder with a few thousand nodes, in their order and partitioned by METIS, if it is installed."""
    for name in data.names():
        case = data.matrix(name)
        if case.is_square and case.shape[0] >= LEAST_NODES:
            yield Graph(name, case.tensor, None)
            if find_spec("pymetis"):
                yield Graph(name, case.tensor, "metis")


def real_table(ranks: Sequence[int]) -> str:
    """Partitions of real graphs."""
    head = ("graph", "nodes", "entries", "permute", "P", "imbalance", "halo / rows", "mean", *(f"MB, {scheme}" for scheme in SCHEMES))
    rows = []
    for graph in real_graphs():
        cases = graph.simulated(ranks)
        for count in sorted({count for count, _ in cases}):
            case = cases[count, 1]
            sent = (f"{cases[count, c].bytes_of_step(COLUMNS) / 1e6:.3g}" if (count, c) in cases else "" for c in REPLICAS)
            start = (graph.name, f"{case.nodes:,}", f"{graph.matrix.nnz:,}", str(graph.permute), str(count))
            rows.append((*start, f"{case.imbalance:.2f}", f"{case.halo:.2f}", f"{case.mean_halo:.2f}", *sent))
    return table(head, rows)


def simulated_tables(nodes: int, scale: int, ranks: Sequence[int] = RANKS) -> Iterator[str]:
    """All tables, as Markdown.

    Args:
        nodes: of the mesh.
        scale: of the R-MAT graph, which has 2**scale nodes.
        ranks: numbers of ranks.
    """
    mesh = mesh_graph(nodes, DEGREE)
    graphs = [
        Graph("mesh, numbered by planes", mesh, None),
        Graph("mesh, in blocks", mesh, in_blocks(nodes), is_local=True),
        Graph("R-MAT", rmat_graph(scale, DEGREE), "nnz"),
    ]
    widths = [2**power for power in range(COLUMNS.bit_length())]
    products = {graph.name: {width: product_rate(graph.matrix, width) for width in widths} for graph in graphs[1:]}
    copy = copy_rate(nodes)
    yield f"Picoseconds of a product per entry and column; copied rows: {1 / copy / 1e9:.1f} GB/s\n\n{rate_table(products)}"
    for graph in graphs:
        cases = graph.simulated(ranks)
        yield f"{graph.name}: {graph.matrix.shape[0]:,} nodes, {graph.matrix.nnz:,} entries\n\n{partition_table(cases)}"
        if graph.name in products:
            large = f"efficiency with {NODES:,} nodes and {EDGES:,} entries; schemes other than 1D with {MEASURED_NETWORK}"
            yield f"{graph.name}: {large}\n\n{efficiency_table(graph, cases, products[graph.name], copy)}"
    yield f"R-MAT graphs of several sizes\n\n{sizes_table(scale, ranks)}"
    if not os.environ.get(data.FOLDER):
        yield "Real graphs: skipped, give --data FOLDER"
        return
    missing = "" if find_spec("pymetis") else " (pymetis is not installed)"
    yield f"Real graphs{missing}\n\n{real_table([few for few in FEW_RANKS if few in ranks])}"
