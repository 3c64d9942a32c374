"""Attention along edges one by one: for edges with features, and for the weights of attention themselves.

Equal edges have scores of their own here, so that the softmax goes over a list of edges, (edges, heads), O(edges) in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..api import einsum
from ..errors import OperandError, SizeError, UnsupportedError
from ..tensors.sparse_tensor import SparseTensor, beside_programs
from .edge_attention import by_heads
from .graphs import KEEP_LOOPS, REPLACE_LOOPS, EdgePlacement, GraphInput, read_graph

REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "min": "amin", "max": "amax", "mul": "prod"}
Fill = float | Tensor | str


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges that attention goes along: those of a graph, or those but self loops with one loop for each node."""

    graph: GraphInput
    placement: EdgePlacement
    endpoints: Tensor  # targets and sources (2, edges)

    def weights(self, source_scores: Tensor, target_scores: Tensor, edge_scores: Tensor | None, negative_slope: float) -> Tensor:
        """The softmax over each target's edges of ``leaky_relu`` of the scores' sums, (edges, heads)."""
        targets, sources = self.endpoints
        scores = source_scores[sources] + target_scores[targets]
        scores = functional.leaky_relu(scores if edge_scores is None else scores + edge_scores, negative_slope)
        index, nodes = targets[:, None].expand_as(scores), self.graph.shape[0]
        largest = scores.new_full((nodes, scores.shape[1]), float("-inf")).scatter_reduce(0, index, scores.detach(), "amax")
        exponentials = (scores - largest[targets]).exp()
        return exponentials / exponentials.new_zeros(nodes, exponentials.shape[1]).index_add(0, targets, exponentials)[targets]

    @beside_programs
    def matrix(self, weights: Tensor) -> SparseTensor:
        """The weights as a tensor (targets, sources, heads), those of equal edges summed."""
        heads, pattern = weights.shape[1], self.placement.pattern
        if self.placement.slots is not None:
            weights = weights.new_zeros(pattern.nnz, heads).index_add(0, self.placement.slots, weights)
        return SparseTensor(by_heads(pattern, heads), weights.flatten())

    def features(self, given: Tensor, edge_dim: int, fill: Fill, end: int) -> Tensor:
        """The features of the edges (edges, edge_dim), those of added loops among them.

        Args:
            given: the features of the graph's edges.
            edge_dim: how many there are; -1 for any number.
            fill: those of added loops: a number, a tensor, or how those of the edges at each node are reduced.
            end: at which end of edges that node is, 0 for targets.

        Raises:
            OperandError: no tensor of numbers, or an unknown reduction.
            SizeError: another shape.
            UnsupportedError: the graph is a matrix.
        """
        if isinstance(self.graph.source, SparseTensor):
            raise UnsupportedError("edge_attr beside an adjacency matrix, whose edges have no order: pass edge_index")
        rows = given[:, None] if isinstance(given, Tensor) and given.ndim == 1 else given
        if not isinstance(rows, Tensor) or rows.shape[:1] != (self.graph.edges,) or rows.ndim != 2 or edge_dim not in (-1, rows.shape[1]):
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            wanted = f"there are {self.graph.edges} edges with {edge_dim} features"
            raise SizeError(f"edge_attr has shape {shape}, but {wanted}: pass (edges, edge_dim)")
        rows = rows if self.placement.selection is None else rows.index_select(0, self.placement.selection)
        return torch.cat([rows, self._of_loops(rows, fill, end)]) if self.placement.added_loops else rows

    def _of_loops(self, features: Tensor, fill: Fill, end: int) -> Tensor:
        """The features of added loops."""
        nodes, shape = self.placement.added_loops, (self.placement.added_loops, features.shape[1])
        if not isinstance(fill, str):
            return torch.as_tensor(fill, dtype=features.dtype).expand(shape)
        if fill not in REDUCTIONS:
            raise OperandError(f"fill_value={fill!r}: give a number, a tensor, or one of {', '.join(REDUCTIONS)}")
        index = self.endpoints[end, : len(features), None].expand_as(features)
        start = features.new_full((self.graph.shape[end], features.shape[1]), 1.0 if fill == "mul" else 0.0)
        return start.scatter_reduce(0, index, features, REDUCTIONS[fill], include_self=False)[:nodes]


@beside_programs
def read_edges(graph: Any, size: tuple[int, int], add_self_loops: bool) -> Edges:
    """The edges of a graph between so many sources and targets, in PyTorch Geometric's order: added loops are the last ones."""
    source, loops = read_graph(graph, None, size), REPLACE_LOOPS if add_self_loops else KEEP_LOOPS
    return Edges(source, source.place(loops), source.endpoints(loops))


def weighted_sums(weights: SparseTensor, sources: Tensor) -> Tensor:
    """What arrives at targets, (targets, heads, channels), of features (sources, heads, channels)."""
    result: Tensor = einsum("ijh,jhc->ihc", weights, sources)
    return result
