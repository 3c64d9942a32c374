"""Aggregation of neighbour features at target nodes: sums, means, extremes and variances, named as in PyTorch Geometric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..api import einsum
from ..errors import UnsupportedError
from ..tensors.sparse_tensor import SparseTensor
from .features import Features
from .graphs import means, sums, zeros
from .neighbours import largest

Nodes = tuple[int, int]  # sources, targets
FLAT = 1e-5  # lower bound of the variance under the square root


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
    """Multiply the features by a matrix of the graph."""
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
