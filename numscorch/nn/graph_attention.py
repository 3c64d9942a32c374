"""GATConv: a graph convolution that weights neighbours by attention, with the interface of PyTorch Geometric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ..errors import UnsupportedError
from ..interface.api import einsum
from ..tensors.sparse_tensor import SparseTensor
from .convolution import LAZY, SUMS, Convolution, Features, LazyLinear, check_channels, draw_glorot, linear, materialize, projection
from .edge_attention import Fill, attended_features, read_edges
from .graph_inputs import TO_TARGET
from .graphs import is_seldom_used, naming_nodes, sum_along


class GATConv(Convolution):
    """The sum of the neighbours' transformed features, weighted by a softmax of scores over the edges to a node.

    The score of an edge is ``leaky_relu(att_src . source + att_dst . target)``. Nodes without incoming edges get the bias. Edge weights
    are ignored. Each parallel edge counts in the softmax. Dropout draws one random number for all edges from one node to another: they
    are kept or dropped together. It draws a number for each edge if edge features are given or attention weights are returned, and in
    the first calls with a small graph.

    Args:
        in_channels: features per node, or a pair (per source, per target), transformed by ``lin_src`` and ``lin_dst``; -1 infers
            the size from the first input.
        out_channels: features per head of the result.
        heads: number of attention heads.
        concat: whether to concatenate the heads' results rather than average them.
        negative_slope: slope of leaky_relu for negative arguments.
        dropout: dropout probability of the attention weights in training.
        add_self_loops: whether to replace all self loops by exactly one per node.
        edge_dim: features per edge; -1 infers the size from the first input. They add ``att_edge . lin_edge(edge_attr)`` to the score.
        fill_value: features of added loops: a number, a tensor, or a reduction over the features of the edges to a node, one of
            ``"mean"``, ``"add"``, ``"min"``, ``"max"`` and ``"mul"``.
        bias: whether to add a bias.
        residual: whether to add the target's own features, transformed by ``res``.
        aggr: ``"add"`` or ``"sum"``.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to reverse the edges; pairs of features need the former.

    Shape:
        x (nodes, in_channels), or a pair (source features, target features), where the target features may be None; edge_index
        (2, edges), from sources to targets, or a matrix ``A[target, source]`` such as :func:`numscorch.adj_t` returns (see the guide:
        graphs); edge_attr (edges, edge_dim), only with an edge_index; result (targets, heads * out_channels), or
        (targets, out_channels) if averaged.

    Raises:
        SizeError: a size is not positive.
        UnsupportedError: the aggregation or the flow is not supported.

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
        fill_value: Fill = "mean",
        bias: bool = True,
        residual: bool = False,
        *,
        aggr: str = "add",
        flow: str = TO_TARGET,
    ):
        super().__init__(aggr, flow, 0, SUMS)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops
        self.edge_dim, self.fill_value, self.residual = edge_dim, fill_value, residual
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        check_channels("GATConv", sources=sources, targets=targets, out_channels=out_channels, heads=heads, edge_dim=edge_dim or LAZY)
        width = out_channels * (heads if concat else 1)
        self.lin = self.lin_edge = self.att_edge = self.res = None
        if isinstance(in_channels, int):
            self.lin = projection(sources, heads * out_channels, False, draw_glorot)
        else:
            self.lin_src = projection(sources, heads * out_channels, False, draw_glorot)
            self.lin_dst = projection(targets, heads * out_channels, False, draw_glorot)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        if edge_dim is not None:
            self.lin_edge = projection(edge_dim, heads * out_channels, False, draw_glorot)
            self.att_edge = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        if residual:
            self.res = projection(targets, width, False, draw_glorot)
        self.bias = torch.nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    @property
    def _projections(self) -> tuple[torch.nn.Linear, torch.nn.Linear]:
        """The layers that transform the features of sources and of targets."""
        return (self.lin, self.lin) if self.lin is not None else (self.lin_src, self.lin_dst)

    @property
    def _channels(self) -> tuple[int, int]:
        """Features per source and per target; -1 before the first input sets them."""
        sources, targets = self._projections
        return sources.in_features, targets.in_features

    def reset_parameters(self) -> None:
        """Reinitialize the weights: Glorot for projections and attention vectors, 0 for the bias."""
        for child in self.children():
            if isinstance(child, torch.nn.Linear) and not isinstance(child, LazyLinear):
                draw_glorot(child)
        bound = math.sqrt(6 / (self.heads + self.out_channels))
        for vectors in (self.att_src, self.att_dst, self.att_edge):
            if vectors is not None:
                torch.nn.init.uniform_(vectors, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Features | tuple[Features, Features | None],
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: Sequence[int | None] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Return the features of the targets, and the attention weights if they are requested.

        Args:
            x: features (nodes, in_channels), dense or sparse; or a pair (source features, target features), where the target features
                may be None.
            edge_index: integer tensor (2, edges), from sources to targets; or a sparse matrix ``A[target, source]``.
            edge_attr: features (edges, edge_dim) of the edges; requires an edge list and ``edge_dim``. Shape (edges,) if edge_dim is 1.
            size: numbers (sources, targets). The number of targets is needed if neither features nor a matrix determine it.
            return_attention_weights: whether to return the attention weights after dropout, too.

        Returns:
            Features (targets, heads * out_channels), or (targets, out_channels) if heads are averaged. With
            ``return_attention_weights``, a pair of these features and the weights. For an edge list, the weights are a pair of the
            edges (2, edges), added loops included, and a tensor (edges, heads). For a matrix, they are a SparseTensor
            (targets, sources, heads).

        Raises:
            SizeError: the features, the edges or ``size`` have another shape.
            RangeError: an edge names a node that does not exist.
            FormatError: the edges are not integers.
            OperandError: ``fill_value`` is not a number, a tensor or a reduction.
            UnsupportedError: edge_attr is given without ``edge_dim`` or with a matrix, or data types differ.
        """
        features, target_features, graph, nodes = self._read(x, edge_index, self._channels, size, None)
        self._materialize(features, target_features, edge_attr)
        sources, targets = self._features_by_head(features, target_features)
        if targets is sources and isinstance(features, SparseTensor):
            source_scores, target_scores = self._scores(features)
        else:
            source_scores = (sources * self.att_src).sum(-1)
            target_scores = source_scores.new_zeros(nodes[1], self.heads) if targets is None else (targets * self.att_dst).sum(-1)
        weights = None
        is_seldom = not return_attention_weights and is_seldom_used(graph, sources.flatten(1))
        if edge_attr is None and not return_attention_weights and not is_seldom:
            count = None if nodes[0] == nodes[1] else nodes[1]
            options = self.negative_slope, self.dropout if self.training else 0.0, self.add_self_loops
            attended = attended_features(graph, sources, source_scores, target_scores, count, *options)
        else:
            with naming_nodes(graph, nodes):
                attended, weights = self._attend_by_edge(graph, nodes, edge_attr, sources, source_scores, target_scores, is_seldom)
        result = attended.flatten(1) if self.concat else attended.mean(1)
        if self.res is not None and target_features is not None:
            result = result + linear(target_features, self.res.weight)
        result = result if self.bias is None else result + self.bias
        return (result, weights) if return_attention_weights else result

    def _materialize(self, features: Features, target_features: Features | None, edge_attr: Tensor | None) -> None:
        if edge_attr is not None and self.lin_edge is None:
            raise UnsupportedError("GATConv with edge_attr, but no edge_dim: give edge_dim=, the number of features per edge")
        for layer, x in zip((*self._projections, self.res), (features, target_features, target_features), strict=True):
            if x is not None:
                materialize(layer, x.shape[-1])
        if edge_attr is not None:
            materialize(self.lin_edge, edge_attr.shape[1] if edge_attr.ndim == 2 else 1)

    def _attend_by_edge(
        self,
        graph: Any,
        nodes: tuple[int, int],
        edge_attr: Tensor | None,
        sources: Tensor,
        source_scores: Tensor,
        target_scores: Tensor,
        is_seldom: bool,
    ) -> tuple[Tensor, Any]:
        """Return the attended features of targets and the attention weights, computed edge by edge.

        With ``is_seldom``, no matrix is made, and the weights are None.
        """
        edges = read_edges(graph, nodes, self.add_self_loops, checks_nodes=not is_seldom)
        edge_scores = None
        if edge_attr is not None and self.lin_edge is not None:
            end = 0 if self.flow == TO_TARGET else 1  # PyTorch Geometric groups the features of loops by the second row of edge_index
            features = self.lin_edge(edges.features(edge_attr, self.lin_edge.in_features, self.fill_value, end))
            edge_scores = (features.view(-1, self.heads, self.out_channels) * self.att_edge).sum(-1)
        weights = dropout(edges.weights(source_scores, target_scores, edge_scores, self.negative_slope), self.dropout, self.training)
        if is_seldom:
            return sum_along(sources, edges.targets, edges.sources, nodes[1], weights[..., None]), None
        matrix = edges.matrix(weights)
        is_list = not isinstance(edges.graph.source, SparseTensor)
        endpoints = torch.stack([edges.sources, edges.targets] if self.flow == TO_TARGET else [edges.targets, edges.sources])
        return einsum("ijh,jhc->ihc", matrix, sources), (endpoints, weights) if is_list else matrix

    def _features_by_head(self, features: Features, target_features: Features | None) -> tuple[Tensor, Tensor | None]:
        """Return the transformed features of sources and targets, (nodes, heads, out_channels)."""
        of_sources, of_targets = self._projections
        sources = linear(features, of_sources.weight).view(-1, self.heads, self.out_channels)
        if target_features is None:
            return sources, None
        if target_features is features and of_targets is of_sources:
            return sources, sources
        return sources, linear(target_features, of_targets.weight).view(-1, *sources.shape[1:])

    def _scores(self, x: SparseTensor) -> tuple[Tensor, Tensor]:
        """Return source and target scores of sparse features; multiplying the weights first leaves a product with 2 * heads columns."""
        weight = self.lin.weight.view(self.heads, self.out_channels, -1)  # type: ignore[union-attr]  # sources are targets, so lin exists
        by_head = torch.stack([self.att_src[0], self.att_dst[0]], 1) @ weight
        scores = linear(x, by_head.flatten(0, 1)).view(-1, self.heads, 2)
        return scores[..., 0].contiguous(), scores[..., 1].contiguous()

    def __repr__(self) -> str:
        return f"GATConv({self.in_channels}, {self.out_channels}, heads={self.heads})"
