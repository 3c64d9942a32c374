"""Graph convolutions on a graph distributed over processes

Each process holds the rows of the graph and of the features that belong to its nodes, and sends the rows that other processes need. The
example shows how ``shard`` distributes an adjacency matrix, and how ``GCNConv`` uses it like a local one. Run it in several processes with
torchrun, or in one:

    torchrun --standalone --nproc-per-node 2 examples/distributed_gcn.py
    python examples/distributed_gcn.py                                  # one process

The parameters are equal in all processes, and their gradients are summed over the processes. The twin trains the same network on the
whole graph, in the first process; its losses are the same.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from common import Figure, agree, options, table, tqdm
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

import numscorch as ns
from numscorch.nn import GCNConv
from numscorch.sharding import ShardedSparseTensor, shard

CLASSES, FEATURES, HIDDEN, RATE = 5, 32, 16, 0.01


class GCN(nn.Module):
    """Two graph convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(FEATURES, HIDDEN), GCNConv(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor, graph: object) -> torch.Tensor:
        return self.second(self.first(x, graph).relu(), graph)


def drawn(nodes: int) -> tuple[ns.SparseTensor, torch.Tensor, torch.Tensor]:
    """A random graph whose edges mostly connect nodes of one class; the features and classes of its nodes."""
    labels = torch.randint(CLASSES, (nodes,))
    ends = torch.randint(nodes, (2, 8 * nodes))
    ends = ends[:, (labels[ends[0]] == labels[ends[1]]) | (torch.rand(ends.shape[1]) < 0.1)]
    features = torch.randn(nodes, FEATURES) + 2 * nn.functional.one_hot(labels, FEATURES)
    return ns.adj_t(torch.cat([ends, ends.flip(0)], 1).unique(dim=1), size=nodes), features, labels


def train(net: nn.Module, graph: object, x: torch.Tensor, labels: torch.Tensor, nodes: int, epochs: int) -> list[float]:
    """The losses of all nodes, after each epoch. ``x`` and ``labels`` are those of this process's nodes."""
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    losses = []
    for _ in tqdm(range(epochs), unit=" epochs", disable=dist.get_rank() > 0):
        optimizer.zero_grad()
        loss = cross_entropy(net(x, graph), labels, reduction="sum") / nodes
        loss.backward()
        parts = [loss.detach(), *(parameter.grad for parameter in net.parameters())]
        if isinstance(graph, ShardedSparseTensor):
            for part in parts:
                dist.all_reduce(part)
        optimizer.step()
        losses.append(parts[0].item())
    return losses


def main() -> None:
    chosen = options(__doc__, data="unused: the graph is random", nodes=3000, epochs=30)
    if "RANK" not in os.environ:  # not started by torchrun
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(chosen.seed)
    graph, features, labels = drawn(chosen.nodes)
    net, twin = GCN(), GCN()
    twin.load_state_dict(net.state_dict())

    A = shard(graph, mesh, permute="nnz")
    losses = train(net, A, A.rows_of(features), A.rows_of(labels), chosen.nodes, chosen.epochs)
    report = A.report()
    if dist.get_rank() == 0:
        expected = train(twin, graph, features, labels, chosen.nodes, chosen.epochs)
        table(["", "loss"], ["first epoch", f"{losses[0]:.4f}"], ["last epoch", f"{losses[-1]:.4f}"])
        print(report)
        agree("losses of both", max(abs(one - two) for one, two in zip(losses, expected, strict=True)), 1e-4)
        figure = Figure(figsize=(5, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(losses, label=f"{dist.get_world_size()} processes")
        axes.plot(expected, "o", fillstyle="none", label="whole graph")
        axes.set(xlabel="epoch", ylabel="loss")
        axes.legend()
        figure.savefig(chosen.out)
        print(f"plot in {chosen.out}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
