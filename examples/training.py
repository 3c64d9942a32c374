"""Training of classifiers side by side on the same batches, with a comparison of the results."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm
from datasets import Images, digits
from torch import nn
from torch.nn.utils import prune

from numscorch.nn import SparseLinear

BATCH, RATE = 64, 1e-3


class Run(NamedTuple):
    """Times of the training steps of a network, and its test accuracy before the first and after each epoch."""

    times: list[float]
    accuracy: list[float]


def dense_first(description: str, **numbers: int) -> tuple[Namespace, Images, nn.Sequential, Run]:
    """Common start of examples: parse options, load digits, and train a dense network with two hidden layers."""
    chosen = options(description, data="a folder with MNIST's files", count=3000, hidden=512, epochs=3, **numbers)
    data = digits(chosen.data, chosen.count, chosen.seed)
    hidden = nn.Linear(data.train.shape[1], chosen.hidden), nn.ReLU(), nn.Linear(chosen.hidden, chosen.hidden), nn.ReLU()
    dense = nn.Sequential(*hidden, nn.Linear(chosen.hidden, 10))
    return chosen, data, dense, train({"dense": dense}, data, chosen.epochs, "dense")["dense"]


def beside_masks(
    name: str,
    dense: nn.Sequential,
    data: Images,
    sparsifier: Callable[[torch.Tensor], torch.Tensor],
    format: str | None = None,
    places: Sequence[int] = (0,),
) -> dict[str, nn.Module]:
    """A network with sparse layers at some places, and its twin with the same weights, masked."""
    sparse, masked = deepcopy(dense), deepcopy(dense)
    for at in places:
        sparse[at] = SparseLinear.from_dense(dense[at], sparsifier, format)
        prune.custom_from_mask(masked[at], "weight", sparsifier(dense[at].weight))
    agree("scores of the pruned networks", difference(sparse, masked, data), 1e-3)
    return {name: sparse, "with masks": masked}


def train(nets: dict[str, nn.Module], data: Images, epochs: int, title: str) -> dict[str, Run]:
    """Train networks with Adam, in turn on each batch; frozen parameters are not changed."""
    runs = {name: Run([], [accuracy(net, data)]) for name, net in nets.items()}
    optimizers = {
        name: torch.optim.Adam(filter(lambda parameter: parameter.requires_grad, net.parameters()), lr=RATE) for name, net in nets.items()
    }
    for _ in tqdm(range(epochs), desc=title, unit=" epochs"):
        for batch in torch.randperm(len(data.train)).split(BATCH):
            for name, net in nets.items():
                timed(runs[name].times, step, net, optimizers[name], data.train[batch], data.train_labels[batch])
        for name, net in nets.items():
            runs[name].accuracy.append(accuracy(net, data))
    return runs


def step(net: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Take one training step on a batch."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(images), labels).backward()
    optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Module, data: Images) -> float:
    """Share of test images that a network classifies correctly."""
    return (net(data.test).argmax(1) == data.test_labels).float().mean().item()


def difference(first: nn.Module, second: nn.Module, data: Images) -> float:
    """Largest difference between the scores of two networks on the test images."""
    with torch.no_grad():
        return (first(data.test) - second(data.test)).abs().max().item()


def compare(runs: dict[str, Run], before: Run, path: Path) -> None:
    """Print a table of a network and its twin, and plot their accuracies after the curve of the initial dense network."""
    ours, twin = runs.values()
    agree("accuracies after training", abs(ours.accuracy[-1] - twin.accuracy[-1]), 0.02)
    table(
        ("", *runs, ""),
        ("accuracy, at first", f"{ours.accuracy[0]:.1%}", f"{twin.accuracy[0]:.1%}", f"{before.accuracy[-1]:.1%} of the dense one"),
        ("accuracy, trained on", f"{ours.accuracy[-1]:.1%}", f"{twin.accuracy[-1]:.1%}"),
        ("a step", *times_as_fast(ours.times, twin.times)),
    )
    start = len(before.accuracy) - 1
    curves = {name: (range(start, start + len(run.accuracy)), run.accuracy) for name, run in runs.items()}
    plot(path, "epoch", "accuracy on test images", {"dense": (range(start + 1), before.accuracy), **curves})


def plot(path: Path, across: str, upwards: str, curves: dict[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Save a plot of named curves, with markers that distinguish coinciding curves."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, curve), mark in zip(curves.items(), ("C7.-", "C0.-", "C1o"), strict=False):
        axes.plot(*curve, mark, label=name, fillstyle="none")
    axes.set(xlabel=across, ylabel=upwards)
    axes.legend()
    figure.savefig(path)
    print(f"plot in {path}")
