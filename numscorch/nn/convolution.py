"""Base of graph convolutions: node features, linear layers that may take their size from the first input, and aggregation of neighbours.

Features are dense or sparse, and either one tensor for all nodes or a pair for sources and targets. Arguments and aggregations are named
as in PyTorch Geometric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter, is_lazy

from ..errors import SizeError, UnsupportedError
from ..interface.api import einsum
from ..ir.format import CSR
from ..programs.gradients import attached
from ..tensors.graph_breaks import graph_break, traced
from ..tensors.modes import as_numpy
from ..tensors.packing import pack
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .graph_inputs import TO_TARGET, check_flow, directed, is_sharded, remembered, stated_size
from .graphs import edge_sum, is_seldom_used, means, sums, zeros
from .weights import check_dtype

Draw = Callable[[torch.nn.Linear], None]
Features = Tensor | SparseTensor
Nodes = tuple[int, int]  # sources, targets
LAZY = -1  # placeholder of a size that the first input sets
FLAT = 1e-5  # lower bound of the variance under the square root

linear: Callable[..., Tensor] = functional.linear  # also takes sparse features
_attached = graph_break(attached)


def draw_glorot(layer: torch.nn.Linear) -> None:
    """Draw the weights of a layer without bias with Glorot and Bengio's uniform initialization."""
    torch.nn.init.xavier_uniform_(layer.weight)


class LazyLinear(torch.nn.Linear):
    """A torch.nn.Linear of unknown input size; :meth:`materialize` turns it into a plain torch.nn.Linear.

    Its state dict can be saved and loaded before and after materialization.

    >>> layer = LazyLinear(3, bias=False)
    >>> layer.materialize(2)
    >>> layer
    Linear(in_features=2, out_features=3, bias=False)
    """

    def __init__(self, out_features: int, bias: bool = True, draw: Draw = torch.nn.Linear.reset_parameters):
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self._draw = LAZY, out_features, draw
        self.weight = UninitializedParameter()
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros(out_features)) if bias else None)

    def materialize(self, in_features: int) -> None:
        """Set the input size, become a plain layer, and draw the weights."""
        self._become(in_features)
        self._draw(self)

    def reset_parameters(self) -> None:
        """Do nothing: the weights do not exist yet."""

    def _become(self, in_features: int) -> None:
        weight: Any = self.weight
        weight.materialize((self.out_features, in_features))
        self.in_features = in_features
        object.__setattr__(self, "__class__", torch.nn.Linear)

    _save_to_state_dict = LazyModuleMixin._save_to_state_dict  # saves weights without values, too

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(f"{prefix}weight")
        if weight is not None and not is_lazy(weight) and weight.ndim == 2:
            self._become(int(weight.shape[1]))
        torch.nn.Linear._load_from_state_dict(self, state_dict, prefix, *args)  # _become changed the class


def projection(in_features: int, out_features: int, bias: bool, draw: Draw = torch.nn.Linear.reset_parameters) -> torch.nn.Linear:
    """Make a linear layer, lazy if ``in_features`` is -1; ``draw`` initializes its weights."""
    if in_features == LAZY:
        return LazyLinear(out_features, bias, draw)
    layer = torch.nn.Linear(in_features, out_features, bias)
    draw(layer)
    return layer


def materialize(layer: torch.nn.Module | None, in_features: int) -> None:
    """Materialize a lazy layer with its input size; ignore other layers."""
    if isinstance(layer, LazyLinear):
        layer.materialize(in_features)


def check_channels(layer: str, **channels: int) -> None:
    """Check that sizes are positive; input sizes may be -1.

    Raises:
        SizeError: a size is not positive.
    """
    for name, size in channels.items():
        is_integer = hasattr(size, "__index__")  # of NumPy and torch, too
        if not is_integer or (size < 1 and not (size == LAZY and name in ("in_channels", "sources", "targets", "edge_dim"))):
            raise SizeError(f"{layer} with {name}={size}: give a positive integer, or -1 for a size that the first input sets")


def checked_features(x: Any, channels: int, layer: torch.nn.Module, name: str = "x", node_dim: int | None = None) -> Features:
    """Check and return node features (nodes, channels), dense or sparse; -1 allows any number of channels.

    With a ``node_dim``, dense features may have more than 2 dimensions: nodes are along ``node_dim``, channels along the last one.

    Raises:
        SizeError: the shape does not match.
        UnsupportedError: ``x`` is not a tensor, or its data type differs from the weights'.
    """
    if not isinstance(x, Tensor | SparseTensor):
        raise UnsupportedError(f"{name} is {type(x).__name__}: {layer} takes a tensor of features, of shape (nodes, {channels})")
    is_static = x.ndim > 2 and node_dim is not None and not isinstance(x, SparseTensor) and x.layout is torch.strided
    if (x.ndim != 2 and not is_static) or (channels != LAZY and x.shape[-1] != channels):
        raise SizeError(f"{name} has shape {tuple(x.shape)}, but {layer} takes (nodes, {'channels' if channels == LAZY else channels})")
    if node_dim is not None and (not -x.ndim <= node_dim < x.ndim or node_dim % x.ndim == x.ndim - 1):
        raise SizeError(
            f"{name} has shape {tuple(x.shape)}, so node_dim={node_dim} of {layer} cannot be the dimension of the nodes: "
            "give a dimension before the last one, which holds the channels"
        )
    if (weight := next(layer.parameters(), None)) is not None:
        check_dtype(layer, weight, x, name)
    return x if isinstance(x, SparseTensor) or x.layout is torch.strided else _attached(x)


def checked_pair(x: Any, channels: Sequence[int], layer: torch.nn.Module, node_dim: int | None = None) -> tuple[Features, Features | None]:
    """Check and return the features of sources and of targets; without a pair, both are the same object."""
    if not isinstance(x, tuple | list):
        features = checked_features(x, channels[0], layer, node_dim=node_dim)
        return features, features
    if len(x) != 2:
        raise SizeError(f"x has {len(x)} parts, but {layer} takes features, or a pair (source features, target features)")
    sources = checked_features(x[0], channels[0], layer, "x[0]", node_dim)
    return sources, None if x[1] is None else checked_features(x[1], channels[1], layer, "x[1]", node_dim)


def folded(x: Features, node_dim: int) -> Features:
    """Move the node dimension first and flatten the other dimensions.

    >>> folded(torch.zeros(5, 3, 4), -2).shape
    torch.Size([3, 20])
    """
    return x if x.ndim == 2 or isinstance(x, SparseTensor) else x.movedim(node_dim, 0).flatten(1)


def unfolded(x: Features, like: Features, node_dim: int) -> Features:
    """Invert :func:`folded`; ``like`` has the original shape except for the number of nodes."""
    if like.ndim == 2 or isinstance(x, SparseTensor) or isinstance(like, SparseTensor):
        return x
    return x.unflatten(1, like.movedim(node_dim, 0).shape[1:]).movedim(0, node_dim)


def size_of(
    sources: Features, targets: Features | None, size: Sequence[int | None] | None, of_graph: Sequence[int | None] | None = None
) -> tuple[int, int]:
    """Return the numbers of sources and targets.

    The number of targets comes from the target features, else ``size``, else the graph, else it equals the number of sources.

    Raises:
        SizeError: ``size`` disagrees with the features.
    """
    if isinstance(size, Tensor) or (size is not None and len(size) != 2):
        given = f"a tensor of shape {tuple(size.shape)}" if isinstance(size, Tensor) else tuple(size)
        raise SizeError(f"size is {given}: pass (number of sources, number of targets); weights belong in ns.adj_t(edge_index, weights)")
    counts = (None, None) if size is None else tuple(size)
    rows = sources.shape[0], None if targets is None else targets.shape[0]
    for kind, length, count in zip(("sources", "targets"), rows, counts, strict=True):
        if length is not None and count is not None and length != count:
            raise SizeError(f"size={counts} gives {count} {kind}, but there are features of {length}: leave size out, or correct it")
    candidates = (rows[1], counts[1], None if of_graph is None else of_graph[1], rows[0])
    return rows[0], next(count for count in candidates if count is not None)


def largest(x: Features, graph: Any, nodes: tuple[int, int]) -> Features:
    """Return the maximum of the source features at each target, or 0 for targets without edges; sparse for sparse features.

    Features that are not stored count as 0. For sparse features, a plan is cached per graph and feature pattern. The plan takes
    O(terms) time and memory, where a term is a pair of an edge and a stored feature of its source.
    """
    A = zeros(graph, nodes, x.dtype)
    if isinstance(x, SparseTensor):  # an entry is stored if a neighbour stores that feature
        stored = x.to(CSR)
        pattern, terms, floor = remembered(A.values, ("meeting", stored.pattern), lambda: _max_plan(A, stored))
        maxima: Tensor = einsum("pq,q->p", terms, stored.values, reduce="max_plus")
        return SparseTensor(pattern, maxima if floor is None else maxima.maximum(floor))
    maxima = einsum("ij,jk->ik", A, x, reduce="max_plus")
    empty_rows = A.pattern.remember("rows without entries", lambda: (A.pattern.arrays[1][0].diff() == 0).nonzero().flatten())
    return maxima.index_fill(0, empty_rows, 0.0) if len(empty_rows) else maxima


def _max_plan(A: SparseTensor, x: SparseTensor) -> tuple[Pattern, SparseTensor, Tensor | None]:
    """List all pairs of an edge and a stored feature of its source, sorted by target and feature.

    Returns:
        the pattern of the result; a matrix (result positions, feature positions) that stores a 0 for each term; and a lower bound for
        each result: 0 if a neighbour does not store the feature, else -inf. If all bounds are -inf, None takes their place.
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


def _product(matrix: Callable[..., SparseTensor], x: Features, graph: Any, nodes: Nodes) -> Features:
    return einsum("ij,jf->if", matrix(graph, nodes, x.dtype), x)


def _sum(x: Any, graph: Any, nodes: Nodes) -> Features:
    return edge_sum(x, graph, nodes) if is_seldom_used(graph, x) else _product(sums, x, graph, nodes)


def _mean(x: Any, graph: Any, nodes: Nodes) -> Features:
    return edge_sum(x, graph, nodes, divides=True) if is_seldom_used(graph, x) else _product(means, x, graph, nodes)


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


# Functions of source features (sources, channels) that return target features (targets, channels); targets without edges get 0. Functions
# other than sums and means raise UnsupportedError for matrices with values other than 1.
AGGREGATIONS: dict[str, Callable[[Features, Any, Nodes], Features]] = {
    "mean": _mean,
    "max": largest,
    "min": lambda x, graph, nodes: -largest(-x, graph, nodes),
    "sum": _sum,
    "add": _sum,
    "var": _var,
    "std": _std,
}
SUMS = ("add", "sum")


@traced("nn.aggregate", lambda name, x, graph, targets: (x[0] if targets is None else targets, x[1]))
def aggregate(name: str, x: Features, graph: Any, targets: int | None) -> Features:
    """Aggregate source features at each target; ``targets`` is the number of targets, or None if sources are the targets."""
    return AGGREGATIONS[name](x, graph, (x.shape[0], x.shape[0] if targets is None else targets))


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
        layer, names = type(self).__name__, tuple(aggr) if isinstance(aggr, list | tuple) else (aggr,)
        if not names or any(not isinstance(name, str) or name not in supported for name in names):
            several = ", or a list of them" if len(supported) > 2 else ""
            raise UnsupportedError(f"{layer} with aggr={aggr!r}: it takes {', '.join(map(repr, supported))}{several}")
        check_flow(layer, flow)
        self.aggr, self.flow, self.node_dim, self._aggregations = aggr, flow, node_dim, names  # their results are concatenated

    def _read(
        self, x: Any, graph: Any, channels: tuple[int, int], size: Sequence[int | None] | None, node_dim: int | None
    ) -> tuple[Features, Features | None, Any, Nodes]:
        """Return the features of sources and of targets, the graph with edges from sources to targets, and the numbers of nodes.

        If the graph is distributed over ranks, each rank passes the features of its own sources and targets.
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
        return sources, targets, directed(graph, self.flow), size_of(folded(sources, self.node_dim), rows, size, stated_size(graph))

    def _aggregate(self, sources: Features, graph: Any, nodes: tuple[int, int]) -> Features:
        """Aggregate the source features at the targets; concatenate the results of several aggregations."""
        x, targets = folded(sources, self.node_dim), None if nodes[0] == nodes[1] else nodes[1]
        parts = [unfolded(aggregate(name, x, graph, targets), sources, self.node_dim) for name in self._aggregations]
        return parts[0] if len(parts) == 1 else torch.cat(list(map(as_dense, parts)), -1)
