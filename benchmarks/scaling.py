"""Products on several processes against threads of one process: ``python -m benchmarks.scaling [--nodes N] [--ranks P]``.

Each rank has one thread. The script prints, for a mesh and for a power-law graph, with k = 64 columns:

    threads     the time of one process with one thread, and with as many threads as ranks
    ranks       the time of a step on all ranks, the slowest rank's products alone, and an exchange of the same bytes alone
    features    the time of a step with the dense operand sharded by columns
    epoch       the time of a step of training a GCN of two layers, the same without sending, and its exchanges alone
    bytes       what all ranks sent in a step, and halo rows x k x 4
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import cross_entropy

import numscorch as ns
from numscorch.nn import GCNConv
from numscorch.sharding import HaloExchange, ShardedSparseTensor, shard
from numscorch.sharding.exchange import Transfer

COLUMNS, CLASSES = 64, 16
ROUNDS = 7
DEGREE = 20
OFFSETS = (1, 2, 3, 100, 101, 102, 200, 9999, 10_000, 10_001)  # a mesh of 100 x 100 x 100 nodes: neighbours in lines and planes


def mesh_graph(nodes: int) -> ns.SparseTensor:
    """A mesh with 20 neighbours per node."""
    rows = torch.arange(nodes).repeat_interleave(DEGREE)
    offsets = torch.tensor([sign * offset for offset in OFFSETS for sign in (-1, 1)])
    columns = (rows.view(nodes, DEGREE) + offsets).clamp(0, nodes - 1).flatten()
    return ns.from_coo([rows, columns], torch.rand(len(rows)), (nodes, nodes), format=ns.CSR)


def power_law_graph(nodes: int) -> ns.SparseTensor:
    """20 random edges per node; their ends have a power-law distribution and no order."""
    rows = torch.randint(nodes, (nodes * DEGREE,))
    columns = torch.randperm(nodes)[(nodes * torch.rand(nodes * DEGREE).pow(3)).long().clamp(max=nodes - 1)]
    return ns.from_coo([rows, columns], torch.rand(len(rows)), (nodes, nodes), format=ns.CSR)


GRAPHS: dict[str, Callable[[int], ns.SparseTensor]] = {"mesh": mesh_graph, "power law": power_law_graph}


def slowest(function: Callable[[], object]) -> float:
    """Seconds of a call that all ranks start together, on the slowest rank."""
    dist.barrier()
    started = time.perf_counter()
    function()
    seconds = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def alone(rank: int, threads: int, function: Callable[[], object]) -> float:
    """Seconds of a call on the first rank, while the others wait."""
    dist.barrier()
    seconds = torch.zeros(1, dtype=torch.float64)
    if rank == 0:
        torch.set_num_threads(threads)
        started = time.perf_counter()
        function()
        seconds[0] = time.perf_counter() - started
        torch.set_num_threads(1)
    dist.broadcast(seconds, 0)
    return float(seconds)


def exchange_alone(A: ShardedSparseTensor, x: torch.Tensor) -> Callable[[], object]:
    """An exchange of the same bytes, without selecting rows."""
    exchange = A.exchange
    rows = x.new_empty(sum(exchange.send_counts), x.shape[1])
    received = x.new_empty(sum(exchange.receive_counts), x.shape[1])
    return lambda: dist.all_to_all_single(received, rows, exchange.receive_counts, exchange.send_counts)


def products_alone(A: ShardedSparseTensor, x: torch.Tensor) -> Callable[[], object]:
    """The products with owned columns and with the halo, without an exchange."""
    owned, halo = A.parts()
    received = torch.rand(halo.shape[1], x.shape[1])
    rows = A.layout.halo.rows

    def run() -> None:
        result = owned @ x
        result.index_add_(0, rows, halo @ received)

    return run


@cache
def zeros(*shape: int) -> torch.Tensor:
    """Rows of zeros, which are never written to."""
    return torch.zeros(shape)


@contextmanager
def silent() -> Iterator[None]:
    """Exchanges send nothing, and give rows of any values."""
    transfer = HaloExchange._transfer

    def nothing(self: HaloExchange, verb: str, rows: torch.Tensor, send_counts: list[int], receive_counts: list[int]) -> Transfer:
        return Transfer(zeros(sum(receive_counts), *rows.shape[1:]), None, self, rows)

    HaloExchange._transfer = nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        HaloExchange._transfer = transfer  # type: ignore[method-assign]


def epoch_of(A: ShardedSparseTensor, x: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    """A step of training a GCN of two layers on this rank's nodes."""
    torch.manual_seed(0)
    first, second = GCNConv(COLUMNS, COLUMNS), GCNConv(COLUMNS, CLASSES)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)

    def epoch() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(second(first(x, A).relu(), A), labels, reduction="sum") / A.shape[0]
        loss.backward()
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        optimizer.step()

    return epoch


def silently(function: Callable[[], object]) -> None:
    """A call without sending."""
    with silent():
        function()


def exchanges_alone(A: ShardedSparseTensor) -> Callable[[], None]:
    """The exchanges of an epoch: the inputs of both layers, and the gradient of the second one's input."""
    wide, narrow = (torch.rand(A.exchange.owned, width) for width in (COLUMNS, CLASSES))
    calls = [exchange_alone(A, wide), exchange_alone(A, narrow), exchange_alone(A, narrow)]

    def run() -> None:
        for call in calls:
            call()

    return run


def measure(name: str, nodes: int, device_mesh: DeviceMesh) -> dict[str, float]:
    """Minimal seconds of each measurement, in turns, and the bytes of a step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole = GRAPHS[name](nodes)
    x = torch.rand(nodes, COLUMNS)
    A = shard(whole, device_mesh, permute="nnz" if name == "power law" else None)
    own = A.rows_of(x).contiguous()
    features = DTensor.from_local(x.chunk(ranks, 1)[rank].contiguous(), device_mesh, [Shard(1)], run_check=False)
    torch.testing.assert_close(A @ own, A.rows_of(whole @ x))
    before = A.exchange.bytes_sent
    A @ own
    sent = torch.tensor([A.exchange.bytes_sent - before, len(A.exchange.halo) * COLUMNS * 4])
    dist.all_reduce(sent)
    epoch, exchanges = epoch_of(A, own, torch.randint(CLASSES, (len(own),))), exchanges_alone(A)
    epoch()
    calls: dict[str, Callable[[], float]] = {
        "1 thread": lambda: alone(rank, 1, lambda: whole @ x),
        "threads": lambda: alone(rank, ranks, lambda: whole @ x),
        "step": lambda: slowest(lambda: A @ own),
        "products": lambda: slowest(products_alone(A, own)),
        "exchange": lambda: slowest(exchange_alone(A, own)),
        "features": lambda: slowest(lambda: whole @ features),
        "epoch": lambda: slowest(epoch),
        "epoch without sending": lambda: slowest(lambda: silently(epoch)),
        "exchanges": lambda: slowest(exchanges),
    }
    best = {call: float("inf") for call in calls}
    for _ in range(ROUNDS):
        for call, run in calls.items():
            best[call] = min(best[call], run())
    return best | {"bytes sent": float(sent[0]), "bytes of the halo": float(sent[1])}


def report(name: str, seconds: dict[str, float]) -> list[str]:
    """Lines of a graph's measurements."""
    threads_gain = seconds["1 thread"] / seconds["threads"]
    ranks_gain, features_gain = seconds["1 thread"] / seconds["step"], seconds["1 thread"] / seconds["features"]
    return [
        f"{name}: one thread {seconds['1 thread']:.3f} s, threads {seconds['threads']:.3f} s ({threads_gain:.2f} times as fast)",
        f"  ranks {seconds['step']:.3f} s ({ranks_gain:.2f} times as fast, {ranks_gain / threads_gain:.2f} of the threads' gain)",
        f"  products {seconds['products']:.3f} s, exchange {seconds['exchange']:.3f} s, step / sum "
        f"{seconds['step'] / (seconds['products'] + seconds['exchange']):.2f}",
        f"  features {seconds['features']:.3f} s ({features_gain:.2f} times as fast, {features_gain / threads_gain:.2f} of threads' gain)",
        f"  epoch {seconds['epoch']:.3f} s, without sending {seconds['epoch without sending']:.3f} s, "
        f"exchanges {seconds['exchanges']:.3f} s, "
        f"epoch / sum {seconds['epoch'] / (seconds['epoch without sending'] + seconds['exchanges']):.2f}",
        f"  bytes sent {seconds['bytes sent']:.0f}, halo rows x k x 4 {seconds['bytes of the halo']:.0f}",
    ]


def run_rank(rank: int, ranks: int, port: int, nodes: int) -> None:
    """Measure on one rank; the first one prints."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    device_mesh = init_device_mesh("cpu", (ranks,))
    for name in GRAPHS:
        seconds = measure(name, nodes, device_mesh)
        if rank == 0:
            print("\n".join(report(name, seconds)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of each graph (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="processes of one thread each (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(run_rank, (chosen.ranks, port, chosen.nodes), nprocs=chosen.ranks)  # type: ignore[attr-defined, no-untyped-call]


if __name__ == "__main__":
    main()
