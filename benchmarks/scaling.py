"""How sharded products scale: ``python -m benchmarks.scaling [--only simulated measured break-even] [--data FOLDER] [--small]``.

All tables are Markdown, with k = 64 columns:

    simulated    halos, imbalance and bytes of partitions over up to 1,024 ranks in 1D, 1.5D and with sharded features, and the
                 efficiency that the cost model predicts for a graph of 10^8 nodes and 10^9 entries
    measured     steps of SpMM and of training a GCN on ranks of one thread each, against threads of one process; the parts of a
                 step; and the predictions of the cost model
    break-even   the size from which ranks are faster than one process

``--data`` names a folder with subfolders ``graphs`` and ``matrices``; pymetis partitions them if it is installed.
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from . import data
from .ranks.break_even import break_even_table
from .ranks.large_graphs import GRAPHS
from .ranks.measured_ranks import ROUNDS, measure, measured_tables
from .ranks.simulated_ranks import RANKS, simulated_tables

KEPT_MEMORY = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.hugetlb=1"  # in pages of 2 MB, see the guide
PARTS = ("simulated", "measured", "break-even")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run.

    Args:
        nodes: of the mesh and the power-law graph.
        scale: of the R-MAT graph, which has 2**scale nodes.
        ranks: numbers of simulated ranks.
        rounds: how often measured calls take turns.
        steps: sizes to look for the break-even at, each four times the one before.
    """

    nodes: int
    scale: int
    ranks: tuple[int, ...]
    rounds: int
    steps: int


FULL = Sizes(1_000_000, 20, RANKS, ROUNDS, 5)
SMALL = Sizes(1_000, 9, (2, 8, 32), 1, 1)


def tell(text: str) -> None:
    """Print a table and an empty line."""
    print(text + "\n", flush=True)


def run_rank(rank: int, ranks: int, port: int, sizes: Sizes, parts: Sequence[str]) -> None:
    """Measure on one rank; the first one prints."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    device_mesh = init_device_mesh("cpu", (ranks,))
    if ranks <= len(cores := sorted(os.sched_getaffinity(0))):  # gloo's threads have started, and run where a core is idle
        os.sched_setaffinity(0, {cores[rank]})
    tables = tables_of(device_mesh, sizes, parts)
    del device_mesh
    gc.collect()  # the mesh keeps the process group alive, and a group that outlives the interpreter can abort the process
    if rank == 0:
        for text in tables:
            tell(text)
    dist.barrier()
    dist.destroy_process_group()


def tables_of(device_mesh: DeviceMesh, sizes: Sizes, parts: Sequence[str]) -> list[str]:
    """Measure on all ranks together; returns the tables."""
    tables = []
    if "measured" in parts:
        tables += measured_tables({name: measure(name, sizes.nodes, device_mesh, sizes.rounds) for name in GRAPHS})
    if "break-even" in parts:
        tables.append(break_even_table(device_mesh, sizes.steps, sizes.rounds))
    return tables


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts to run (default: all)")
    parser.add_argument("--small", action="store_true", help="small graphs, to see that it runs")
    parser.add_argument("--data", help=f"a folder with graphs and matrices (default: {data.FOLDER})")
    parser.add_argument("--nodes", type=int, help=f"of the mesh and the power-law graph (default: {FULL.nodes})")
    parser.add_argument("--scale", type=int, help=f"of the R-MAT graph: 2**scale nodes (default: {FULL.scale})")
    parser.add_argument("--ranks", type=int, default=2, help="processes of one thread each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help=f"measurements of each call (default: {ROUNDS})")
    chosen = parser.parse_args(arguments)
    overrides = {name: value for name in ("nodes", "scale", "rounds") if (value := getattr(chosen, name))}
    sizes = replace(SMALL if chosen.small else FULL, **overrides)
    if chosen.data:
        os.environ[data.FOLDER] = os.path.abspath(chosen.data)
        os.environ.setdefault(data.SETS, "graphs,matrices")
    if "simulated" in chosen.only:
        for text in simulated_tables(sizes.nodes, sizes.scale, sizes.ranks):
            tell(text)
    if {"measured", "break-even"} & set(chosen.only):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.setdefault("GLIBC_TUNABLES", KEPT_MEMORY)
        arguments_of_ranks = (chosen.ranks, port, sizes, chosen.only)
        torch.multiprocessing.start_processes(run_rank, arguments_of_ranks, nprocs=chosen.ranks)  # type: ignore[attr-defined, no-untyped-call]


if __name__ == "__main__":
    main()
