"""The largest of what neighbours send, of dense and of sparse features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..api import einsum
from ..ir.format import CSR
from ..tensors.packing import pack
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor, beside_programs
from .features import Features
from .graphs import zeros
from .remembering import remembered


@beside_programs
def largest(x: Features, graph: Any, nodes: tuple[int, int]) -> Features:
    """The largest feature that arrives at each target; 0 where none does. Of sparse features, it is sparse.

    Features that aren't stored are 0, and take part. Which stored ones meet at a target is found once for a graph and a pattern
    of features, O(terms) in time and memory: a term is an edge and a feature that its source stores.
    """
    A = zeros(graph, nodes, x.dtype)
    if isinstance(x, SparseTensor):
        return _largest_of_stored(x.to(CSR), A)
    maxima: Tensor = einsum("ij,jk->ik", A, x, reduce="max_plus")
    empty_rows = A.pattern.remember("rows without entries", lambda: _empty(A.pattern))
    return maxima if empty_rows is None else maxima.masked_fill(empty_rows, 0.0)


def _empty(pattern: Pattern) -> Tensor | None:
    """Which rows of a CSR matrix store nothing, as a column; None where each one stores something."""
    is_empty = pattern.arrays[1][0].diff() == 0
    return is_empty[:, None] if bool(is_empty.any()) else None


@dataclass(frozen=True, eq=False)
class _MaxPlan:
    """Which stored features of sources meet at which of the result's."""

    pattern: Pattern  # the result's
    terms: SparseTensor  # a stored 0 where a position of the result and one of the features meet
    floor: Tensor | None  # the least a result can be: 0 where a neighbour doesn't store the feature, -inf elsewhere


def _largest_of_stored(x: SparseTensor, A: SparseTensor) -> SparseTensor:
    """The largest of features in CSR, which have a result wherever a neighbour stores one."""
    plan = remembered(A.values, ("meeting", x.pattern), lambda: _max_plan(A, x))
    maxima: Tensor = einsum("pq,q->p", plan.terms, x.values, reduce="max_plus")
    return SparseTensor(plan.pattern, maxima if plan.floor is None else maxima.maximum(plan.floor))


def _max_plan(A: SparseTensor, x: SparseTensor) -> _MaxPlan:
    """Every pair of an edge and a feature of its source, sorted by target and feature."""
    width, (pos, features) = x.shape[1], (array.long() for array in x.pattern.arrays[1])
    targets, sources = A.indices()
    stored = pos.diff()[sources]
    first = stored.cumsum(0) - stored  # of each edge's terms
    positions = torch.arange(int(stored.sum())) + (pos[sources] - first).repeat_interleave(stored)
    places, result_positions = torch.unique(targets.repeat_interleave(stored) * width + features[positions], return_inverse=True)
    rows = places // width
    pattern = pack(torch.stack([rows, places % width]).numpy(), (A.shape[0], width), CSR)[0]
    terms = pack(torch.stack([result_positions, positions]).numpy(), (len(places), x.nnz), CSR)[0]
    has_unstored = terms.arrays[1][0].diff() < A.pattern.arrays[1][0].diff()[rows]
    floor = torch.where(has_unstored, 0.0, float("-inf")).to(x.dtype) if bool(has_unstored.any()) else None
    return _MaxPlan(pattern, SparseTensor(terms, torch.zeros(terms.nnz, dtype=x.dtype)), floor)
