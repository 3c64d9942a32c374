"""Graph attention: each target sums its sources' features, weighted by a softmax of scores over its incoming edges.

The exponentials of all heads form one tensor (targets, sources, heads) that shares the graph's index arrays. An explicit backward
function replaces the gradients of the single operations; the exponentials are the only values per edge that it saves.

If edge features are given or attention weights are returned, edges stay a list, in which parallel edges have separate scores. The softmax
is then over a list (edges, heads), with O(edges) memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import OperandError, SizeError, UnsupportedError
from ..interface.api import einsum, evaluate
from ..ir.format import Format
from ..ir.levels import Compressed, Dense
from ..programs.autograd import Differentiable, gradients_by_autograd, through
from ..programs.operands import is_plain_mode
from ..tensors.graph_breaks import graph_break, traced
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .graph_inputs import KEEP_LOOPS, REPLACE_LOOPS, EdgeSelection, GraphInput, read_graph, remembered, select_edges
from .graphs import multiplicities

BY_HEADS = Format((Dense(), Compressed(), Dense()))
EXPONENTIALS = "E[i,j,h] = stored(A[i,j,h]) * exp(where(s[j,h] + t[i,h] > 0, s[j,h] + t[i,h], slope * (s[j,h] + t[i,h])) - m[i,h])"
SLOPES = "Z[i,j,h] = stored(R[i,j,h]) * (R[i,j,h] - d[i,h]) * where(s[j,h] + t[i,h] > 0, 1, slope)"
SAMPLED = "R[i,j,h] = stored(A[i,j,h]) * (G[i,h,c] * X[j,h,c])"
FILLS = {"add": "sum", "sum": "sum", "mean": "mean", "min": "amin", "max": "amax", "mul": "prod"}
Fill = float | Tensor | str


def attend(
    graph: SparseTensor, sources: Tensor, source_scores: Tensor, target_scores: Tensor, negative_slope: float, dropout: float
) -> Tensor:
    """Sum source features at each target, weighted by the softmax of ``leaky_relu(source score + target score)``.

    Args:
        graph: number of edges from each source to each target, (targets, sources) in CSR.
        sources: features (sources, heads, channels).
        source_scores, target_scores: shapes (sources, heads) and (targets, heads).
        negative_slope: slope of leaky_relu for negative arguments.
        dropout: dropout probability of the attention weights.

    Returns:
        Features (targets, heads, channels); 0 for targets without edges.
    """
    edges, counts = _edges_by_head(graph, source_scores.shape[1])
    dropout_mask = functional.dropout(torch.ones_like(edges.values), dropout) if dropout else None
    call = _AttentionCall(graph, edges, counts, dropout_mask, float(negative_slope))
    if not is_plain_mode():
        return call.by_parts(sources, source_scores, target_scores)
    return through(call, (sources, source_scores, target_scores))


def _attended_shape(graph: Any, sources: Any, source_scores: Any, target_scores: Any, *options: Any) -> tuple[Any, ...]:
    return (target_scores[0], *sources[1:])


@traced("nn.attended", _attended_shape, dropout=6)
def attended_features(
    graph: Any,
    sources: Tensor,
    source_scores: Tensor,
    target_scores: Tensor,
    targets: int | None,
    negative_slope: float,
    dropout: float,
    add_self_loops: bool,
) -> Tensor:
    """Call :func:`attend` with a graph in any form; ``targets`` is the number of targets, or None if sources are the targets."""
    nodes = sources.shape[0], sources.shape[0] if targets is None else targets
    counts = multiplicities(graph, nodes, sources.dtype, add_self_loops)
    return attend(counts, sources, source_scores, target_scores, negative_slope, dropout)


def by_heads(pattern: Pattern, heads: int) -> Pattern:
    """Return the pattern (targets, sources, heads) of a CSR pattern (targets, sources); both share their index arrays."""
    return pattern.remember(("by heads", heads), lambda: Pattern(BY_HEADS, (*pattern.shape, heads), ((), pattern.arrays[1], ())))


def _edges_by_head(graph: SparseTensor, heads: int) -> tuple[SparseTensor, Tensor | None]:
    """Return ones at each edge and head, and the edges' multiplicities (None if all are 1); cached with the graph."""

    def make() -> tuple[SparseTensor, Tensor | None]:
        pattern = by_heads(graph.pattern, heads)
        counts = None if bool((graph.values == 1).all()) else graph.values.repeat_interleave(heads)
        return SparseTensor(pattern, torch.ones(pattern.nnz, dtype=graph.dtype)), counts

    return remembered(graph.values, ("by heads", heads), make)


@dataclass(frozen=True, eq=False)
class _AttentionCall(Differentiable):
    """:func:`attend` as a function of features and scores; the fields are not differentiated."""

    graph: SparseTensor
    edges: SparseTensor
    counts: Tensor | None
    dropout_mask: Tensor | None  # factor of each attention weight: 0 or 1 / (1 - dropout)
    slope: float

    def exponentials(self, source_scores: Tensor, target_scores: Tensor) -> SparseTensor:
        """Return exp(score - maximum of the target's scores); the shift changes neither the softmax nor its gradient."""
        s, t = source_scores, target_scores
        shares: SparseTensor = evaluate(EXPONENTIALS, A=self.edges, s=s, t=t, m=self._largest(s.detach(), t.detach()), slope=self.slope)
        return shares if self.counts is None else shares.with_values(shares.values * self.counts)

    @torch.no_grad()
    def _largest(self, s: Tensor, t: Tensor) -> Tensor:
        """Return the maximum score of each target and head.

        leaky_relu increases for slopes of 0 or more, so the largest sum gives the maximum; otherwise the smallest sum may give it.
        """
        scores = functional.leaky_relu(self._over_edges(s) + t, self.slope)
        return scores if self.slope >= 0 else scores.maximum(functional.leaky_relu(t - self._over_edges(-s), self.slope))

    def _over_edges(self, s: Tensor) -> Tensor:
        return evaluate("m[i,h] stored max= stored(A[i,j]) * s[j,h]", A=self.graph, s=s)

    def dropped(self, exponentials: SparseTensor) -> SparseTensor:
        return exponentials if self.dropout_mask is None else exponentials.with_values(exponentials.values * self.dropout_mask)

    def by_parts(self, sources: Tensor, source_scores: Tensor, target_scores: Tensor) -> Tensor:
        """Return the result as a composition of differentiable operations, for double backward, forward mode and torch.func."""
        exponentials = self.exponentials(source_scores, target_scores)
        return einsum("ijh,jhc->ihc", self.dropped(exponentials), sources) / _totals(exponentials)[..., None]

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The result; the gradients need the exponentials, their totals and the result."""
        sources, s, t = (tensor.detach() for tensor in values)
        exponentials = self.exponentials(s, t)
        totals = _totals(exponentials)
        result: Tensor = einsum("ijh,jhc->ihc", self.dropped(exponentials), sources).div_(totals[..., None])
        return result, exponentials.values, totals, result

    def gradients(
        self, values: Sequence[Tensor], saved: Sequence[Tensor], upstream: Tensor, needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        if torch.is_grad_enabled():
            return gradients_by_autograd(lambda views: self.by_parts(*views), values, upstream, needed)
        exponentials, totals, result = saved
        shared = upstream / totals[..., None]
        E = self.edges.with_values(exponentials)
        sources_gradient = einsum("ijh,ihc->jhc", self.dropped(E), shared) if needed[0] else None
        if not (needed[1] or needed[2]):
            return sources_gradient, None, None
        # The gradient of a softmax P is P * (G @ X.T - d), where G is the gradient of the result P @ X, and d is the row sum of
        # P * (G @ X.T). Since d equals the row sum of G * (P @ X), it needs no sum over edges.
        sources, s, t = values
        sampled: SparseTensor = self.dropped(evaluate(SAMPLED, A=self.edges, G=shared, X=sources))
        slopes: SparseTensor = evaluate(SLOPES, R=sampled, d=(shared * result).sum(-1), s=s, t=t, slope=self.slope)
        slopes = slopes.with_values(slopes.values.mul_(E.values))
        s_gradient = einsum("ijh->jh", slopes, format="dense") if needed[1] else None
        return sources_gradient, s_gradient, einsum("ijh->ih", slopes, format="dense") if needed[2] else None


def _totals(exponentials: SparseTensor) -> Tensor:
    """Return the sum of each target's exponentials, or 1 for targets without edges."""
    totals: Tensor = einsum("ijh->ih", exponentials, format="dense")
    return totals.masked_fill(totals == 0, 1.0)


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a graph, either unchanged or with all self loops replaced by one loop per node."""

    graph: GraphInput
    loops: str
    selection: EdgeSelection
    targets: Tensor
    sources: Tensor

    def weights(self, source_scores: Tensor, target_scores: Tensor, edge_scores: Tensor | None, negative_slope: float) -> Tensor:
        """Return the softmax of ``leaky_relu(sum of scores)`` over the edges of each target, (edges, heads)."""
        targets = self.targets
        scores = source_scores[self.sources] + target_scores[targets]
        scores = functional.leaky_relu(scores if edge_scores is None else scores + edge_scores, negative_slope)
        index, nodes = targets[:, None].expand_as(scores), self.graph.shape[0]
        largest = scores.new_full((nodes, scores.shape[1]), float("-inf")).scatter_reduce(0, index, scores.detach(), "amax")
        exponentials = (scores - largest[targets]).exp()
        return exponentials / exponentials.new_zeros(nodes, exponentials.shape[1]).index_add(0, targets, exponentials)[targets]

    @graph_break
    def matrix(self, weights: Tensor) -> SparseTensor:
        """Return the weights as a tensor (targets, sources, heads), summed over parallel edges."""
        placement = self.graph.place(self.loops)
        return SparseTensor(by_heads(placement.pattern, weights.shape[1]), placement.summed(weights).flatten())

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
            raise SizeError(
                f"edge_attr has shape {shape}, but there are {self.graph.edges} edges with {edge_dim} features: pass (edges, edge_dim)"
            )
        rows, added = self.selection.of(rows), self.selection.added
        return rows if added is None else torch.cat([rows, self._loop_features(rows, len(added), fill, end)])

    def _loop_features(self, features: Tensor, nodes: int, fill: Fill, end: int) -> Tensor:
        if not isinstance(fill, str):
            return torch.as_tensor(fill, dtype=features.dtype).expand(nodes, features.shape[1])
        if fill not in FILLS:
            raise OperandError(f"fill_value={fill!r}: give a number, a tensor, or one of {', '.join(FILLS)}")
        index = (self.targets, self.sources)[end][: len(features), None].expand_as(features)
        start = features.new_full((self.graph.shape[end], features.shape[1]), 1.0 if fill == "mul" else 0.0)
        return start.scatter_reduce(0, index, features, FILLS[fill], include_self=False)[:nodes]


@graph_break
def read_edges(graph: Any, size: tuple[int, int], add_self_loops: bool, checks_nodes: bool = True) -> Edges:
    """Read the edges of a graph; ``size`` is (sources, targets). Added loops come last, as in PyTorch Geometric."""
    source, loops = read_graph(graph, None, size, checks_nodes).by_rows(), REPLACE_LOOPS if add_self_loops else KEEP_LOOPS
    endpoints = source.endpoints()
    selection = select_edges(endpoints, min(source.shape), loops)
    return Edges(source, loops, selection, *map(selection.ends, endpoints))
