"""Attention along edges: what arrives at each node, weighed by a softmax of scores over the edges to it.

The exponentials of all heads are one tensor (targets, sources, heads) that has the graph's own index arrays. Its gradient is
spelled out, as that of softmax needs few of the gradients of its parts, and nothing but the exponentials is kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..api import einsum, evaluate
from ..compute.gradients import transformed
from ..ir.format import Format
from ..ir.levels import Compressed, Dense
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor, beside_programs
from .remembering import remembered

BY_HEADS = Format((Dense(), Compressed(), Dense()))
SCORES = "where(s[j,h] + t[i,h] > 0, s[j,h] + t[i,h], slope * (s[j,h] + t[i,h]))"
EXPONENTIALS = f"E[i,j,h] = stored(A[i,j,h]) * exp({SCORES} - m[i,h])"
SLOPES = "Z[i,j,h] = stored(R[i,j,h]) * (R[i,j,h] - d[i,h]) * where(s[j,h] + t[i,h] > 0, 1, slope)"
SAMPLED = "R[i,j,h] = stored(A[i,j,h]) * (G[i,h,c] * X[j,h,c])"


@beside_programs
def attend(
    graph: SparseTensor,
    sources: Tensor,
    source_scores: Tensor,
    target_scores: Tensor,
    negative_slope: float,
    dropout: float,
    training: bool,
) -> Tensor:
    """What arrives at each target from its sources, weighed by the softmax of ``leaky_relu`` of their scores' sums.

    Args:
        graph: how many edges there are from each source to each target, (targets, sources) in CSR.
        sources: features (sources, heads, channels).
        source_scores, target_scores: (sources, heads), (targets, heads).
        negative_slope: of leaky_relu.
        dropout: the share of weights that is set to 0 where ``training``.

    Returns:
        (targets, heads, channels); 0 for a target without edges.
    """
    edges, counts = _edges_by_head(graph, source_scores.shape[1])
    dropout_mask = functional.dropout(torch.ones_like(edges.values), dropout) if dropout and training else None
    call = _AttentionCall(graph, edges, counts, dropout_mask, float(negative_slope))
    if transformed():
        return call.by_parts(sources, source_scores, target_scores)
    function: Any = _AttentionFunction
    result: Tensor = function.apply(call, sources, source_scores, target_scores)
    return result


def by_heads(pattern: Pattern, heads: int) -> Pattern:
    """The pattern of a graph in CSR with a value for each edge and head; it has the same index arrays."""
    wide: Pattern = pattern.remember(("by heads", heads), lambda: Pattern(BY_HEADS, (*pattern.shape, heads), ((), pattern.arrays[1], ())))
    return wide


def _edges_by_head(graph: SparseTensor, heads: int) -> tuple[SparseTensor, Tensor | None]:
    """A one for each edge and head, and how many edges these are, None where all are single ones; remembered with the graph."""

    def make() -> tuple[SparseTensor, Tensor | None]:
        known = by_heads(graph.pattern, heads)
        counts = None if bool((graph.values == 1).all()) else graph.values.repeat_interleave(heads)
        return SparseTensor(known, torch.ones(known.nnz, dtype=graph.dtype)), counts

    return remembered(graph.values, ("by heads", heads), make)


@dataclass(frozen=True, eq=False)
class _AttentionCall:
    """One call: what it reads besides tensors through which gradients flow."""

    graph: SparseTensor
    edges: SparseTensor
    counts: Tensor | None
    dropout_mask: Tensor | None  # what dropout multiplies weights by
    slope: float

    def exponentials(self, source_scores: Tensor, target_scores: Tensor) -> SparseTensor:
        """Those of the scores less the largest one of each target; what is subtracted changes no softmax, nor its gradient."""
        s, t = source_scores, target_scores
        shares: SparseTensor = evaluate(EXPONENTIALS, A=self.edges, s=s, t=t, m=self._largest(s.detach(), t.detach()), slope=self.slope)
        return shares if self.counts is None else shares.with_values(shares.values * self.counts)

    @torch.no_grad()
    def _largest(self, s: Tensor, t: Tensor) -> Tensor:
        """The largest score of each target and head: that of the largest sum, or, where leaky_relu falls, of the smallest one."""
        scores = functional.leaky_relu(self._over_edges(s) + t, self.slope)
        return scores if self.slope >= 0 else scores.maximum(functional.leaky_relu(t - self._over_edges(-s), self.slope))

    def _over_edges(self, s: Tensor) -> Tensor:
        maxima: Tensor = evaluate("m[i,h] stored max= stored(A[i,j]) * s[j,h]", A=self.graph, s=s)
        return maxima

    def dropped(self, exponentials: SparseTensor) -> SparseTensor:
        """Those that dropout keeps, which are then larger."""
        return exponentials if self.dropout_mask is None else exponentials.with_values(exponentials.values * self.dropout_mask)

    def by_parts(self, sources: Tensor, source_scores: Tensor, target_scores: Tensor) -> Tensor:
        """The result, with the gradients of each part: for gradients of gradients, and torch.func's transforms."""
        exponentials = self.exponentials(source_scores, target_scores)
        result: Tensor = einsum("ijh,jhc->ihc", self.dropped(exponentials), sources) / _totals(exponentials)[..., None]
        return result


def _totals(exponentials: SparseTensor) -> Tensor:
    """The sum of each target's exponentials; 1 where there is none."""
    totals: Tensor = einsum("ijh->ih", exponentials, format="dense")
    return totals.masked_fill(totals == 0, 1.0)


class _AttentionFunction(torch.autograd.Function):
    """``attend`` as a function of features and scores."""

    @staticmethod
    def forward(ctx: Any, call: _AttentionCall, *given: Tensor) -> Tensor:
        sources, s, t = (tensor.detach() for tensor in given)
        exponentials = call.exponentials(s, t)
        totals = _totals(exponentials)
        weighted_sums: Tensor = einsum("ijh,jhc->ihc", call.dropped(exponentials), sources)
        result = weighted_sums.div_(totals[..., None])
        ctx.call = call
        ctx.save_for_backward(*given, exponentials.values, totals, result)
        return result

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        call, (*given, exponentials, totals, result) = ctx.call, ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a gradient of this gradient may be asked for
            wanted = [tensor for tensor, need in zip(given, needed, strict=True) if need]
            gradients = iter(torch.autograd.grad(call.by_parts(*given), wanted, upstream, create_graph=True))
            return (None, *(next(gradients) if need else None for need in needed))
        shared = upstream / totals[..., None]
        E = call.edges.with_values(exponentials)
        of_sources = einsum("ijh,ihc->jhc", call.dropped(E), shared) if needed[0] else None
        if not (needed[1] or needed[2]):
            return None, of_sources, None, None
        slopes = _slopes(call, E, shared, result, *given)
        of_s = einsum("ijh->jh", slopes, format="dense") if needed[1] else None
        return None, of_sources, of_s, einsum("ijh->ih", slopes, format="dense") if needed[2] else None


def _slopes(call: _AttentionCall, E: SparseTensor, shared: Tensor, result: Tensor, sources: Tensor, s: Tensor, t: Tensor) -> SparseTensor:
    """The gradient of each edge's sum of scores.

    Of a softmax P and a result P @ X, that of the scores is ``P * (G @ X.T - d)``, where d, each row's sum of ``P * (G @ X.T)``,
    is that of ``G * (P @ X)``: no sums over edges are left.
    """
    sampled: SparseTensor = call.dropped(evaluate(SAMPLED, A=call.edges, G=shared, X=sources))
    d = (shared * result).sum(-1)
    slopes: SparseTensor = evaluate(SLOPES, R=sampled, d=d, s=s, t=t, slope=call.slope)
    return slopes.with_values(slopes.values.mul_(E.values))
