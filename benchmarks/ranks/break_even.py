"""The size of a graph from which ranks of one thread each are faster than one process."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..report import table
from .large_graphs import GRAPHS
from .measured_ranks import alone, epoch_of, medians, sharded_graph, slowest
from .step_costs import COLUMNS

SMALLEST, DEGREE = 2_708, 4  # the size of Cora, which has 10,556 entries
GROWTH = 4


def measure_size(name: str, nodes: int, device_mesh: DeviceMesh, rounds: int) -> dict[str, float]:
    """Seconds of a step of SpMM and of an epoch: of one thread, of as many threads as ranks, and of the ranks."""
    ranks = dist.get_world_size()
    whole, A = sharded_graph(name, nodes, device_mesh, DEGREE)
    x = torch.rand(nodes, COLUMNS)
    own = A.rows_of(x).contiguous()
    one, several = epoch_of(whole, x), epoch_of(A, own)
    calls: dict[str, Callable[[], float]] = {
        "step, 1 thread": lambda: alone(1, lambda: whole @ x),
        "step, threads": lambda: alone(ranks, lambda: whole @ x),
        "step, ranks": lambda: slowest(lambda: A @ own),
        "epoch, 1 thread": lambda: alone(1, one),
        "epoch, threads": lambda: alone(ranks, one),
        "epoch, ranks": lambda: slowest(several),
    }
    return {"entries": whole.nnz} | medians(calls, rounds)


def break_even_table(device_mesh: DeviceMesh, steps: int, rounds: int) -> str:
    """Milliseconds for graphs from the size of Cora upwards, until ranks are faster than as many threads in step and epoch.

    Args:
        device_mesh: a mesh of all ranks.
        steps: sizes to measure at most.
        rounds: calls take turns this often.
    """
    ranks = dist.get_world_size()
    kinds = ("1 thread", "threads", "ranks")
    titles = ("1 thread", f"{ranks} threads", f"{ranks} ranks")
    head = ("graph", "nodes", "entries", *(f"{call}, {title}" for call in ("step", "epoch") for title in titles))
    rows = []
    for name in GRAPHS:
        for step in range(steps):
            nodes = SMALLEST * GROWTH**step
            seconds = measure_size(name, nodes, device_mesh, rounds)
            cells = (f"{seconds[f'{call}, {kind}'] * 1e3:.3g}" for call in ("step", "epoch") for kind in kinds)
            rows.append((name, f"{nodes:,}", f"{seconds['entries']:,.0f}", *cells))
            if all(seconds[f"{call}, ranks"] < seconds[f"{call}, {kind}"] for call in ("step", "epoch") for kind in kinds[:2]):
                break
    return f"Milliseconds of a step of SpMM and of an epoch of a GCN\n\n{table(head, rows)}"
