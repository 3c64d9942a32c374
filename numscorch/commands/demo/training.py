"""Training of the same network with several libraries: same initial weights, same layouts, alternating epochs.

Two graph convolutions, as in Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import NumscorchError
from ...nn import GCNConv
from ...nn.graphs import gcn_norm
from ...tensors.sparse_tensor import SparseTensor
from .data import Task

HIDDEN, DROPOUT, RATE, DECAY, EPOCHS = 16, 0.5, 0.01, 5e-4, 200  # as in the paper, section 5.2
SECONDS, FEWEST = 20.0, 3  # training time after the first epoch, and the least number of epochs
MOST_APART = 1e-4  # largest relative difference of the losses of the first epoch
OURS, TORCH = "numscorch.nn.GCNConv", "torch.sparse"


class TorchConv(torch.nn.Module):
    """A graph convolution in plain torch: a product with the weights, and one with the adjacency matrix."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.lin = torch.nn.Linear(inputs, outputs, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, normalised: Tensor) -> Tensor:
        """The features after the convolution."""
        return normalised @ self.lin(x) + self.bias


class Network(torch.nn.Module):
    """Two graph convolutions of one library, with dropout before each."""

    def __init__(self, convolution: Any, task: Task):
        super().__init__()
        self.first = convolution(task.features.shape[1], HIDDEN)
        self.second = convolution(HIDDEN, task.classes)

    def forward(self, x: Any, graph: Any) -> Tensor:
        """The class scores of each node."""
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
        loss = functional.cross_entropy(scores[task.train], task.labels[task.train])
        loss.backward()
        self.optimizer.step()
        self.network.eval()
        with torch.no_grad():
            is_correct = self.network(self.features, self.graph).argmax(1) == task.labels
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())
        self.validated.append(is_correct[task.validation].double().mean().item())
        self.tested = is_correct[task.test].double().mean().item()

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
