"""Training steps (forward, loss, backward, Adam) of a sparse MLP against masked dense layers, and of a GCN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

import numscorch as ns

from ..conftest import Compare
from ..data import Case
from ..paper.gcn import InTorch, epoch_of, gcn_of
from ..paper.graphs import graph
from ..peers import PYG, has
from ..selection import few

SIZES = (784, 1024, 10)
BATCH = 64
MASKED = "torch, dense with masks"


class Masked(torch.nn.Linear):
    """A dense layer with a mask that zeroes some weights."""

    def __init__(self, layer: ns.nn.SparseLinear):
        super().__init__(layer.in_features, layer.out_features)
        full = layer.to_dense()
        self.load_state_dict(full.state_dict())
        self.mask = full.weight != 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.linear(input, self.weight * self.mask, self.bias)


def network(layers: Sequence[torch.nn.Module]) -> torch.nn.Sequential:
    """The layers with ReLU between them."""

    def modules() -> Iterator[torch.nn.Module]:
        yield layers[0]
        for layer in layers[1:]:
            yield torch.nn.ReLU()
            yield layer

    return torch.nn.Sequential(*modules())


def step_of(model: torch.nn.Module) -> Callable[[], torch.Tensor]:
    """A function that trains for one step on a fixed batch and returns the loss before the update."""
    generator = torch.Generator().manual_seed(0)
    input, target = torch.randn(BATCH, SIZES[0], generator=generator), torch.randint(0, SIZES[-1], (BATCH,), generator=generator)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(input), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("zeros", few([80, 90, 95, 99]))
def test_step(zeros: int, threads: int, compare: Compare) -> None:
    """An MLP of layer sizes 784-1024-10 with a batch of 64."""
    torch.manual_seed(0)
    layers = [ns.nn.SparseLinear(inner, outer, density=1 - zeros / 100) for inner, outer in pairwise(SIZES)]
    masked = [Masked(layer) for layer in layers]
    case = Case(f"784-1024-10, {zeros} %", layers[0].weight.tensor)
    ours, masked_step = step_of(network(layers)), step_of(network(masked))
    ours(), masked_step()  # the compared losses then depend on gradients and Adam
    compare("training", ours, {MASKED: masked_step}, case=case, threads=threads, zeros=zeros, tolerance=1e-3)


@pytest.mark.parametrize("name", few(["cora", "dblp", "flickr"], 1))
def test_gcn_epoch(name: str, threads: int, compare: Compare) -> None:
    """A full-batch epoch of a two-layer GCN. All libraries use the same dense features and normalise the graph once."""
    G = graph(name)
    ours = gcn_of(ns.nn, G)
    in_torch = InTorch(ours)
    peers = {"torch CSR int32": epoch_of(G, in_torch, (G.dense_features, G.adjacency))}
    if has(PYG):
        import torch_geometric.nn

        peer = gcn_of(torch_geometric.nn, G, cached=True)
        peer.load_state_dict(ours.state_dict())
        peers[PYG] = epoch_of(G, peer, (G.dense_features, G.edges))
    step = epoch_of(G, ours, (G.dense_features, G.edges))
    for run in (step, *peers.values()):
        run()  # the compared losses then depend on gradients and Adam
    compare("training", step, peers, case=Case(G.told, ns.from_torch(G.adjacency)), threads=threads, model="GCN epoch", tolerance=1e-3)
