"""An autoencoder whose encoder stores a tenth of its weights

The network learns to reconstruct images of 784 pixels from codes of size 256. Each element of the code depends on 78 pixels, chosen at
random and then fixed. The example shows how to build a ``SparseLinear`` layer with a given density and train it like a dense layer. Run
it with generated digits or with MNIST:

    python examples/sparse_autoencoder.py                     # generated digits
    python examples/sparse_autoencoder.py --data mnist        # a folder with the MNIST files, such as *images-idx3-ubyte.gz

The network is the autoencoder of the Scorch paper: a sparse linear layer, ReLU, a dense linear layer and a sigmoid, trained with
Adam to reconstruct its input.

The dense twin has the same weights; a mask on the gradient keeps nine tenths of them at 0. A third network has a fully dense
encoder for comparison.
"""

from __future__ import annotations

from pathlib import Path

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm
from datasets import SIZE, digits
from torch import nn

from numscorch.nn import SparseLinear

CODE, BATCH, RATE = 256, 64, 0.01


class Autoencoder(nn.Module):
    """Encode images to codes and decode them."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.decoder(torch.relu(self.encoder(images))))


def networks(pixels: int, density: float) -> dict[str, Autoencoder]:
    """The sparse network, its masked twin, and a fully dense network, with equal initial decoders."""
    sparse = SparseLinear(pixels, CODE, density=density)
    masked, full = sparse.to_dense(), nn.Linear(pixels, CODE)
    mask = masked.weight.detach() != 0
    masked.weight.register_hook(lambda gradient: gradient * mask)
    decoders = [nn.Linear(CODE, pixels) for _ in range(3)]
    for decoder in decoders[1:]:
        decoder.load_state_dict(decoders[0].state_dict())
    return {name: Autoencoder(*pair) for name, *pair in zip(("sparse", "masked", "dense"), (sparse, masked, full), decoders, strict=True)}


def step(net: Autoencoder, optimizer: torch.optim.Optimizer, images: torch.Tensor) -> float:
    """Take one step of Adam; return the mean squared error before the step."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(images), images)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(nets: dict[str, Autoencoder], images: torch.Tensor, epochs: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Train the networks in turn on the same batches; return losses and times of the steps by network."""
    optimizers = {name: torch.optim.Adam(net.parameters(), lr=RATE) for name, net in nets.items()}
    losses, times = ({name: [] for name in nets} for _ in range(2))
    batches = [batch for _ in range(epochs) for batch in torch.randperm(len(images)).split(BATCH)]
    for batch in tqdm(batches, desc="training", unit=" steps"):
        for name, net in nets.items():
            losses[name].append(timed(times[name], step, net, optimizers[name], images[batch]))
    return losses, times


def plot(losses: dict[str, list[float]], images: torch.Tensor, nets: dict[str, Autoencoder], path: Path) -> None:
    """Plot the loss curves, and below them images with their reconstructions."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    upper, lower = figure.subfigures(2, 1)
    axes = upper.subplots()
    for name, curve in losses.items():
        smooth = torch.tensor(curve).unfold(0, min(10, len(curve)), 1).mean(1)
        axes.plot(smooth, "--" if name == "masked" else "-", label=f"{name} encoder")
    axes.set(xlabel="step", ylabel="mean squared error", yscale="log")
    axes.legend()
    with torch.no_grad():
        rows = {"images": images, **{name: net(images) for name, net in nets.items()}}
    for line, (name, row) in zip(lower.subplots(len(rows), 1), rows.items(), strict=True):
        line.imshow(row.view(-1, SIZE, SIZE).permute(1, 0, 2).reshape(SIZE, -1).numpy(), cmap="gray_r", vmin=0, vmax=1)
        line.set_ylabel(name, rotation=0, ha="right", va="center")
        line.set(xticks=[], yticks=[])
    figure.savefig(path)


def main() -> None:
    chosen = options(__doc__, data="a folder with MNIST's files", count=5000, epochs=6, percent=10)
    data = digits(chosen.data, chosen.count, chosen.seed)
    nets = networks(data.train.shape[1], chosen.percent / 100)
    print(nets["sparse"])
    with torch.no_grad():
        agree("first reconstructions", (nets["sparse"](data.test) - nets["masked"](data.test)).abs().max().item(), 1e-5)
    losses, times = train(nets, data.train, chosen.epochs)
    with torch.no_grad():
        error = {name: nn.functional.mse_loss(net(data.test), data.test).item() for name, net in nets.items()}
    agree("errors after training, as a share,", abs(error["sparse"] / error["masked"] - 1), 0.05)
    weights = {name: sum(parameter.numel() for parameter in net.parameters()) for name, net in nets.items()}
    weights["masked"] = weights["dense"]
    table(
        ("", "sparse", "with a mask", "all weights"),
        ("error on test images", *(f"{each:.5f}" for each in error.values())),
        ("weights that are stored", *(f"{each:,}" for each in weights.values())),
    )
    table(("", "sparse", "with a mask", ""), ("a step", *times_as_fast(times["sparse"], times["masked"])))
    plot(losses, data.test[:16], nets, chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
