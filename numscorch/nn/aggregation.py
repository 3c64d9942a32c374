"""What arrives at nodes from their neighbours, aggregated: sums, means, extremes, variances, as PyTorch Geometric names them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..api import einsum
from ..errors import UnsupportedError
from ..tensors.sparse_tensor import SparseTensor
from .features import Features
from .graphs import means, sums, zeros
from .neighbours import largest

Nodes = tuple[int, int]  # sources, targets
FLAT = 1e-5  # the least variance of which a root is taken


def aggregation_names(layer: str, aggr: Any, known: Sequence[str]) -> tuple[str, ...]:
    """The names of the aggregations, whose results stand side by side.

    Raises:
        UnsupportedError: one isn't known.
    """
    names = tuple(aggr) if isinstance(aggr, list | tuple) else (aggr,)
    if not names or any(not isinstance(name, str) or name not in known for name in names):
        several = ", or a list of them" if len(known) > 2 else ""
        raise UnsupportedError(f"{layer} with aggr={aggr!r}: it takes {', '.join(map(repr, known))}{several}")
    return names


def aggregate(name: str, x: Features, graph: Any, nodes: Nodes) -> Features:
    """Features of sources (sources, channels) aggregated at targets, (targets, channels); 0 where none arrive.

    Raises:
        UnsupportedError: the graph is a matrix with other values than 1, and the aggregation neither a sum nor a mean.
    """
    return AGGREGATIONS[name](x, graph, nodes)


def _sum(x: Features, graph: Any, nodes: Nodes) -> Features:
    summed: Features = einsum("ij,jf->if", sums(graph, nodes, x.dtype), x)
    return summed


def _mean(x: Features, graph: Any, nodes: Nodes) -> Features:
    averaged: Features = einsum("ij,jf->if", means(graph, nodes, x.dtype), x)
    return averaged


def _min(x: Features, graph: Any, nodes: Nodes) -> Features:
    return -largest(-x, graph, nodes)


def _var(x: Features, graph: Any, nodes: Nodes) -> Tensor:
    zeros(graph, nodes, x.dtype)  # refuses weights
    return as_dense(_mean(x * x, graph, nodes)) - as_dense(_mean(x, graph, nodes)).square()


def _std(x: Features, graph: Any, nodes: Nodes) -> Tensor:
    """The gradient of a root has no end near 0: such features count as equal, as in PyTorch Geometric."""
    deviation = _var(x, graph, nodes).clamp(min=FLAT).sqrt()
    return deviation.masked_fill(deviation <= math.sqrt(FLAT), 0.0)


def as_dense(x: Features) -> Tensor:
    """Features as a dense tensor."""
    return x.to_dense() if isinstance(x, SparseTensor) else x


def side_by_side(parts: Sequence[Features]) -> Features:
    """The results of several aggregations, (targets, channels in all)."""
    return parts[0] if len(parts) == 1 else torch.cat([as_dense(part) for part in parts], -1)


AGGREGATIONS: dict[str, Callable[[Features, Any, Nodes], Features]] = {
    "mean": _mean,
    "max": largest,
    "min": _min,
    "sum": _sum,
    "add": _sum,
    "var": _var,
    "std": _std,
}
SUMS = ("add", "sum")
