"""Two ways to a network with a tenth of its weights: pruned bit by bit while it is trained, and sparse from the first step.

A dense network is trained. A second one starts from the same numbers, and loses its weights along a cubic schedule (Zhu, Gupta, "To
prune, or not to prune", 2017): its layers are masked at first, and become ``SparseLinear`` where that is faster. A third one never has
more than a tenth: RigL (Evci and others, "Rigging the lottery", 2020) drops its least weights now and then, and grows others where the
gradient would be largest.

    python examples/sparse_training.py                       # digits that are drawn at random
    python examples/sparse_training.py --data mnist          # a folder with MNIST's files, as *images-idx3-ubyte.gz

At last the pruned network goes on beside its twin, which stores zeros and a mask: both make the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm
from datasets import Images, digits
from torch import nn
from torch.nn.utils import prune

from numscorch.nn import SparseLinear
from numscorch.sparsify import GradualPruning, RigL, magnitude, schedules

BATCH, RATE, HIDDEN = 64, 1e-3, ("0.weight", "2.weight")


class Training:
    """A network, its optimizer, what is called after each step, and its accuracy after each epoch."""

    def __init__(self, net: nn.Sequential, after: Callable[[nn.Sequential, torch.optim.Optimizer], Any] = lambda *_: None):
        self.net, self.optimizer = net, torch.optim.Adam(net.parameters(), lr=RATE)
        self.controller = after(net, self.optimizer)
        self.accuracy: list[float] = []
        self.times: list[float] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.net(images), labels).backward()
        self.optimizer.step()
        if self.controller is not None:
            self.controller.step()

    @torch.no_grad()
    def test(self, data: Images) -> None:
        self.accuracy.append((self.net(data.test).argmax(1) == data.test_labels).float().mean().item())


def networks(inputs: int, hidden: int, zeros: float, steps: int) -> dict[str, Training]:
    """The three networks, and what prunes, or drops and grows, over so many steps."""
    dense = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    first, second = (SparseLinear(size, hidden, density=1 - zeros) for size in (inputs, hidden))
    often = max(steps // 40, 1)
    schedule = schedules.cubic(zeros, begin=steps // 10, end=max(steps * 6 // 10, steps // 10 + 1), every=often)
    return {
        "dense": Training(dense),
        "pruned gradually": Training(deepcopy(dense), lambda *own: GradualPruning(*own, magnitude, schedule, weights=HIDDEN)),
        "RigL from scratch": Training(
            nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(hidden, 10)),
            lambda *own: RigL(*own, until=max(steps * 3 // 4, 1), every=often),
        ),
    }


def train(runs: list[Training], data: Images, epochs: int, name: str) -> None:
    """Train networks on the same batches, in turn."""
    for _ in tqdm(range(epochs), desc=name, unit=" epochs"):
        for batch in torch.randperm(len(data.train)).split(BATCH):
            images, labels = data.train[batch], data.train_labels[batch]
            for run in runs:
                timed(run.times, run.step, images, labels)
        for run in runs:
            run.test(data)


def twins(net: nn.Sequential) -> tuple[Training, Training]:
    """A sparse network, and one with dense weights and masks."""
    masked = deepcopy(net)
    for at in (0, 2):
        weight = net[at].weight.tensor
        masked[at] = prune.custom_from_mask(net[at].to_dense(), "weight", weight.with_values(torch.ones(weight.nnz)).to_dense())
    return Training(net), Training(masked)


def plot(runs: dict[str, Training], path: Path) -> None:
    """Accuracy after each epoch."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, run in runs.items():
        axes.plot(range(1, len(run.accuracy) + 1), run.accuracy, ".-", label=name)
    axes.set(xlabel="epoch", ylabel="accuracy on test images")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    chosen = options(__doc__, data="a folder with MNIST's files", count=3000, hidden=1024, epochs=30, percent=90)
    data = digits(chosen.data, chosen.count, chosen.seed)
    steps = chosen.epochs * -(-len(data.train) // BATCH)
    runs = networks(data.train.shape[1], chosen.hidden, chosen.percent / 100, steps)
    train(list(runs.values()), data, chosen.epochs, "training")
    print(runs["pruned gradually"].net)
    ours, twin = twins(runs["pruned gradually"].net)
    train([ours, twin], data, 1, "beside its twin")
    with torch.no_grad():
        agree("scores of the twins", (ours.net(data.test) - twin.net(data.test)).abs().max().item(), 0.05)
    table(
        ("", "accuracy", "beside the dense one", "hidden weights"),
        *[
            (name, f"{run.accuracy[-1]:.1%}", f"{run.accuracy[-1] - runs['dense'].accuracy[-1]:+.1%}", f"{weights(run.net):,}")
            for name, run in runs.items()
        ],
    )
    table(("", "SparseLinear", "with masks", ""), ("a step", *times_as_fast(ours.times, twin.times)))
    plot(runs, chosen.out)
    print(f"plot in {chosen.out}")


def weights(net: nn.Sequential) -> int:
    """How many weights the hidden layers store."""
    return sum(net[at].weight.nnz if isinstance(net[at], SparseLinear) else net[at].weight.numel() for at in (0, 2))


if __name__ == "__main__":
    main()
