"""Base class of graph convolutions, and aggregation of neighbour features, named as in PyTorch Geometric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..api import einsum
from ..errors import UnsupportedError
from ..ir.format import CSR
from ..tensors.graph_breaks import graph_break
from ..tensors.modes import as_numpy
from ..tensors.packing import pack
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .features import Features, checked_pair, folded, size_of, unfolded
from .graph_inputs import TO_TARGET, check_flow, directed, is_sharded, remembered, stated_size
from .graphs import means, sums, zeros

Nodes = tuple[int, int]  # sources, targets
FLAT = 1e-5  # lower bound of the variance under the square root


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


def _largest_of_stored(x: SparseTensor, A: SparseTensor) -> SparseTensor:
    """Return the maximum of CSR features; an entry is stored if a neighbour stores that feature."""
    pattern, terms, floor = remembered(A.values, ("meeting", x.pattern), lambda: _max_plan(A, x))
    maxima: Tensor = einsum("pq,q->p", terms, x.values, reduce="max_plus")
    return SparseTensor(pattern, maxima if floor is None else maxima.maximum(floor))


def _max_plan(A: SparseTensor, x: SparseTensor) -> tuple[Pattern, SparseTensor, Tensor | None]:
    """List all pairs of an edge and a stored feature of its source, sorted by target and feature.

    Returns:
        the pattern of the result; the terms (result positions, feature positions), with a stored 0 for each term; and the lower bound of
        each result, 0 if a neighbour does not store the feature, else -inf, or None if all are -inf.
    """
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
    return pattern, SparseTensor(terms, torch.zeros(terms.nnz, dtype=x.dtype)), floor


def aggregation_names(layer: str, aggr: Any, supported: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the aggregations, whose results the layer concatenates.

    Raises:
        UnsupportedError: a name is unknown.
    """
    names = tuple(aggr) if isinstance(aggr, list | tuple) else (aggr,)
    if not names or any(not isinstance(name, str) or name not in supported for name in names):
        several = ", or a list of them" if len(supported) > 2 else ""
        raise UnsupportedError(f"{layer} with aggr={aggr!r}: it takes {', '.join(map(repr, supported))}{several}")
    return names


def _product(matrix: Callable[..., SparseTensor], x: Features, graph: Any, nodes: Nodes) -> Features:
    return einsum("ij,jf->if", matrix(graph, nodes, x.dtype), x)


def _var(x: Features, graph: Any, nodes: Nodes) -> Tensor:
    zeros(graph, nodes, x.dtype)  # raises UnsupportedError for weighted graphs
    return as_dense(_product(means, x * x, graph, nodes)) - as_dense(_product(means, x, graph, nodes)).square()


def _std(x: Features, graph: Any, nodes: Nodes) -> Tensor:
    """Return the standard deviation; variances up to ``FLAT`` give 0, as in PyTorch Geometric.

    The bound keeps the gradient of the square root finite.
    """
    deviation = _var(x, graph, nodes).clamp(min=FLAT).sqrt()
    return deviation.masked_fill(deviation <= math.sqrt(FLAT), 0.0)


def as_dense(x: Features) -> Tensor:
    """Convert features to a dense tensor."""
    return x.to_dense() if isinstance(x, SparseTensor) else x


# Functions of source features (sources, channels) that return features of the targets, (targets, channels), 0 without edges. All but sums
# and means raise UnsupportedError for matrices with values other than 1.
AGGREGATIONS: dict[str, Callable[[Features, Any, Nodes], Features]] = {
    "mean": partial(_product, means),
    "max": largest,
    "min": lambda x, graph, nodes: -largest(-x, graph, nodes),
    "sum": partial(_product, sums),
    "add": partial(_product, sums),
    "var": _var,
    "std": _std,
}
SUMS = ("add", "sum")


class Convolution(torch.nn.Module):
    """Base class of graph convolutions, with the supported arguments of PyTorch Geometric's MessagePassing.

    Args:
        aggr, flow, node_dim: see the subclasses.
        supported: names of the supported aggregations.

    Raises:
        UnsupportedError: the aggregation or the direction is unknown.
    """

    def __init__(self, aggr: Any, flow: str, node_dim: int, supported: Sequence[str]):
        super().__init__()
        layer = type(self).__name__
        self.aggr, self._aggregations = aggr, aggregation_names(layer, aggr, supported)
        check_flow(layer, flow)
        self.flow, self.node_dim = flow, node_dim

    def _read(
        self, x: Any, graph: Any, channels: tuple[int, int], size: Sequence[int | None] | None, node_dim: int | None
    ) -> tuple[Features, Features | None, Any, Nodes]:
        """Return the features of sources and of targets, the graph with its edges from sources to targets, and the numbers of both.

        Of a graph that is distributed over ranks, the features are those of this rank's sources and targets.
        """
        if is_sharded(graph):
            if not isinstance(x, torch.Tensor):
                raise UnsupportedError(f"{self} with a graph that is distributed over ranks takes the features of this rank's nodes")
            directed(graph, self.flow)  # refuses other directions
            x, graph = graph.with_halo(x)
        sources, targets = checked_pair(x, channels, self, node_dim)
        if self.flow != TO_TARGET and sources is not targets:
            raise UnsupportedError(
                f"{self} with flow={self.flow!r} and separate sources and targets: swap them, and pass edge_index.flip(0)"
            )
        rows = None if targets is None else folded(targets, self.node_dim)
        nodes = size_of(folded(sources, self.node_dim), rows, size, stated_size(graph))
        return sources, targets, directed(graph, self.flow), nodes

    def _aggregate(self, sources: Features, graph: Any, nodes: tuple[int, int]) -> Features:
        """Aggregate the source features at the targets; concatenate the results of several aggregations."""
        x = folded(sources, self.node_dim)
        parts = [unfolded(AGGREGATIONS[name](x, graph, nodes), sources, self.node_dim) for name in self._aggregations]
        return parts[0] if len(parts) == 1 else torch.cat(list(map(as_dense, parts)), -1)
