"""A mixture of experts that sends each token to one linear map

Tokens come in clusters, and each cluster has a different linear map. The gate learns which expert to send a token to, and the experts
learn the maps. The example shows how ``MoE`` computes only the chosen expert of each token. Run it with random tokens or with a file of
pairs:

    python examples/mixture_of_experts.py
    python examples/mixture_of_experts.py --experts 64 --batch 1024
    python examples/mixture_of_experts.py --data pairs.npz          # arrays x (tokens, d_in) and y (tokens, d_out)

The load balancing loss of Fedus, Zoph, Shazeer, "Switch Transformers" (JMLR 2022, section 2.2) keeps all experts in use.

The dense twin computes every expert for every token, and multiplies the outputs by gates that are 0 except for one expert. It
starts from the same weights and is trained on the same batches.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm
from torch import nn
from torch.nn.functional import mse_loss, one_hot

from numscorch.nn import MoE

NOISE, RATE, BALANCE = 0.3, 3e-3, 0.1


def drawn(count: int, width: int, clusters: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens around the centre of each cluster, and their images under the map of the cluster."""
    centres, maps = torch.randn(clusters, width), torch.randn(clusters, width, width) / width**0.5
    cluster = torch.randint(clusters, (count,)).sort().values
    x = centres[cluster] + NOISE * torch.randn(count, width)
    return x, torch.cat([x[cluster == label] @ maps[label] for label in range(clusters)])


def read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Read two arrays of a numpy archive, with columns scaled to mean 0 and standard deviation 1."""
    with np.load(path) as arrays:
        if missing := {"x", "y"} - set(arrays):
            raise SystemExit(f"{path} has no array {min(missing)!r}: --data takes an .npz with x (tokens, d_in) and y (tokens, d_out)")
        pair = [torch.from_numpy(arrays[name]).float() for name in "xy"]
    x, y = ((array - array.mean(0)) / array.std(0).clamp(min=1e-6) for array in pair)
    return x, y


class Mixture(nn.Module):
    """A gate and experts, computed sparsely or densely; ``forward`` also returns the gates."""

    def __init__(self, count: int, d_in: int, d_out: int):
        super().__init__()
        self.gate, self.moe = nn.Linear(d_in, count), MoE(count, top_k=1, d_in=d_in, d_out=d_out, gate=False)
        self.is_dense = False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gates = self.gate(x).softmax(1)
        return (dense_mixture(x, gates, self.moe.experts) if self.is_dense else self.moe(x, gates)), gates


def dense_mixture(x: torch.Tensor, gates: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Send every token to every expert, and combine the outputs by the gates."""
    chosen = gates * one_hot(gates.argmax(1), len(experts))
    dispatched = x[:, None].expand(-1, len(experts), -1)
    outputs = torch.einsum("bnd,ndh->bnh", dispatched, experts)
    return torch.einsum("bnh,bn->bh", outputs, chosen)


class Training:
    """A mixture, its optimizer, and the time and loss of each step."""

    def __init__(self, net: Mixture):
        self.net, self.optimizer = net, torch.optim.Adam(net.parameters(), lr=RATE)
        self.times: list[float] = []
        self.losses: list[float] = []

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        outputs, gates = self.net(x)
        loss = mse_loss(outputs, y)
        share = one_hot(gates.argmax(1), gates.shape[1]).float().mean(0)
        (loss + BALANCE * gates.shape[1] * (share * gates.mean(0)).sum()).backward()
        self.optimizer.step()
        self.losses.append(loss.item())


@torch.no_grad()
def tokens_each(run: Training, x: torch.Tensor) -> torch.Tensor:
    """Number of tokens sent to each expert."""
    return run.net.gate(x).argmax(1).bincount(minlength=run.net.gate.out_features)


def train(runs: list[Training], x: torch.Tensor, y: torch.Tensor, steps: int, size: int) -> None:
    """Train the mixtures in turn on the same batches."""
    for _ in tqdm(range(steps), desc="training", unit=" steps"):
        batch = torch.randint(len(x), (size,))
        for run in runs:
            timed(run.times, run.step, x[batch], y[batch])


def plot(ours: Training, twin: Training, before: torch.Tensor, after: torch.Tensor, path: Path) -> None:
    """Plot the losses, and the number of tokens per expert before and after training."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.semilogy(ours.losses, "C0", label="MoE")
    left.semilogy(twin.losses, "C1o", fillstyle="none", markevery=max(1, len(twin.losses) // 20), label="every expert, for every token")
    left.set(xlabel="step", ylabel="mean squared error")
    left.legend()
    places = np.arange(len(after))
    right.bar(places - 0.2, before.numpy(), 0.4, color="C7", label="before the training")
    right.bar(places + 0.2, after.numpy(), 0.4, color="C0", label="after it")
    right.set(xlabel="expert", ylabel="tokens", xticks=places[:: max(1, len(places) // 16)])
    right.legend()
    figure.savefig(path)


def main() -> None:
    numbers = {"tokens": 10000, "width": 128, "experts": 16, "batch": 512, "steps": 300}
    chosen = options(__doc__, data="tokens and what becomes of them (.npz with arrays x and y)", **numbers)
    x, y = drawn(chosen.tokens, chosen.width, chosen.experts) if chosen.data is None else read(chosen.data)
    net = Mixture(chosen.experts, x.shape[1], y.shape[1])
    ours, twin = Training(net), Training(deepcopy(net))
    twin.net.is_dense = True
    print(net.moe)
    with torch.no_grad():
        agree("outputs before the training", (ours.net(x[:64])[0] - twin.net(x[:64])[0]).abs().max().item(), 1e-4)
    before = tokens_each(ours, x)
    train([ours, twin], x, y, chosen.steps, chosen.batch)
    apart = (torch.tensor(ours.losses) / torch.tensor(twin.losses) - 1).abs().max().item()
    agree("losses, as a share,", apart, 0.05)
    after = tokens_each(ours, x)
    table(
        ("", "MoE", "every expert", ""),
        ("mean squared error, first step", f"{ours.losses[0]:.4f}", f"{twin.losses[0]:.4f}"),
        ("mean squared error, last step", f"{ours.losses[-1]:.4f}", f"{twin.losses[-1]:.4f}"),
        (
            "tokens of the least and the busiest expert",
            f"{after.min():,}",
            f"{after.max():,}",
            f"{before.min():,} and {before.max():,} before",
        ),
        ("a step", *times_as_fast(ours.times, twin.times)),
    )
    plot(ours, twin, before, after, chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
