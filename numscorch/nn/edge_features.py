"""Graph attention on a list of edges, for edge features and for attention weights as a result.

Parallel edges between two nodes have separate scores here. The softmax is over a list (edges, heads), with O(edges) memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import OperandError, SizeError, UnsupportedError
from ..tensors.graph_breaks import graph_break
from ..tensors.sparse_tensor import SparseTensor
from .edge_attention import by_heads
from .graph_inputs import KEEP_LOOPS, REPLACE_LOOPS, EdgePlacement, GraphInput, read_graph

REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "min": "amin", "max": "amax", "mul": "prod"}
Fill = float | Tensor | str


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a graph, either unchanged or with all self loops replaced by one loop per node."""

    graph: GraphInput
    placement: EdgePlacement
    endpoints: Tensor  # targets and sources (2, edges)

    def weights(self, source_scores: Tensor, target_scores: Tensor, edge_scores: Tensor | None, negative_slope: float) -> Tensor:
        """Return the softmax of ``leaky_relu(sum of scores)`` over the edges of each target, (edges, heads)."""
        targets, sources = self.endpoints
        scores = source_scores[sources] + target_scores[targets]
        scores = functional.leaky_relu(scores if edge_scores is None else scores + edge_scores, negative_slope)
        index, nodes = targets[:, None].expand_as(scores), self.graph.shape[0]
        largest = scores.new_full((nodes, scores.shape[1]), float("-inf")).scatter_reduce(0, index, scores.detach(), "amax")
        exponentials = (scores - largest[targets]).exp()
        return exponentials / exponentials.new_zeros(nodes, exponentials.shape[1]).index_add(0, targets, exponentials)[targets]

    @graph_break
    def matrix(self, weights: Tensor) -> SparseTensor:
        """Return the weights as a tensor (targets, sources, heads), summed over parallel edges."""
        heads, pattern = weights.shape[1], self.placement.pattern
        if self.placement.slots is not None:
            weights = weights.new_zeros(pattern.nnz, heads).index_add(0, self.placement.slots, weights)
        return SparseTensor(by_heads(pattern, heads), weights.flatten())

    def features(self, edge_attr: Tensor, edge_dim: int, fill: Fill, end: int) -> Tensor:
        """Return the features of all edges, added loops included, (edges, edge_dim).

        Args:
            edge_attr: features of the graph's edges, (edges, edge_dim) or (edges,).
            edge_dim: expected number of features; -1 for any number.
            fill: features of added loops: a number, a tensor, or the name of a reduction over the features of a node's edges.
            end: which end of the edges the reduction groups by: 0 for targets, 1 for sources.

        Raises:
            OperandError: the reduction is unknown.
            SizeError: the features are not a tensor of that shape.
            UnsupportedError: the graph is a matrix.
        """
        if isinstance(self.graph.source, SparseTensor):
            raise UnsupportedError("edge_attr with an adjacency matrix, whose edges have no order: pass edge_index")
        rows = edge_attr[:, None] if isinstance(edge_attr, Tensor) and edge_attr.ndim == 1 else edge_attr
        if not isinstance(rows, Tensor) or rows.shape[:1] != (self.graph.edges,) or rows.ndim != 2 or edge_dim not in (-1, rows.shape[1]):
            shape = tuple(edge_attr.shape) if isinstance(edge_attr, Tensor) else type(edge_attr).__name__
            wanted = f"there are {self.graph.edges} edges with {edge_dim} features"
            raise SizeError(f"edge_attr has shape {shape}, but {wanted}: pass (edges, edge_dim)")
        rows = rows if self.placement.selection is None else rows.index_select(0, self.placement.selection)
        return torch.cat([rows, self._loop_features(rows, fill, end)]) if self.placement.added_loops else rows

    def _loop_features(self, features: Tensor, fill: Fill, end: int) -> Tensor:
        """Return the features of added loops."""
        nodes, shape = self.placement.added_loops, (self.placement.added_loops, features.shape[1])
        if not isinstance(fill, str):
            return torch.as_tensor(fill, dtype=features.dtype).expand(shape)
        if fill not in REDUCTIONS:
            raise OperandError(f"fill_value={fill!r}: give a number, a tensor, or one of {', '.join(REDUCTIONS)}")
        index = self.endpoints[end, : len(features), None].expand_as(features)
        start = features.new_full((self.graph.shape[end], features.shape[1]), 1.0 if fill == "mul" else 0.0)
        return start.scatter_reduce(0, index, features, REDUCTIONS[fill], include_self=False)[:nodes]


@graph_break
def read_edges(graph: Any, size: tuple[int, int], add_self_loops: bool) -> Edges:
    """Read the edges of a graph; ``size`` is (sources, targets). Added loops come last, as in PyTorch Geometric."""
    source, loops = read_graph(graph, None, size), REPLACE_LOOPS if add_self_loops else KEEP_LOOPS
    return Edges(source, source.place(loops), source.endpoints(loops))
