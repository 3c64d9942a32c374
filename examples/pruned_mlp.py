"""Pruning 90% of the weights of a network, then fine-tuning the rest

A dense network is trained first. Then the smallest weights of each hidden layer are pruned, and the remaining weights are fine-tuned. The
example shows how ``SparseLinear.from_dense`` replaces a layer: pruned weights are not stored, not multiplied, and have no gradient. Run it
with generated digits or with MNIST:

    python examples/pruned_mlp.py                       # generated digits
    python examples/pruned_mlp.py --data mnist          # a folder with the MNIST files, such as *images-idx3-ubyte.gz

The method is that of Han, Pool, Tran, Dally, "Learning both Weights and Connections for Efficient Neural Networks", NeurIPS 2015.

The twin prunes dense tensors with ``torch.nn.utils.prune``: it stores zeros and keeps them with a mask. It starts from the same
weights and is trained on the same batches, so that both networks stay equal.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm
from datasets import Images, digits
from torch import nn
from torch.nn.utils import prune

from numscorch.nn import SparseLinear
from numscorch.sparsify import magnitude

BATCH, RATE = 64, 1e-3


def network(inputs: int, hidden: int) -> nn.Sequential:
    """A network with two hidden layers, which are pruned later, and a small dense output layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def pruned(dense: nn.Sequential, share: float) -> tuple[nn.Sequential, nn.Sequential]:
    """The network with a share of its hidden weights pruned, and its twin with masks."""
    sparse, masked = deepcopy(dense), deepcopy(dense)
    for at in (0, 2):
        sparse[at] = SparseLinear.from_dense(dense[at], magnitude(share))
        prune.l1_unstructured(masked[at], "weight", share)
    return sparse, masked


class Training:
    """A network, its optimizer, the time of each step, and the accuracy after each epoch."""

    def __init__(self, net: nn.Module):
        self.net, self.optimizer = net, torch.optim.Adam(net.parameters(), lr=RATE)
        self.times: list[float] = []
        self.accuracy: list[float] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.net(images), labels).backward()
        self.optimizer.step()

    @torch.no_grad()
    def test(self, data: Images) -> None:
        self.accuracy.append((self.net(data.test).argmax(1) == data.test_labels).float().mean().item())


def train(runs: list[Training], data: Images, epochs: int, name: str) -> None:
    """Train the networks in turn on the same batches."""
    for _ in tqdm(range(epochs), desc=name, unit=" epochs"):
        for batch in torch.randperm(len(data.train)).split(BATCH):
            images, labels = data.train[batch], data.train_labels[batch]
            for run in runs:
                timed(run.times, run.step, images, labels)
        for run in runs:
            run.test(data)


def plot(before: Training, ours: Training, twin: Training, path: Path) -> None:
    """Plot the accuracy after each epoch, before and after pruning."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    start = len(before.accuracy)
    axes.plot(range(1, start + 1), before.accuracy, "C7.-", label="dense")
    axes.plot(range(start, start + len(ours.accuracy)), ours.accuracy, "C0.-", label="pruned: SparseLinear")
    axes.plot(range(start, start + len(twin.accuracy)), twin.accuracy, "C1o", fillstyle="none", label="pruned: dense with masks")
    axes.set(xlabel="epoch", ylabel="accuracy on test images")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    chosen = options(__doc__, data="a folder with MNIST's files", count=3000, hidden=1024, epochs=3, percent=90)
    data = digits(chosen.data, chosen.count, chosen.seed)
    before = Training(network(data.train.shape[1], chosen.hidden))
    train([before], data, chosen.epochs, "dense")
    ours, twin = map(Training, pruned(before.net, chosen.percent / 100))
    print(ours.net)
    with torch.no_grad():
        agree("scores of the pruned networks", (ours.net(data.test) - twin.net(data.test)).abs().max().item(), 1e-3)
    for run in (ours, twin):
        run.test(data)
    train([ours, twin], data, chosen.epochs, "pruned")
    agree("accuracies after training", abs(ours.accuracy[-1] - twin.accuracy[-1]), 0.02)
    table(
        ("", "SparseLinear", "with masks", ""),
        ("accuracy, just pruned", f"{ours.accuracy[0]:.1%}", f"{twin.accuracy[0]:.1%}", f"{before.accuracy[-1]:.1%} before"),
        ("accuracy, trained on", f"{ours.accuracy[-1]:.1%}", f"{twin.accuracy[-1]:.1%}"),
        ("a step", *times_as_fast(ours.times, twin.times)),
    )
    plot(before, ours, twin, chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
