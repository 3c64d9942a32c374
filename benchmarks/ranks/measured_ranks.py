"""Products and training on several ranks of one thread each, and predictions of the cost model.

Each call is timed on all ranks at once. The rates of the cost model are measured in the same run, on a graph of the same kind with
another number of nodes, on all ranks at once:

    step        products of the entries of a rank, an exchange of its halo, and copies of these rows
    features    products with a part of the columns
    epoch       a step of training a GCN, by its seconds per node on one process; exchanges, and their copies; and the first layer's
                products for the halo, because each rank multiplies the inputs in its halo by the weights, too
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import cross_entropy

import numscorch as ns
from numscorch.nn import GCNConv
from numscorch.sharding import HaloExchange, ShardedSparseTensor, shard
from numscorch.sharding.exchange import Transfer
from numscorch.sharding.ranks import agree

from ..report import table
from .large_graphs import DEGREE, GRAPHS
from .step_costs import BYTES, COLUMNS, Network, Rates, Work, copying, seconds_of

CLASSES = 16
ROUNDS = 7
PERMUTE = {"mesh": None, "power law": "nnz"}
CALIBRATED = 0.75  # size of the graph that gives the rates, relative to the graph whose steps are predicted
BULK = 0.1  # rows of the exchange that measures the bandwidth, over nodes
# columns of the exchanges of an epoch: the input, and the second layer's products and their gradient
EXCHANGED = (COLUMNS, CLASSES, CLASSES)

Call = Callable[[], object]


def slowest(function: Call) -> float:
    """Seconds of a call that all ranks start together, on the slowest rank; the call before it has left memory that it can reuse."""
    function()
    dist.barrier()
    seconds = torch.tensor([seconds_of(function)], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


@contextmanager
def every_core() -> Iterator[None]:
    """This thread, and threads that it starts, may use all cores."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def alone(threads: int, function: Call) -> float:
    """Seconds of a call on the first rank, while the others wait."""
    dist.barrier()
    seconds = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == 0:
        with every_core():
            torch.set_num_threads(threads)
            function()
            seconds[0] = seconds_of(function)
            torch.set_num_threads(1)
    dist.broadcast(seconds, 0)
    return float(seconds)


def medians(calls: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median seconds of each call; the calls take turns, after one that is not timed."""
    for run in calls.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, run in calls.items():
            seconds[name].append(run())
    return {name: median(values) for name, values in seconds.items()}


def exchange_alone(send: Sequence[int], receive: Sequence[int], columns: int) -> Call:
    """An exchange of rows without selecting them."""
    rows, received = torch.rand(sum(send), columns), torch.empty(sum(receive), columns)
    return lambda: dist.all_to_all_single(received, rows, list(receive), list(send))


def halo_exchange_alone(A: ShardedSparseTensor, columns: int) -> Call:
    """The exchange of the halo without selecting rows."""
    return exchange_alone(A.exchange.send_counts, A.exchange.receive_counts, columns)


def products_alone(A: ShardedSparseTensor, x: torch.Tensor) -> Call:
    """The products with owned columns and with the halo, without an exchange."""
    owned, halo = A.parts()
    received = torch.rand(halo.shape[1], x.shape[1])
    rows = A.layout.halo.rows

    def run() -> None:
        result = owned @ x
        result.index_add_(0, rows, halo @ received)

    return run


@cache
def placeholder_rows(*shape: int) -> torch.Tensor:
    """Rows of any values; zeros would share one page of memory, and be read faster than rows that arrive."""
    return torch.rand(shape)


@contextmanager
def silent() -> Iterator[None]:
    """Exchanges send nothing, and give rows of any values."""
    transfer = HaloExchange._transfer

    def nothing(
        self: HaloExchange, verb: str, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int], purpose: str = ""
    ) -> Transfer:
        return Transfer(self, placeholder_rows(sum(receive_counts), *rows.shape[1:]))

    HaloExchange._transfer = nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        HaloExchange._transfer = transfer  # type: ignore[method-assign]


def silently(function: Call) -> Call:
    """A call without sending."""

    def run() -> None:
        with silent():
            function()

    return run


def halo_products(x: torch.Tensor) -> Call:
    """What the first layer computes for the inputs in the halo: the product with the weights, and the gradient of the weights."""
    weights, gradient = torch.rand(COLUMNS, COLUMNS), torch.rand(len(x), COLUMNS)

    def run() -> None:
        torch.mm(x, weights)
        torch.mm(gradient.t(), x)

    return run


def epoch_of(A: ns.SparseTensor | ShardedSparseTensor, x: torch.Tensor) -> Call:
    """A step of training a GCN of two layers. If the graph is sharded, ``x`` has the features of this rank's nodes."""
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (len(x),))
    first, second = GCNConv(COLUMNS, COLUMNS), GCNConv(COLUMNS, CLASSES)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)

    def epoch() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(second(first(x, A).relu(), A), labels, reduction="sum") / A.shape[0]
        loss.backward()
        if isinstance(A, ShardedSparseTensor):
            for parameter in parameters:
                dist.all_reduce(parameter.grad)
        optimizer.step()

    return epoch


def each(calls: Sequence[Call]) -> Call:
    """Calls one after another."""

    def run() -> None:
        for call in calls:
            call()

    return run


def sharded_graph(name: str, nodes: int, device_mesh: DeviceMesh, degree: int = DEGREE) -> tuple[ns.SparseTensor, ShardedSparseTensor]:
    """A graph on all ranks, and its rows on each rank."""
    torch.manual_seed(0)
    whole = GRAPHS[name](nodes, degree)
    return whole, shard(whole, device_mesh, permute=PERMUTE[name])


def bytes_of(A: ShardedSparseTensor, step: Call) -> dict[str, float]:
    """The bytes that all ranks send in a step, and the bytes of all halo rows."""
    before = A.exchange.bytes_sent
    step()
    counts = torch.tensor([A.exchange.bytes_sent - before, len(A.exchange.halo) * COLUMNS * BYTES])
    dist.all_reduce(counts)
    return {"bytes sent": float(counts[0]), "bytes of the halo": float(counts[1])}


def measure(name: str, nodes: int, device_mesh: DeviceMesh, rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds of each measurement, the bytes of a step, and seconds that the cost model predicts.

    Args:
        name: of the graph.
        nodes: of the graph.
        device_mesh: a mesh of all ranks.
        rounds: the calls take turns this often.
    """
    ranks = dist.get_world_size()
    whole, A = sharded_graph(name, nodes, device_mesh)
    x = torch.rand(nodes, COLUMNS)
    own = A.rows_of(x).contiguous()
    part = x.chunk(ranks, 1)[dist.get_rank()].contiguous()
    features = DTensor.from_local(part, device_mesh, [Shard(1)], run_check=False)
    torch.testing.assert_close(A @ own, A.rows_of(whole @ x))
    sent = bytes_of(A, lambda: A @ own)
    epoch = epoch_of(A, own)
    other = GRAPHS[name](int(nodes * CALIBRATED), DEGREE)
    wide = torch.rand(other.shape[1], COLUMNS)
    narrow = wide[:, : part.shape[1]].contiguous()
    bulk = [int(nodes * BULK)] * ranks
    calls: dict[str, Callable[[], float]] = {
        "1 thread": lambda: alone(1, lambda: whole @ x),
        "threads": lambda: alone(ranks, lambda: whole @ x),
        "step": lambda: slowest(lambda: A @ own),
        "features": lambda: slowest(lambda: whole @ features),
        "epoch": lambda: slowest(epoch),
    }
    parts = {
        "products": products_alone(A, own),
        "exchange": halo_exchange_alone(A, COLUMNS),
        "agreement": lambda: agree(A.layout.ranks, "measures"),
        "silent epoch": silently(epoch),
        "exchanges": each([halo_exchange_alone(A, columns) for columns in EXCHANGED]),
    }
    rates = {
        "product": lambda: other @ wide,
        "narrow product": lambda: other @ narrow,
        "other epoch": epoch_of(other, wide),
        "halo products": halo_products(wide),
        "copy": copying(other.shape[0]),
        "message": exchange_alone([1] * ranks, [1] * ranks, 1),
        "bulk": exchange_alone(bulk, bulk, COLUMNS),
    }
    calls |= {key: lambda call=call: slowest(call) for key, call in (parts | rates).items()}
    seconds = medians(calls, rounds)
    return seconds | sent | predicted(A, whole, seconds, other, part.shape[1])


def predicted(
    A: ShardedSparseTensor, whole: ns.SparseTensor, seconds: dict[str, float], other: ns.SparseTensor, width: int
) -> dict[str, float]:
    """Rates, and the seconds that the cost model predicts for the slowest rank.

    Args:
        A: the sharded graph.
        whole: the whole graph.
        seconds: measured medians.
        other: the graph on which rates were measured.
        width: columns of a rank, if the dense operand is sharded by columns.
    """
    ranks = dist.get_world_size()
    largest = torch.tensor([A.local.nnz, len(A.exchange.halo), A.exchange.owned])
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    entries, halo, owned = largest.tolist()
    copy = seconds["copy"] / (other.shape[0] // 2 * COLUMNS * BYTES)
    bulk = int(A.shape[0] * BULK) * (ranks - 1) * COLUMNS * BYTES
    network = Network(seconds["message"], bulk / max(seconds["bulk"] - seconds["message"], 1e-9))
    wide, narrow = (Rates(seconds[key] / other.nnz / columns, copy) for key, columns in (("product", COLUMNS), ("narrow product", width)))
    exchanges = sum(Work(0, columns, halo, 2).exchange_seconds(wide, network) for columns in EXCHANGED)
    return {
        f"{RATE}ps per entry and column": wide.product * 1e12,
        f"{RATE}ps per entry and column, {width} columns": narrow.product * 1e12,
        f"{RATE}GB/s of copied rows": 1 / copy / 1e9,
        f"{RATE}ns of an epoch per node": seconds["other epoch"] / other.shape[0] * 1e9,
        f"{RATE}ns of the halo's products per node": seconds["halo products"] / other.shape[0] * 1e9,
        f"{RATE}alpha in microseconds": network.alpha * 1e6,
        f"{RATE}beta in GB/s": network.bandwidth / 1e9,
        "predicted step": Work(entries, COLUMNS, halo, 2).seconds(wide, network),
        "predicted features": Work(whole.nnz, width).seconds(narrow, network),
        "predicted epoch": (owned * seconds["other epoch"] + halo * seconds["halo products"]) / other.shape[0] + exchanges,
    }


def ratio(seconds: dict[str, float], call: str, *parts: str) -> str:
    """The time of a call divided by the sum of the times of its parts."""
    return f"{seconds[call] / sum(seconds[part] for part in parts):.2f}"


def gains(seconds: dict[str, float]) -> list[str]:
    """The cells of a graph in the table of gains, which :data:`GAINS` names."""
    return [
        ratio(seconds, "1 thread", "threads"),
        ratio(seconds, "threads", "step"),
        ratio(seconds, "threads", "features"),
        ratio(seconds, "step", "products", "exchange"),
        ratio(seconds, "epoch", "silent epoch", "exchanges"),
        f"{seconds['bytes sent'] / max(seconds['bytes of the halo'], 1):g}",
    ]


def transposed(titles: Sequence[str], columns: dict[str, list[str]]) -> str:
    """A table with a column for each graph."""
    return table(("", *columns), [(title, *(cells[at] for cells in columns.values())) for at, title in enumerate(titles)])


def measured_tables(measured: dict[str, dict[str, float]]) -> list[str]:
    """Gains and sums of parts, seconds, rates, and predictions beside measurements, as Markdown.

    Args:
        measured: what :func:`measure` returns, by name of the graph.
    """
    rates = [name for name in next(iter(measured.values())) if name.startswith(RATE)]
    predictions: list[tuple[str, ...]] = [
        (graph, name, f"{s[name] * 1e3:.3g}", f"{s[f'predicted {name}'] * 1e3:.3g}", ratio(s, f"predicted {name}", name))
        for graph, s in measured.items()
        for name in ("step", "features", "epoch")
    ]
    return [
        f"Gains of ranks\n\n{transposed(GAINS, {graph: gains(s) for graph, s in measured.items()})}",
        f"Milliseconds\n\n{transposed(TIMED, {graph: [f'{s[name] * 1e3:.3g}' for name in TIMED] for graph, s in measured.items()})}",
        "Rates\n\n"
        + transposed(
            [name.removeprefix(RATE) for name in rates], {graph: [f"{s[name]:.3g}" for name in rates] for graph, s in measured.items()}
        ),
        "Predictions of the cost model\n\n"
        + table(("graph", "call", "measured, ms", "predicted, ms", "predicted / measured"), predictions),
    ]


RATE = "rate: "
TIMED = ("1 thread", "threads", "step", "products", "exchange", "agreement", "features", "epoch", "silent epoch", "exchanges")
GAINS = (
    "speedup of threads over 1 thread",
    "speedup of ranks over as many threads, step",
    "speedup of ranks over as many threads, sharded features",
    "step / (products + exchange)",
    "epoch / (silent epoch + exchanges)",
    "bytes sent / (halo rows x k x 4)",
)
