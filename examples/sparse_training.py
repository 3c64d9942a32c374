"""Training networks with 90% sparse weights, by two methods

A dense MLP and a dense transformer are the baselines. ``GradualPruning`` prunes a copy of each during training, and ``RigL`` trains sparse
networks from scratch. The example shows how to plan the sparsity of a model and how controllers change patterns during training. Run it
with generated digits and texts, or with MNIST:

    python examples/sparse_training.py                       # generated digits and texts
    python examples/sparse_training.py --data mnist          # a folder with the MNIST files, such as *images-idx3-ubyte.gz

Gradual pruning follows a cubic schedule (Zhu, Gupta, "To prune, or not to prune", 2017): layers are masked at first, and become
``SparseLinear`` once that is faster. RigL (Evci and others, "Rigging the lottery", 2020) periodically drops the smallest weights, and
grows weights with the largest gradients. As in that paper, layers have densities by the Erdős-Rényi kernel, updates stop after three
quarters of the training and replace at first three tenths of the weights, and training is five times as long.

The MLP has three layers and classifies digits; the transformer has two layers and classifies texts of four topics. Three fifths of the
images and texts are for training, one fifth for validation, and one fifth for the test. Finally, the pruned network is trained beside
its twin, which stores zeros and a mask: both take the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from bigbird_classifier import HEADS, PADDING, TOPICS, VOCABULARY, drawn, tokens
from common import Figure, agree, options, table, timed, times_as_fast, tqdm
from datasets import digits
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils import prune

from numscorch.nn import SparseLinear
from numscorch.sparsify import GradualPruning, RigL, SparsityPlan, densify_model, erk, magnitude, random, schedules, sparsify_model

BATCH, RATE, EVERY = 64, 1e-3, 100
METHODS = ("dense", "pruned gradually", "RigL from scratch")
Part = tuple[torch.Tensor, torch.Tensor]


class Layer(nn.Module):
    """A transformer encoder layer with weights in ``torch.nn.Linear`` modules."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.together = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = self.projections(self.norm1(hidden)).chunk(3, -1)
        heads = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        hidden = hidden + self.together(scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2))
        return hidden + self.linear2(gelu(self.linear1(self.norm2(hidden))))


class Classifier(nn.Module):
    """Word and position embeddings, two layers, and topic scores from the start token."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width, padding_idx=PADDING), nn.Embedding(length, width)
        self.layers, self.norm = nn.ModuleList(Layer(width) for _ in range(2)), nn.LayerNorm(width)
        self.scores = nn.Linear(width, TOPICS)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        hidden, mask = self.words(texts) + self.places.weight, (texts != PADDING)[:, None, None]
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return self.scores(self.norm(hidden)[:, 0])


class Task(NamedTuple):
    """A function that builds a network, the names of its sparse weights, its data, and the number of epochs."""

    name: str
    network: Callable[[], nn.Module]
    weights: str
    train: Part
    validation: Part
    test: Part
    epochs: int


def split(rows: torch.Tensor, labels: torch.Tensor) -> tuple[Part, Part, Part]:
    """Split into training (three fifths), validation and test parts (one fifth each), without shuffling."""
    sizes = [len(rows) - 2 * (len(rows) // 5), len(rows) // 5, len(rows) // 5]
    train, validation, test = zip(rows.split(sizes), labels.split(sizes), strict=True)
    return train, validation, test


def tasks(chosen: Any, seed: int) -> tuple[Task, Task]:
    """The two tasks: digits for an MLP with three layers, and texts for a transformer."""
    images = digits(chosen.data, chosen.count, seed)
    pixels, hidden, width = images.train.shape[1], chosen.hidden, chosen.width
    layers = ((pixels, hidden), (hidden, hidden))
    texts, topics = drawn(chosen.texts, chosen.length)
    return (
        Task(
            "digits",
            lambda: nn.Sequential(*(part for sizes in layers for part in (nn.Linear(*sizes), nn.ReLU())), nn.Linear(hidden, 10)),
            "[02].weight",
            *split(torch.cat([images.train, images.test]), torch.cat([images.train_labels, images.test_labels])),
            chosen.epochs,
        ),
        Task(
            "texts",
            lambda: Classifier(width, chosen.length),
            "layers.*.weight",
            *split(tokens(texts, chosen.length), torch.tensor(topics)),
            -(-chosen.epochs // 2),
        ),
    )


class Training:
    """A network, its optimizer, a controller that runs after each step, and validation and test accuracies."""

    def __init__(self, net: nn.Module, epochs: int, after: Callable[[nn.Module, torch.optim.Optimizer], Any] = lambda *_: None):
        self.net, self.epochs, self.optimizer = net, epochs, torch.optim.Adam(net.parameters(), lr=RATE)
        self.controller = after(net, self.optimizer)
        self.accuracy: list[float] = []
        self.times: list[float] = []
        self.tested = 0.0

    def step(self, rows: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.net(rows), labels).backward()
        self.optimizer.step()
        if self.controller is not None:
            self.controller.step()

    @torch.no_grad()
    def right(self, part: Part) -> float:
        """Accuracy on a part of the data."""
        scores = torch.cat([self.net(rows) for rows in part[0].split(256)])
        return (scores.argmax(1) == part[1]).float().mean().item()

    def run(self, task: Task, name: str) -> Training:
        """Train for all epochs, then test."""
        for _ in tqdm(range(self.epochs), desc=name, unit=" epochs"):
            for batch in torch.randperm(len(task.train[0])).split(BATCH):
                self.step(task.train[0][batch], task.train[1][batch])
            self.accuracy.append(self.right(task.validation))
        self.tested = self.right(task.test)
        return self

    def weights(self) -> int:
        """Number of stored weights of the linear layers."""
        layers = [layer for layer in self.net.modules() if isinstance(layer, nn.Linear | SparseLinear)]
        return sum(layer.weight.nnz if isinstance(layer, SparseLinear) else layer.weight.numel() for layer in layers)


def trainings(task: Task, zeros: float, longer: int, seed: int) -> list[Training]:
    """The three trainings of a task: dense, gradually pruned, and sparse from scratch."""
    torch.manual_seed(seed)
    dense, steps = task.network(), task.epochs * -(-len(task.train[0]) // BATCH)
    schedule = schedules.cubic(zeros, begin=steps // 10, end=max(steps * 6 // 10, steps // 10 + 1), every=max(steps // 40, 1))
    plan = SparsityPlan().weights(task.weights, erk(zeros), partial(random, seed=seed))
    until = longer * steps * 3 // 4 + 1
    sparse = sparsify_model(deepcopy(dense), plan, report=None)
    for layer in sparse.modules():
        if isinstance(layer, SparseLinear):
            layer.reset_parameters()  # scales the initial weights to the number of inputs
    return [
        Training(deepcopy(dense), task.epochs),
        Training(dense, task.epochs, lambda *parts: GradualPruning(*parts, magnitude, schedule, weights=task.weights)),
        Training(sparse, longer * task.epochs, lambda *parts: RigL(*parts, until=until, every=min(EVERY, until // 3 + 1))),
    ]


def twins(net: nn.Module) -> tuple[Training, Training]:
    """A sparse network, and its twin with masked dense weights."""
    masked, layers = densify_model(deepcopy(net)), [name for name, module in net.named_modules() if isinstance(module, SparseLinear)]
    for name in layers:
        stored: Any = net.get_submodule(name).weight.tensor
        mask = stored.with_values(torch.ones(stored.nnz)).to_dense()
        prune.custom_from_mask(masked.get_submodule(name), "weight", mask)
    return Training(net, 1), Training(masked, 1)


def beside(task: Task, net: nn.Module) -> tuple[str, str, str]:
    """Train the network and its twin for an epoch, check that they agree, and return the times of a step."""
    ours, twin = twins(net)
    for batch in torch.randperm(len(task.train[0])).split(BATCH):
        for training in (ours, twin):
            timed(training.times, training.step, task.train[0][batch], task.train[1][batch])
    with torch.no_grad():
        rows = task.test[0][:256]
        agree(f"{task.name}: scores of the twins", (ours.net(rows) - twin.net(rows)).abs().max().item(), 0.05)
    return times_as_fast(ours.times, twin.times)


def plot(runs: dict[str, list[list[Training]]], path: Path) -> None:
    """Plot the validation accuracy after each epoch, averaged over the seeds."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (name, seeds) in zip(figure.subplots(1, 2), runs.items(), strict=True):
        for method, trainings_of_method in zip(METHODS, zip(*seeds, strict=True), strict=True):
            means = [mean(values) for values in zip(*(run.accuracy for run in trainings_of_method), strict=True)]
            axes.plot(range(1, len(means) + 1), means, ".-", label=method)
        axes.set(title=name, xlabel="epoch", xscale="log", ylabel="accuracy in validation")
        axes.legend()
    figure.savefig(path)


def row(task: str, at: int, seeds: Sequence[Sequence[Training]]) -> tuple[str, ...]:
    """Table row of a method."""
    trainings, dense = [run[at] for run in seeds], [run[0].tested for run in seeds]
    points = [100 * (training.tested - base) for training, base in zip(trainings, dense, strict=True)]
    spread = f" ({min(points):+.1f} to {max(points):+.1f})" if at and len(points) > 1 else ""
    validated, tested = mean(training.accuracy[-1] for training in trainings), mean(training.tested for training in trainings)
    return f"{task}, {METHODS[at]}", f"{validated:.1%}", f"{tested:.1%}", f"{mean(points):+.1f}{spread}", f"{trainings[0].weights():,}"


def main() -> None:
    chosen = options(
        __doc__,
        data="a folder with MNIST's files",
        **{"count": 5000, "hidden": 1024, "texts": 2000, "length": 32, "width": 128},
        **{"epochs": 30, "longer": 5, "seeds": 3, "percent": 90},
    )
    runs: dict[str, list[list[Training]]] = {}
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        torch.manual_seed(seed)
        task_pair = tasks(chosen, seed)
        for task in task_pair:
            started = trainings(task, chosen.percent / 100, chosen.longer, seed)
            runs.setdefault(task.name, []).append(
                [run.run(task, f"{task.name}, {method}") for run, method in zip(started, METHODS, strict=True)]
            )
    faster = [(f"{task.name}, a step", *beside(task, runs[task.name][-1][1].net)) for task in task_pair]
    table(
        (f"mean of {chosen.seeds} seeds", "validation", "test", "points beside dense", "weights"),
        *[row(name, at, seeds) for name, seeds in runs.items() for at in range(len(METHODS))],
    )
    table(("", "SparseLinear", "with masks", ""), *faster)
    plot(runs, chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
