"""The main job: node classification on a real graph, with our product and torch.sparse's side by side.

A two-layer GCN (Kipf, Welling, "Semi-Supervised Classification with Graph Convolutional Networks",
ICLR 2017) is trained with torch.sparse; its inference then runs through ``numscorch.einsum`` and
through torch.sparse, interleaved.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

import numscorch as ns

from .errors import NumscorchError, SizeError
from .io import load_graph
from .sparse_tensor import SparseTensor

SPMM = "ij,jk->ik"
HIDDEN, DROPOUT, RATE, DECAY, EPOCHS = 16, 0.5, 0.01, 5e-4, 200  # as in the paper, section 5.2
NEIGHBOURS, TRAIN_PER_CLASS, VALIDATE_PER_CLASS = 10, 20, 30
SPECTRAL_WIDTH, SPECTRAL_STEPS = 64, 30
MATRIX_COLUMNS = 64
SECONDS, ROUNDS = 2.0, 200  # a comparison stops at whichever comes first

Product = Callable[[SparseTensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Task:
    """A graph with its normalised adjacency, node features (sparse or dense), labels and split."""

    name: str
    adjacency: SparseTensor
    features: SparseTensor | torch.Tensor
    labels: torch.Tensor
    train: torch.Tensor
    validation: torch.Tensor
    test: torch.Tensor
    note: str = ""


@dataclass(frozen=True)
class Weights:
    """The parameters of a two-layer GCN."""

    first: torch.Tensor
    first_bias: torch.Tensor
    second: torch.Tensor
    second_bias: torch.Tensor


def run(graph: Path | None = None, matrix: Path | None = None, threads: int | None = None) -> None:
    """Run the demo and print its report.

    Args:
        graph: an ``.npz`` file to take the graph from; the digits' nearest neighbours otherwise.
        matrix: a Matrix Market file: multiply it with a dense matrix, and train nothing.
        threads: torch's thread count.

    Raises:
        NumscorchError: a file doesn't hold what it should, or scikit-learn is not installed.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    with warnings.catch_warnings():  # torch's notices about its own CSR tensors, which serve as the peer here
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        if matrix is not None:
            multiply(matrix)
        else:
            classify(digits() if graph is None else from_file(graph))


# -- the graphs ---------------------------------------------------------------------------------------


def digits() -> Task:
    """scikit-learn's bundled digits: 1,797 images of 8 x 8, each joined to the ten most like it."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.neighbors import kneighbors_graph
    except ImportError as error:
        raise NumscorchError("the digits come with scikit-learn: pip install 'numscorch[examples]', or pass --graph or --matrix") from error
    data = load_digits()
    rows, columns = kneighbors_graph(data.data, NEIGHBOURS).nonzero()
    labels = torch.from_numpy(data.target.astype(np.int64))
    train, validation, test = split(labels)
    features = torch.from_numpy((data.data / 16.0).astype(np.float32))
    return Task("digits", normalised(np.stack([rows, columns]), len(labels)), features, labels, train, validation, test)


def from_file(path: Path) -> Task:
    """A graph from an ``.npz`` file, its features scaled to a sum of one per node."""
    graph = load_graph(path)
    count = graph.adj_t.shape[0]
    adjacency = normalised(graph.adj_t.indices().numpy(), count)
    features = spectral(adjacency) if graph.features is None else row_normalised(graph.features)
    note = "no features in the file: leading eigenvectors of the adjacency stand in" if graph.features is None else ""
    return Task(path.stem, adjacency, features, graph.labels, graph.train_idx, graph.val_idx, graph.test_idx, note)


def split(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training, validation and test nodes: a few of each class, a few more, the rest."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    members = [order[labels[order] == label] for label in labels.unique()]
    ends = TRAIN_PER_CLASS, TRAIN_PER_CLASS + VALIDATE_PER_CLASS
    train, validation, test = zip(*[(m[: ends[0]], m[ends[0] : ends[1]], m[ends[1] :]) for m in members], strict=True)
    return torch.cat(train), torch.cat(validation), torch.cat(test)


def normalised(edges: np.ndarray, count: int) -> SparseTensor:
    """D^-1/2 (A + I) D^-1/2 as float32 CSR, where A joins both ends of every edge."""
    loops = np.arange(count)
    rows, columns = np.concatenate([edges[0], edges[1], loops]), np.concatenate([edges[1], edges[0], loops])
    rows, columns = np.divmod(np.unique(rows.astype(np.int64) * count + columns), count)
    scale = 1.0 / np.sqrt(np.bincount(rows, minlength=count))
    values = torch.from_numpy((scale[rows] * scale[columns]).astype(np.float32))
    return from_rows(rows, columns, values, (count, count))


def row_normalised(features: SparseTensor) -> SparseTensor:
    """The same features as CSR, every row divided by its sum."""
    features = features.to(ns.CSR).to(torch.float32)
    rows = features.indices()[0]
    sums = torch.zeros(features.shape[0]).index_add_(0, rows, features.values.abs())
    return features.with_values(features.values / sums[rows].clamp_min(1e-12))


def spectral(adjacency: SparseTensor) -> torch.Tensor:
    """Where a node lies in its graph: about the leading eigenvectors, by subspace iteration."""
    product, count = with_torch(), adjacency.shape[0]
    basis = torch.randn(count, min(SPECTRAL_WIDTH, -(-count // 4)))  # all eigenvectors together would tell nothing
    for _ in range(SPECTRAL_STEPS):
        basis, _ = torch.linalg.qr(product(adjacency, basis))
    return basis * math.sqrt(count)


def from_rows(rows: np.ndarray, columns: np.ndarray, values: torch.Tensor, shape: tuple[int, int]) -> SparseTensor:
    """CSR from sorted coordinates, with int32 indices: torch's own product is fastest with those."""
    pos = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    return ns.from_csr(torch.from_numpy(pos.astype(np.int32)), torch.from_numpy(columns.astype(np.int32)), values, shape)


# -- the model ----------------------------------------------------------------------------------------


def train(task: Task) -> Weights:
    """Train the GCN, with a line of progress."""
    adjacency, features = task.adjacency, cast("torch.Tensor", task.features)
    weights = initial(task)
    parameters = [weights.first, weights.first_bias, weights.second, weights.second_bias]
    for parameter in parameters:
        parameter.requires_grad_()
    groups: list[dict[str, Any]] = [{"params": parameters[:2], "weight_decay": DECAY}, {"params": parameters[2:]}]
    optimizer = torch.optim.Adam(groups, lr=RATE)
    for epoch in range(1, EPOCHS + 1):
        optimizer.zero_grad()
        hidden = F.relu(adjacency @ (F.dropout(features, DROPOUT) @ weights.first) + weights.first_bias)
        scores = adjacency @ (F.dropout(hidden, DROPOUT) @ weights.second) + weights.second_bias
        loss = F.cross_entropy(scores[task.train], task.labels[task.train])
        loss.backward()
        optimizer.step()
        progress(task, epoch, loss.item(), weights)
    return Weights(*(parameter.detach() for parameter in parameters))


def initial(task: Task) -> Weights:
    """Glorot's uniform weights and zero biases."""
    classes = int(task.labels.max()) + 1
    first, second = torch.empty(task.features.shape[1], HIDDEN), torch.empty(HIDDEN, classes)
    for weight in (first, second):
        torch.nn.init.xavier_uniform_(weight)
    return Weights(first, torch.zeros(HIDDEN), second, torch.zeros(classes))


def infer(task: Task, weights: Weights, product: Product) -> torch.Tensor:
    """The scores of every node and class; every sparse product goes through ``product``."""
    inputs = product(task.features, weights.first) if isinstance(task.features, SparseTensor) else task.features @ weights.first
    hidden = F.relu(product(task.adjacency, inputs) + weights.first_bias)
    return product(task.adjacency, hidden @ weights.second) + weights.second_bias


def progress(task: Task, epoch: int, loss: float, weights: Weights) -> None:
    """Tell how training goes: in place on a terminal, else a line now and then."""
    if epoch % (10 if sys.stdout.isatty() else 50):
        return
    with torch.no_grad():
        right = accuracy(infer(task, weights, with_torch()), task, task.validation)
    line = f"  epoch {epoch}/{EPOCHS}   loss {loss:.3f}   validation {right:.1%}"
    print(line, end="\r" if sys.stdout.isatty() and epoch < EPOCHS else "\n", flush=True)


def accuracy(scores: torch.Tensor, task: Task, nodes: torch.Tensor) -> float:
    """The share of these nodes whose highest score is their label's."""
    return (scores[nodes].argmax(1) == task.labels[nodes]).double().mean().item()


# -- the comparison -----------------------------------------------------------------------------------


def with_numscorch() -> Product:
    """Our product."""
    return lambda matrix, dense: ns.einsum(SPMM, matrix, dense)


def with_torch() -> Product:
    """torch.sparse's product; each matrix is converted once, before the clock starts."""
    converted: dict[int, torch.Tensor] = {}

    def product(matrix: SparseTensor, dense: torch.Tensor) -> torch.Tensor:
        if id(matrix) not in converted:
            converted[id(matrix)] = matrix.to_torch()
        return converted[id(matrix)] @ dense

    return product


def classify(task: Task) -> None:
    """Train, infer both ways, and report."""
    describe(task)
    weights = train(task)
    with torch.no_grad():
        ours, theirs = with_numscorch(), with_torch()
        scores = infer(task, weights, ours)
        difference = (scores - infer(task, weights, theirs)).abs().max().item()
        times = interleaved(lambda: infer(task, weights, ours), lambda: infer(task, weights, theirs))
        hidden = torch.rand(task.adjacency.shape[1], HIDDEN)
        products = interleaved(lambda: ours(task.adjacency, hidden), lambda: theirs(task.adjacency, hidden))
    print(f"test accuracy         {accuracy(scores, task, task.test):.1%}")
    report_difference(difference)
    report_times("inference", *times)
    report_times("one product A @ H", *products)
    report_kernel(task.adjacency, hidden)


def describe(task: Task) -> None:
    """Print what the graph is."""
    nodes, width = task.features.shape
    print(f"{task.name}: {nodes:,} nodes, adjacency {task.adjacency}")
    print(f"  {width:,} features, {int(task.labels.max()) + 1} classes; ", end="")
    print(f"{len(task.train):,} nodes train, {len(task.validation):,} validate, {len(task.test):,} test")
    if task.note:
        print(f"  {task.note}")
    print(f"training a two-layer GCN, {torch.get_num_threads()} threads")


def multiply(path: Path) -> None:
    """Multiply a matrix from a file with a random dense one, both ways, and report."""
    loaded = ns.load(path)
    if not isinstance(loaded, SparseTensor) or loaded.ndim != 2:
        raise SizeError(f"{path} holds no sparse matrix: --matrix takes a Matrix Market file (.mtx, .mtx.gz)")
    matrix = loaded.to(ns.CSR).to(torch.float32)
    dense = torch.randn(matrix.shape[1], MATRIX_COLUMNS)
    print(f"{path.name}: {matrix}, times a dense {matrix.shape[1]:,} x {MATRIX_COLUMNS}, {torch.get_num_threads()} threads")
    ours, theirs = with_numscorch(), with_torch()
    expected = theirs(matrix, dense)
    report_difference((ours(matrix, dense) - expected).abs().max().item() if expected.numel() else 0.0, expected)
    report_times("product", *interleaved(lambda: ours(matrix, dense), lambda: theirs(matrix, dense)))
    report_kernel(matrix, dense)


def interleaved(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of each, called in turn so that whatever else the machine does hits both alike."""
    ours(), theirs()
    times: tuple[list[float], list[float]] = [], []
    stop = time.perf_counter() + SECONDS
    while len(times[0]) < ROUNDS and (len(times[0]) < 3 or time.perf_counter() < stop):
        for call, taken in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def report_difference(difference: float, expected: torch.Tensor | None = None) -> None:
    """Print how far the two results are apart, beside the largest value where that is unknown."""
    scale = f" (largest value {expected.abs().max().item():.3g})" if expected is not None and expected.numel() else ""
    print(f"largest difference    {difference:.2g}{scale}")


def report_times(what: str, ours: float, theirs: float) -> None:
    """Print both times and their ratio."""
    print(f"{what:<20}  numscorch {ours * 1e3:.3f} ms, torch.sparse {theirs * 1e3:.3f} ms: {theirs / ours:.2f} times as fast")


def report_kernel(matrix: SparseTensor, dense: torch.Tensor) -> None:
    """Print where the product's generated source lies."""
    print(f"generated kernel      {ns.explain(SPMM, matrix, dense).path}")
