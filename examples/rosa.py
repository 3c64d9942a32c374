"""Fine-tuning with a low-rank and a sparse adapter per weight

A network that knows upright digits learns digits upside down. The weights are frozen, and only the adapters are trained. The example
shows how to split a gradient with ``low_rank_plus_sparse`` and how to add a sparse parameter to a dense layer. Run it with
``python examples/rosa.py``; ``--data mnist`` reads a folder with the MNIST files.

RoSA: Nikdan, Tabesh, Crnčević, Alistarh, "RoSA: accurate parameter-efficient fine-tuning via robust adaptation", 2024. The low-rank part
of the gradient and the largest entries of the remainder define the adapters. They start at 0. The twin stores the sparse adapter as a
masked dense tensor.
"""

from copy import deepcopy

import torch
from common import agree
from torch import nn
from training import compare, dense_first, difference, train

import numscorch as ns
from numscorch.sparsify import low_rank_plus_sparse, magnitude


class Adapted(nn.Module):
    """A frozen layer with adapters of its weight: U @ V, and a sparse matrix or a masked dense matrix."""

    def __init__(self, layer: nn.Linear, rank: int, share: float, sparse: bool):
        super().__init__()
        U, V, largest = low_rank_plus_sparse(rank, magnitude(share)).split(layer.weight.grad)
        self.layer, self.mask = deepcopy(layer).requires_grad_(False), torch.ones_like(largest).to_dense()
        self.U, self.V = nn.Parameter(torch.zeros_like(U)), nn.Parameter(nn.functional.normalize(V))
        self.added = ns.nn.Parameter(torch.zeros_like(largest) if sparse else torch.zeros_like(self.mask))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.added, torch.Tensor):
            return nn.functional.linear(x, self.layer.weight + self.U @ self.V + self.mask * self.added, self.layer.bias)
        return self.layer(x) + x @ self.V.t() @ self.U.t() + nn.functional.linear(x, self.added)


def main() -> None:
    chosen, data, dense, before = dense_first(__doc__, rank=4, percent=98)
    data = data._replace(train=data.train.flip(1), test=data.test.flip(1))
    dense.zero_grad()
    nn.functional.cross_entropy(dense(data.train[:512]), data.train_labels[:512]).backward()
    nets = {name: deepcopy(dense) for name in ("adapters", "dense twin")}
    for name, net in nets.items():
        net[0], net[2], net[4] = (Adapted(dense[at], chosen.rank, chosen.percent / 100, name == "adapters") for at in (0, 2, 4))
    runs = train(nets, data, chosen.epochs, "adapters")
    agree("frozen weights before and after", max((nets["adapters"][at].layer.weight - dense[at].weight).abs().max() for at in (0, 2, 4)), 0)
    for ours, layer in ((nets["adapters"][at], dense[at]) for at in (0, 2, 4)):
        layer.weight.data += (ours.U @ ours.V + ours.added.to_dense()).detach()
    agree("scores of the adapters and of their sum", difference(nets["adapters"], dense, data), 1e-3)
    few, many = (sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad) for net in (nets["adapters"], dense))
    print(f"{few:,} weights were trained, {few / many:.1%} of all; upright ones were named with {before.accuracy[-1]:.1%}")
    compare(runs, before, chosen.out)


if __name__ == "__main__":
    main()
