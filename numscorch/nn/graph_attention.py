"""GATConv: a graph convolution that weighs what neighbours send by attention, under PyTorch Geometric's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..sparse_tensor import SparseTensor
from .edge_attention import attend
from .features import Features, check_channels, size_of, take_pair, transformed
from .graphs import multiplicities


class GATConv(torch.nn.Module):
    """The sum of the neighbours' transformed features, weighed by a softmax of scores over the edges to a node.

    A score, ``leaky_relu(att_src . source + att_dst . target)``, is computed only where there is an edge. A node to which there
    is none gets 0, and the bias. Weights of edges don't matter; several edges between two nodes count as several, and are dropped
    together.

    Args:
        in_channels: features of a node, or (of a source, of a target), which are then transformed by ``lin_src`` and ``lin_dst``.
        out_channels: features of each head's result.
        heads: how many sets of scores there are.
        concat: whether the heads' results stand side by side; otherwise they are averaged.
        negative_slope: of leaky_relu.
        dropout: the share of attention weights that is set to 0 in training.
        add_self_loops: whether each node has exactly one edge to itself.
        edge_dim: features of an edge, which aren't taken.
        bias: whether there is one.
        residual: whether ``res`` of a target's own features is added.

    Shape:
        x (nodes, in_channels), or a pair of those of sources and targets; graph: edge_index (2, edges), from sources to targets, or an
        adjacency matrix (targets, sources); result (targets, heads * out_channels), or (targets, out_channels) of an average.

    Raises:
        UnsupportedError: edges are to have features.

    Source: Velickovic et al., "Graph Attention Networks", 2018.

    >>> layer = GATConv(4, 2, heads=3)
    >>> layer, layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    (GATConv(4, 2, heads=3), torch.Size([3, 6]))
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        bias: bool = True,
        residual: bool = False,
    ):
        super().__init__()
        if edge_dim is not None:
            raise UnsupportedError(f"GATConv with edge_dim={edge_dim}: features of edges aren't compiled; add them to those of nodes")
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops
        self.edge_dim, self.residual = edge_dim, residual
        sources, targets = self._channels
        check_channels("GATConv", sources=sources, targets=targets, out_channels=out_channels, heads=heads)
        width = out_channels * (heads if concat else 1)
        self.lin = self.res = None
        if isinstance(in_channels, int):
            self.lin = torch.nn.Linear(sources, heads * out_channels, bias=False)
        else:
            self.lin_src = torch.nn.Linear(sources, heads * out_channels, bias=False)
            self.lin_dst = torch.nn.Linear(targets, heads * out_channels, bias=False)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        if residual:
            self.res = torch.nn.Linear(targets, width, bias=False)
        self.bias = torch.nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    @property
    def _channels(self) -> tuple[int, int]:
        """Features of a source, and of a target."""
        return (self.in_channels, self.in_channels) if isinstance(self.in_channels, int) else self.in_channels

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for own in self.children():
            torch.nn.init.xavier_uniform_(own.weight)  # type: ignore[arg-type]  # children are Linear
        bound = math.sqrt(6 / (self.heads + self.out_channels))
        for scores in (self.att_src, self.att_dst):
            torch.nn.init.uniform_(scores, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Features | tuple[Features, Features | None],
        graph: Any,
        edge_attr: Tensor | None = None,
        size: Sequence[int | None] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor:
        """The features of targets; ``size``, (sources, targets), where features don't say it.

        Raises:
            UnsupportedError: edges have features, or the attention weights are asked for.
        """
        _refuse(edge_attr, return_attention_weights)
        own, others = take_pair(x, self._channels, self)
        nodes = size_of(own, others, size)
        edges = multiplicities(graph, nodes, own.dtype, self.add_self_loops)
        sources, targets = self._transformed(own, others)
        if targets is sources and isinstance(own, SparseTensor):
            scores, wanted = self._scores(own)
        else:
            scores = (sources * self.att_src).sum(-1)
            wanted = scores.new_zeros(nodes[1], self.heads) if targets is None else (targets * self.att_dst).sum(-1)
        made = attend(edges, sources, scores, wanted, self.negative_slope, self.dropout, self.training)
        result = made.flatten(1) if self.concat else made.mean(1)
        if self.res is not None and others is not None:
            result = result + transformed(others, self.res.weight)
        return result if self.bias is None else result + self.bias

    def _transformed(self, own: Features, others: Features | None) -> tuple[Tensor, Tensor | None]:
        """The features of sources and targets by head: (nodes, heads, out_channels)."""
        heads = (-1, self.heads, self.out_channels)
        if self.lin is not None:
            sources = transformed(own, self.lin.weight).view(heads)
            same = others is own
            return sources, sources if same else None if others is None else transformed(others, self.lin.weight).view(heads)
        sources = transformed(own, self.lin_src.weight).view(heads)
        return sources, None if others is None else transformed(others, self.lin_dst.weight).view(heads)

    def _scores(self, x: SparseTensor) -> tuple[Tensor, Tensor]:
        """The scores of sparse features as sources and as targets: a product with few columns, of weights that are multiplied first."""
        weight = self.lin.weight.view(self.heads, self.out_channels, -1)  # type: ignore[union-attr]  # sources are targets: there is lin
        by_head = torch.stack([self.att_src[0], self.att_dst[0]], 1) @ weight
        found = transformed(x, by_head.flatten(0, 1)).view(-1, self.heads, 2)
        return found[..., 0].contiguous(), found[..., 1].contiguous()

    def __repr__(self) -> str:
        return f"GATConv({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _refuse(edge_attr: Tensor | None, return_attention_weights: bool | None) -> None:
    """Refuse what isn't taken."""
    if edge_attr is not None:
        raise UnsupportedError("GATConv with edge_attr: features of edges aren't compiled; add them to those of nodes")
    if return_attention_weights is not None:
        raise UnsupportedError(
            "GATConv with return_attention_weights: they aren't kept; ns.softmax of an ns.evaluate of the scores has them"
        )
