"""Maximum aggregation of neighbour features, dense or sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..api import einsum
from ..ir.format import CSR
from ..tensors.graph_breaks import graph_break
from ..tensors.modes import as_numpy
from ..tensors.packing import pack
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .features import Features
from .graphs import zeros
from .remembering import remembered


@graph_break
def largest(x: Features, graph: Any, nodes: tuple[int, int]) -> Features:
    """Return the maximum of the source features at each target, or 0 for targets without edges; sparse for sparse features.

    Features that are not stored count as 0. For sparse features, a plan is cached per graph and feature pattern. It takes O(terms)
    time and memory, where a term is a pair of an edge and a stored feature of its source.
    """
    A = zeros(graph, nodes, x.dtype)
    if isinstance(x, SparseTensor):
        return _largest_of_stored(x.to(CSR), A)
    maxima: Tensor = einsum("ij,jk->ik", A, x, reduce="max_plus")
    empty_rows = A.pattern.remember("rows without entries", lambda: _empty(A.pattern))
    return maxima if empty_rows is None else maxima.masked_fill(empty_rows, 0.0)


def _empty(pattern: Pattern) -> Tensor | None:
    """Return a boolean column of the empty rows of a CSR matrix; None if there are none."""
    is_empty = pattern.arrays[1][0].diff() == 0
    return is_empty[:, None] if bool(is_empty.any()) else None


@dataclass(frozen=True, eq=False)
class _MaxPlan:
    """The terms of a maximum of sparse features, for one graph and one feature pattern."""

    pattern: Pattern  # pattern of the result
    terms: SparseTensor  # (result positions, feature positions), with a stored 0 for each term
    floor: Tensor | None  # lower bound of each result: 0 if a neighbour does not store the feature, else -inf; None if all are -inf


def _largest_of_stored(x: SparseTensor, A: SparseTensor) -> SparseTensor:
    """Return the maximum of CSR features; an entry is stored if a neighbour stores that feature."""
    plan = remembered(A.values, ("meeting", x.pattern), lambda: _max_plan(A, x))
    maxima: Tensor = einsum("pq,q->p", plan.terms, x.values, reduce="max_plus")
    return SparseTensor(plan.pattern, maxima if plan.floor is None else maxima.maximum(plan.floor))


def _max_plan(A: SparseTensor, x: SparseTensor) -> _MaxPlan:
    """List all pairs of an edge and a stored feature of its source, sorted by target and feature."""
    width, (pos, features) = x.shape[1], (array.long() for array in x.pattern.arrays[1])
    targets, sources = A.indices()
    stored = pos.diff()[sources]
    first = stored.cumsum(0) - stored  # offset of each edge's terms
    positions = torch.arange(int(stored.sum())) + (pos[sources] - first).repeat_interleave(stored)
    places, result_positions = torch.unique(targets.repeat_interleave(stored) * width + features[positions], return_inverse=True)
    rows = places // width
    pattern = pack(as_numpy(torch.stack([rows, places % width])), (A.shape[0], width), CSR)[0]
    terms = pack(as_numpy(torch.stack([result_positions, positions])), (len(places), x.nnz), CSR)[0]
    has_unstored = terms.arrays[1][0].diff() < A.pattern.arrays[1][0].diff()[rows]
    floor = torch.where(has_unstored, 0.0, float("-inf")).to(x.dtype) if bool(has_unstored.any()) else None
    return _MaxPlan(pattern, SparseTensor(terms, torch.zeros(terms.nnz, dtype=x.dtype)), floor)
