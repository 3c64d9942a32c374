"""Graph attention: each target sums its sources' features, weighted by a softmax of scores over its incoming edges.

The exponentials of all heads form one tensor (targets, sources, heads) that shares the graph's index arrays. An explicit backward
function replaces the gradients of the single operations; of the values per edge, it saves only the exponentials.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..api import einsum, evaluate
from ..ir.format import Format
from ..ir.levels import Compressed, Dense
from ..tensors.graph_breaks import graph_break
from ..tensors.modes import KernelFunction, in_transform, over_batches, saved_tensors
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .remembering import remembered

BY_HEADS = Format((Dense(), Compressed(), Dense()))
SCORES = "where(s[j,h] + t[i,h] > 0, s[j,h] + t[i,h], slope * (s[j,h] + t[i,h]))"
EXPONENTIALS = f"E[i,j,h] = stored(A[i,j,h]) * exp({SCORES} - m[i,h])"
SLOPES = "Z[i,j,h] = stored(R[i,j,h]) * (R[i,j,h] - d[i,h]) * where(s[j,h] + t[i,h] > 0, 1, slope)"
SAMPLED = "R[i,j,h] = stored(A[i,j,h]) * (G[i,h,c] * X[j,h,c])"


@graph_break
def attend(
    graph: SparseTensor,
    sources: Tensor,
    source_scores: Tensor,
    target_scores: Tensor,
    negative_slope: float,
    dropout: float,
    training: bool,
) -> Tensor:
    """Sum source features at each target, weighted by the softmax of ``leaky_relu(source score + target score)``.

    Args:
        graph: number of edges from each source to each target, (targets, sources) in CSR.
        sources: features (sources, heads, channels).
        source_scores, target_scores: shapes (sources, heads) and (targets, heads).
        negative_slope: slope of leaky_relu for negative arguments.
        dropout: dropout probability of the attention weights if ``training``.

    Returns:
        Features (targets, heads, channels); 0 for targets without edges.
    """
    edges, counts = _edges_by_head(graph, source_scores.shape[1])
    dropout_mask = functional.dropout(torch.ones_like(edges.values), dropout) if dropout and training else None
    call = _AttentionCall(graph, edges, counts, dropout_mask, float(negative_slope))
    if in_transform():
        return call.by_parts(sources, source_scores, target_scores)
    function: Any = _AttentionFunction
    return function.apply(call, sources, source_scores, target_scores)


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
class _AttentionCall:
    """The inputs of one call that are not differentiated."""

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
        """Apply the dropout mask."""
        return exponentials if self.dropout_mask is None else exponentials.with_values(exponentials.values * self.dropout_mask)

    def by_parts(self, sources: Tensor, source_scores: Tensor, target_scores: Tensor) -> Tensor:
        """Return the result as a composition of differentiable operations, for double backward and torch.func's transforms."""
        exponentials = self.exponentials(source_scores, target_scores)
        return einsum("ijh,jhc->ihc", self.dropped(exponentials), sources) / _totals(exponentials)[..., None]


def _totals(exponentials: SparseTensor) -> Tensor:
    """Return the sum of each target's exponentials, or 1 for targets without edges."""
    totals: Tensor = einsum("ijh->ih", exponentials, format="dense")
    return totals.masked_fill(totals == 0, 1.0)


class _AttentionFunction(KernelFunction):
    """:func:`attend` as an autograd function of features and scores."""

    @staticmethod
    def forward(ctx: Any, call: _AttentionCall, *inputs: Tensor) -> Tensor:
        sources, s, t = (tensor.detach() for tensor in inputs)
        exponentials = call.exponentials(s, t)
        totals = _totals(exponentials)
        weighted_sums: Tensor = einsum("ijh,jhc->ihc", call.dropped(exponentials), sources)
        result = weighted_sums.div_(totals[..., None])
        ctx.call = call
        ctx.save_for_backward(*inputs, exponentials.values, totals, result)
        return result

    @staticmethod
    @over_batches
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        call, (*inputs, exponentials, totals, result) = ctx.call, saved_tensors(ctx)
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # create_graph=True: the caller may differentiate this gradient
            wanted = [tensor for tensor, need in zip(inputs, needed, strict=True) if need]
            gradients = iter(torch.autograd.grad(call.by_parts(*inputs), wanted, upstream, create_graph=True))
            return (None, *(next(gradients) if need else None for need in needed))
        shared = upstream / totals[..., None]
        E = call.edges.with_values(exponentials)
        sources_gradient = einsum("ijh,ihc->jhc", call.dropped(E), shared) if needed[0] else None
        if not (needed[1] or needed[2]):
            return None, sources_gradient, None, None
        slopes = _slopes(call, E, shared, result, *inputs)
        s_gradient = einsum("ijh->jh", slopes, format="dense") if needed[1] else None
        return None, sources_gradient, s_gradient, einsum("ijh->ih", slopes, format="dense") if needed[2] else None


def _slopes(call: _AttentionCall, E: SparseTensor, shared: Tensor, result: Tensor, sources: Tensor, s: Tensor, t: Tensor) -> SparseTensor:
    """Return the gradient of each edge's sum of scores.

    For a softmax P, a result P @ X and its gradient G, the gradient of the scores is ``P * (G @ X.T - d)``. Here d is each row's sum
    of ``P * (G @ X.T)``, which equals the row's sum of ``G * (P @ X)`` and so needs no sum over edges.
    """
    sampled: SparseTensor = call.dropped(evaluate(SAMPLED, A=call.edges, G=shared, X=sources))
    d = (shared * result).sum(-1)
    slopes: SparseTensor = evaluate(SLOPES, R=sampled, d=d, s=s, t=t, slope=call.slope)
    return slopes.with_values(slopes.values.mul_(E.values))
