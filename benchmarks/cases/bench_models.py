"""Inference of a GCN, a pruned MLP, sparse attention and a mixture of experts; ``benchmarks.paper`` measures more models."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional

import numscorch as ns
from numscorch.measuring.turns import Function
from numscorch.nn.functional import scaled_dot_product_attention

from ..conftest import Compare
from ..data import Case, dense
from ..paper.attention import HEAD, PATTERNS, by_gathering, by_sampled_addmm
from ..paper.gcn import InTorch, Network
from ..paper.graphs import graph
from ..paper.moe import every_expert, loop_of_ranges
from ..peers import DENSE_MODEL, EVERY_EXPERT, PYG, has
from ..selection import few
from .bench_training import network

HIDDEN = 64
WEIGHTS = (1024, 1024, 1024, 64)
TOLERANCE = 1e-3  # rounding errors of consecutive products add up


@pytest.mark.parametrize("name", few(["cora", "dblp", "flickr"], 1))
@torch.no_grad()
def test_gcn(name: str, threads: int, compare: Compare) -> None:
    """Two layers on a whole graph with dense features. PyG and numscorch both cache the normalised graph."""
    G = graph(name)
    ours = _gcn(ns.nn.GCNConv, G.features.shape[1], G.classes)
    in_torch = InTorch(ours).eval()
    wide = _with_wide_indices(G.adjacency)
    peers: dict[str, Function] = {
        "torch CSR int32": lambda: in_torch(G.dense_features, G.adjacency),
        "torch CSR int64": lambda: in_torch(G.dense_features, wide),
    }
    if has(PYG):
        peers[PYG] = _of_pyg(ours, G.dense_features, G.edges, G.classes)
    case = Case(G.told, ns.from_torch(G.adjacency))
    compare(
        "models",
        lambda: ours(G.dense_features, G.edges),
        peers,
        case=case,
        threads=threads,
        tolerance=TOLERANCE,
        model="GCN",
    )


def _gcn(layer: Callable[[int, int], torch.nn.Module], features: int, classes: int) -> Network:
    torch.manual_seed(0)
    return Network(layer(features, HIDDEN), layer(HIDDEN, classes)).eval()


def _of_pyg(ours: Network, features: torch.Tensor, edges: torch.Tensor, classes: int) -> Function:
    from torch_geometric.nn import GCNConv

    peer = _gcn(lambda inner, outer: GCNConv(inner, outer, cached=True), features.shape[1], classes)
    peer.load_state_dict(ours.state_dict())
    return lambda: peer(features, edges)


def _with_wide_indices(A: torch.Tensor) -> torch.Tensor:
    pos, crd = A.crow_indices().long(), A.col_indices().long()
    return torch.sparse_csr_tensor(pos, crd, A.values(), A.shape, check_invariants=False)


@pytest.mark.parametrize("batch", few([1, 64, 256], 1))
@pytest.mark.parametrize("zeros", few([80, 90, 95], 1))
@torch.no_grad()
def test_pruned_mlp(zeros: int, batch: int, threads: int, compare: Compare) -> None:
    """Three linear layers, pruned by magnitude, with ReLU between them."""
    torch.manual_seed(0)
    layers = [ns.nn.SparseLinear(i, o, density=1 - zeros / 100) for i, o in pairwise(WEIGHTS)]
    ours, full, x = network(layers), network([layer.to_dense() for layer in layers]), dense(batch, WEIGHTS[0])
    in_csr = network([_InCsr(layer) for layer in layers])
    compare(
        "models",
        lambda: ours(x),
        {"torch CSR int32": lambda: in_csr(x)},
        beside={DENSE_MODEL: lambda: full(x)},
        case=Case(f"{'-'.join(map(str, WEIGHTS))}, {zeros} %", layers[0].weight.tensor),
        threads=threads,
        tolerance=TOLERANCE,
        model="pruned MLP",
        zeros=zeros,
        batch=batch,
    )


class _InCsr(torch.nn.Module):
    """A linear layer with a torch CSR weight, in torch's fastest form: the transpose of ``W @ x.t()``."""

    def __init__(self, layer: ns.nn.SparseLinear):
        super().__init__()
        self.weight = layer.weight.tensor.to(ns.CSR).to_torch()
        self.bias: Any = deepcopy(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias[:, None], self.weight, x.t()).t()


@pytest.mark.parametrize("length", few([512, 1024, 2048], 1))
@pytest.mark.parametrize("pattern", few(list(PATTERNS), 1))
@torch.no_grad()
def test_sparse_attention(pattern: str, length: int, threads: int, compare: Compare) -> None:
    """Four heads of 32 features."""
    mask_pattern = PATTERNS[pattern](length)
    q, k, v = (dense(1, 4, length, HEAD, seed=seed) for seed in range(3))
    mask, in_torch, places = mask_pattern.to_dense() != 0, mask_pattern.to_torch(), mask_pattern.indices()
    compare(
        "models",
        lambda: scaled_dot_product_attention(q, k, v, mask_pattern),
        {
            "torch scaled_dot_product_attention, mask": lambda: functional.scaled_dot_product_attention(q, k, v, mask),
            "torch.sparse.sampled_addmm": lambda: by_sampled_addmm(q, k, v, in_torch),
            "torch, gathered": lambda: by_gathering(q, k, v, in_torch, places),
        },
        case=Case(f"{pattern}, {length} tokens", mask_pattern),
        threads=threads,
        tolerance=TOLERANCE,
        model="sparse attention",
    )


@pytest.mark.parametrize(("experts", "tokens"), few([(8, 256), (32, 256), (64, 1024)], 1))
@torch.no_grad()
def test_mixture_of_experts(experts: int, tokens: int, threads: int, compare: Compare) -> None:
    """Each token is routed to one expert; the routing is computed in every call."""
    width = 128
    x, scores = dense(tokens, width), dense(tokens, experts, seed=2).softmax(-1)
    weights: Any = dense(experts, width, width, seed=3) / width**0.5
    ours = ns.nn.MoE(weights, top_k=1, gate=False)
    routing = ns.from_torch(functional.one_hot(scores.argmax(1), experts).float())
    compare(
        "models",
        lambda: ours(x, scores),
        {"torch, loop over experts": lambda: loop_of_ranges(x, scores, weights)},
        beside={EVERY_EXPERT: lambda: every_expert(x, scores, weights)},
        case=Case(f"{experts} experts, {tokens} tokens", routing),
        threads=threads,
        tolerance=TOLERANCE,
        model="MoE",
    )
