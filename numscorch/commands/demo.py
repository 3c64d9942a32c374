"""The demo: train a graph network with numscorch, torch.sparse and PyTorch Geometric, or time one matrix product.

The graph is scikit-learn's digits, or a file. The networks have the same initial weights and the same layouts; their epochs alternate.
They have two graph convolutions, as in Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import numscorch as ns

from ..errors import NumscorchError, SizeError
from ..files.load import Graph, load_graph
from ..measuring.turns import in_turns
from ..nn import GCNConv
from ..nn.graphs import gcn_norm
from ..tensors.sparse_tensor import SparseTensor
from .bench import positive

NEIGHBOURS, TRAIN_PER_CLASS, VALIDATE_PER_CLASS = 10, 20, 30  # numbers of nodes
HIDDEN, DROPOUT, RATE, DECAY, EPOCHS = 16, 0.5, 0.01, 5e-4, 200  # as in the paper, section 5.2
SECONDS, FEWEST = 20.0, 3  # training time after the first epoch, and the least number of epochs
MOST_APART = 1e-4  # largest relative difference of the losses of the first epoch
OURS, TORCH = "numscorch.nn.GCNConv", "torch.sparse"
SPMM = "ij,jk->ik"
COLUMNS = 64  # of the dense matrix by which a file is multiplied
PRODUCT_SECONDS = 4.0  # total time of the measurement of this product
NEXT = (
    ("python -m numscorch demo FILE.npz", "the demo on your own graph; docs/guide/graphs.md describes the file"),
    ('python -m numscorch explain "ij,jk->ik" CSR dense', "the compiler's stages for such a product"),
    ("python -m numscorch demo --matrix FILE.mtx", "one product of your own matrix"),
)


def add_demo(commands: Any) -> None:
    command = commands.add_parser("demo", help="train a GCN on a real graph, and compare with torch.sparse and PyTorch Geometric")
    data = command.add_mutually_exclusive_group()
    data.add_argument("file", nargs="?", type=Path, metavar="FILE", help="your own graph (.npz), or a Matrix Market file")
    data.add_argument("--graph", type=Path, metavar="FILE.npz", help="your own graph, instead of the digits' nearest neighbours")
    data.add_argument("--matrix", type=Path, metavar="FILE.mtx", help="multiply this Matrix Market file with a dense matrix instead")
    command.add_argument("--threads", type=positive, metavar="N", help="the number of threads of torch and of kernels")
    command.add_argument(
        "--out", type=Path, default=Path("numscorch-demo"), metavar="FOLDER", help="the folder of the picture (default: %(default)s)"
    )
    command.set_defaults(command=_demo)


def _demo(arguments: argparse.Namespace) -> None:
    """Train on a graph (by default that of the digits), or time the product of a matrix, and print the report.

    Raises:
        NumscorchError: a file is malformed, scikit-learn is not installed, or two libraries disagree.
    """
    graph, matrix, file = arguments.graph, arguments.matrix, arguments.file
    if file is not None:
        graph, matrix = (file, None) if file.suffix == ".npz" else (None, file)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning about CSR tensors, PyTorch Geometric's about extensions
        if matrix is not None:
            multiply(matrix)
        else:
            task = digits() if graph is None else from_file(graph)
            report_graph(task)
            report_race(task, race(task), arguments.out)


@dataclass(frozen=True, eq=False)
class Task(Graph):
    """A node classification task: a graph with features, CSR or dense, and where it comes from."""

    features: Any
    name: str
    origin: str

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


def digits() -> Task:
    """scikit-learn's digits: 1,797 images of 8 x 8 pixels, each connected to its ten nearest neighbours.

    Raises:
        NumscorchError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.neighbors import kneighbors_graph
    except ImportError as error:
        raise NumscorchError("the digits need scikit-learn: pip install 'numscorch[examples]', or pass a graph or --matrix") from error
    data = load_digits()
    nearest = torch.tensor(kneighbors_graph(data.data, NEIGHBOURS).nonzero())
    labels = torch.from_numpy(data.target).long()
    adj_t = ns.adj_t(torch.cat([nearest, nearest.flip(0)], 1).unique(dim=1), size=len(labels))
    origin = "no file was given: handwritten digits, each connected to its ten nearest neighbours"
    return Task(adj_t, labels, *split(labels), torch.from_numpy(data.data / 16).float(), "digits", origin)


def split(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random split into training nodes (20 per class), validation nodes (30 per class) and test nodes (all others)."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    ends = TRAIN_PER_CLASS, TRAIN_PER_CLASS + VALIDATE_PER_CLASS
    train, validation, test = zip(*(order[labels[order] == label].tensor_split(ends) for label in labels.unique()), strict=True)
    return torch.cat(train), torch.cat(validation), torch.cat(test)


def from_file(path: Path) -> Task:
    """The task of a graph file. Each node's features are scaled to sum 1; without features, each node gets a one-hot feature."""
    graph = load_graph(path)
    if graph.features is None:
        features, origin = ns.eye(len(graph.labels), format=ns.CSR), f"{path}; it has no features, so nodes have one-hot features"
    else:
        sums = ns.sum(abs(graph.features), 1, keepdim=True).clamp(min=1e-12)
        features, origin = graph.features / sums, str(path)
    return Task(**(vars(graph) | {"features": features, "name": path.stem, "origin": origin}))


class TorchConv(torch.nn.Module):
    """A graph convolution in plain torch: a product with the weights, and one with the adjacency matrix."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.lin = torch.nn.Linear(inputs, outputs, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, normalised: Tensor) -> Tensor:
        return normalised @ self.lin(x) + self.bias


class Network(torch.nn.Module):
    """Two graph convolutions of one library, with dropout before each."""

    def __init__(self, convolution: Any, task: Task):
        super().__init__()
        self.first = convolution(task.features.shape[1], HIDDEN)
        self.second = convolution(HIDDEN, task.classes)

    def forward(self, x: Any, graph: Any) -> Tensor:
        hidden = self.first(dropped(x) if self.training else x, graph).relu()
        return self.second(functional.dropout(hidden, DROPOUT, self.training), graph)


def dropped(x: Any) -> Any:
    """Features with half of the stored values dropped, in the same layout."""
    if isinstance(x, SparseTensor):
        return x.with_values(functional.dropout(x.values, DROPOUT))
    if x.layout is torch.sparse_csr:
        return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), functional.dropout(x.values(), DROPOUT), x.shape)
    return functional.dropout(x, DROPOUT)


@dataclass(eq=False)
class Runner:
    """A network of one library, its inputs, and the seconds, losses and accuracies of its epochs."""

    name: str
    network: Network
    features: Any
    graph: Any
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    validated: list[float] = field(default_factory=list)
    tested: float = 0.0

    def __post_init__(self) -> None:
        first, second = self.network.first.parameters(), self.network.second.parameters()
        self.optimizer = torch.optim.Adam([{"params": first, "weight_decay": DECAY}, {"params": second}], lr=RATE)

    def epoch(self, task: Task) -> None:
        """Run a training step and a validation."""
        torch.manual_seed(len(self.seconds))  # all runners drop the same features
        start = time.perf_counter()
        self.network.train()
        self.optimizer.zero_grad()
        scores = self.network(self.features, self.graph)
        loss = functional.cross_entropy(scores[task.train_idx], task.labels[task.train_idx])
        loss.backward()
        self.optimizer.step()
        self.network.eval()
        with torch.no_grad():
            is_correct = self.network(self.features, self.graph).argmax(1) == task.labels
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())
        self.validated.append(is_correct[task.val_idx].double().mean().item())
        self.tested = is_correct[task.test_idx].double().mean().item()

    @property
    def rate(self) -> float:
        """Epochs per second, by the median time without the first epoch."""
        return 1 / statistics.median(self.seconds[1:])


def runners(task: Task) -> list[Runner]:
    """A runner per installed library, all with the same initial weights."""
    stored = task.features.to_torch() if isinstance(task.features, SparseTensor) else task.features
    normalised = gcn_norm(task.adj_t).to_torch()
    contestants = [
        Runner(OURS, Network(GCNConv, task), task.features, task.adj_t),
        Runner(TORCH, Network(TorchConv, task), stored, normalised),
    ]
    try:
        import torch_geometric
        from torch_geometric.nn import GCNConv as PyGConv
    except ImportError:
        pass  # the report mentions it
    else:
        network = Network(lambda inputs, outputs: PyGConv(inputs, outputs, normalize=False), task)
        contestants.append(Runner(f"torch_geometric {torch_geometric.__version__}", network, stored, normalised))
    for other in contestants[1:]:
        other.network.load_state_dict(contestants[0].network.state_dict())
    return contestants


def race(task: Task) -> list[Runner]:
    """Train all networks, one epoch each in turn.

    Raises:
        NumscorchError: the losses of the first epoch differ.
    """
    contestants = runners(task)
    ours, stop = contestants[0], math.inf
    for number in range(EPOCHS):
        show_progress(f"epoch {number + 1}/{EPOCHS}{'' if number else ', which compiles kernels'}")
        at = number % len(contestants)
        for runner in contestants[at:] + contestants[:at]:
            runner.epoch(task)
            if number == 0 and not difference(ours.losses, runner.losses) <= MOST_APART * abs(runner.losses[0]):
                raise NumscorchError(f"the first loss is {ours.losses[0]} by numscorch, but {runner.losses[0]} by {runner.name}")
        stop = stop if number else time.perf_counter() + SECONDS
        if number + 1 >= FEWEST and time.perf_counter() > stop:
            break
    show_progress("")
    return contestants


def difference(ours: list[float], theirs: list[float]) -> float:
    """The largest difference between two lists of losses."""
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def show_progress(text: str) -> None:
    """Print a progress line on a terminal; the next line overwrites it."""
    if sys.stdout.isatty():
        print(f"{text:<60}", end="\r", flush=True)


def report_graph(task: Task) -> None:
    nodes, width = task.features.shape
    layout = f"{task.features.density:.1%} stored, CSR" if isinstance(task.features, SparseTensor) else "dense"
    print(
        f"{task.name} ({task.origin})\n"
        f"  {nodes:,} nodes, {task.adj_t.nnz:,} edges, {width:,} features ({layout}), {task.classes} classes\n"
        f"  A two-layer GCN learns from {len(task.train_idx):,} nodes and is tested on {len(task.test_idx):,}.\n"
        f"  Same initial weights, same layouts, alternating epochs; threads: {torch.get_num_threads()}.\n"
    )


def report_race(task: Task, runners: list[Runner], folder: Path) -> None:
    """Print speed, accuracy and agreement of all runners, and suggested next commands."""
    ours, *others = runners
    print(f"{f'{len(ours.losses)} epochs':<24}{'epochs/s':>12}{'first epoch':>14}{'test accuracy':>16}")
    for runner in runners:
        ratio = "" if runner is ours else f"   numscorch is {ours.rate / runner.rate:.2f} times as fast"
        print(f"{runner.name:<24}{runner.rate:>12.1f}{runner.seconds[0]:>12.2f} s{runner.tested:>16.1%}{ratio}")
    if len(runners) < 3:
        print("PyTorch Geometric is not installed: pip install torch_geometric adds it to the comparison")
    largest = max(difference(ours.losses, other.losses) for other in others)
    hidden = torch.empty(len(task.labels), HIDDEN)
    print(
        f"\nlargest difference   {largest:.1e} between the losses of an epoch (from {ours.losses[0]:.3f} to {ours.losses[-1]:.3f})\n"
        f"first epoch          {ours.seconds[0]:.2f} s: kernels are compiled, or read from the disk if an earlier run compiled them\n"
        f"kernel of A @ H      {ns.explain(SPMM, gcn_norm(task.adj_t), hidden).path}\n"
        f"picture              {draw(task, runners, folder) or 'none: matplotlib is not installed (pip install matplotlib)'}\n\n"
        "Try next:"
    )
    for command, what in NEXT:
        print(f"  {command:<50} {what}")


def draw(task: Task, runners: list[Runner], folder: Path) -> Path | None:
    """Draw the training curves and the adjacency matrix, with nodes ordered by class; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    accuracy = left.twinx()
    for runner, mark in zip(runners, ("-", "o", "x"), strict=False):
        every = max(len(runner.losses) // 20, 1) if mark != "-" else 1
        left.plot(runner.losses, f"C0{mark}", markevery=every, fillstyle="none", label=runner.name)
        accuracy.plot(runner.validated, f"C1{mark}", markevery=every, fillstyle="none")
    left.set(xlabel="epoch", title=f"{task.name}: training loss and validation accuracy")
    left.set_ylabel("loss", color="C0")
    accuracy.set_ylabel("accuracy", color="C1")
    left.legend(loc="center right")
    by_class = task.labels.argsort(stable=True).argsort()
    ns.adj_t(by_class[task.adj_t.to_edge_index()[0]], size=len(task.labels)).spy(right)
    right.set(title="adjacency, nodes in the order of their classes", xlabel="source", ylabel="target")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.name}.png"
    figure.savefig(path)
    return path


def multiply(path: Path) -> None:
    """Multiply a matrix from a file with a random dense matrix, with numscorch and torch.sparse, and print the times.

    Raises:
        SizeError: the file holds no sparse matrix.
    """
    loaded = ns.load(path)
    if not isinstance(loaded, SparseTensor) or loaded.ndim != 2:
        raise SizeError(f"{path} holds no sparse matrix: --matrix takes a Matrix Market file (.mtx, .mtx.gz)")
    matrix = loaded.to(ns.CSR).to(torch.float32)
    dense, converted = torch.randn(matrix.shape[1], COLUMNS), matrix.to_torch()
    print(f"{path.name}: {matrix}, times a dense {matrix.shape[1]:,} x {COLUMNS}, {torch.get_num_threads()} threads")
    expected = converted @ dense
    difference = (ns.einsum(SPMM, matrix, dense) - expected).abs().max().item() if expected.numel() else 0.0
    largest = expected.abs().max().item() if expected.numel() else 0.0
    turns = in_turns(
        partial(ns.einsum, SPMM, matrix, dense), {"torch.sparse": partial(torch.matmul, converted, dense)}, seconds=PRODUCT_SECONDS
    )
    ours, other = statistics.median(turns.ours) * 1e3, statistics.median(turns.peers[TORCH]) * 1e3
    print(
        f"largest difference    {difference:.2g} (largest value {largest:.3g})\n"
        f"product               numscorch {ours:.3f} ms, torch.sparse {other:.3f} ms: {turns.ratio:.2f} times as fast\n"
        f"generated kernel      {ns.explain(SPMM, matrix, dense).path}"
    )
