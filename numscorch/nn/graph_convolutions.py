"""Graph convolutions that aggregate neighbour features: GCNConv, SAGEConv and GINConv.

Arguments, parameters and results match ``torch_geometric.nn``, so state dicts are interchangeable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import SizeError, UnsupportedError
from ..interface.api import einsum, evaluate
from ..operators.products import add_bias
from ..tensors.distributed import handler_of
from ..tensors.sparse_tensor import SparseTensor
from .convolution import (
    AGGREGATIONS,
    LAZY,
    SUMS,
    Convolution,
    Features,
    LazyLinear,
    check_channels,
    checked_features,
    draw_glorot,
    folded,
    linear,
    materialize,
    projection,
    unfolded,
)
from .graph_inputs import TO_TARGET, directed
from .graphs import edge_sum, gcn_norm, gcn_sum, is_seldom_used, means, normalized_sum, sums

PROPAGATED = "ij,jf,of->io"  # the contraction path decides the order of the two products
WITH_BIAS = "y[i,o] = A[i,j] * x[j,f] * w[o,f] + b[o]"


class GCNConv(Convolution):
    """Graph convolution with the arguments and results of ``torch_geometric.nn.GCNConv``: ``N @ x @ weight.t() + bias``.

    N is the normalized adjacency matrix of :func:`numscorch.nn.graphs.gcn_norm`. The two products are computed in the order with fewer
    operations. The features may be sparse.

    Args:
        in_channels: features per node; -1 infers the size from the first input.
        out_channels: features per node of the result.
        improved: whether added self loops have weight 2. As in PyTorch Geometric, this affects matrices and weighted edge lists, but
            not edge lists without weights.
        cached: whether to reuse the normalized matrix of the first graph for all later graphs, unless its weights require grad. The
            matrix of each graph is cached with the graph in any case.
        add_self_loops: whether to add self loops to nodes without one; defaults to ``normalize``.
        normalize: whether to normalize the matrix.
        bias: whether to add a bias.
        aggr: ``"add"`` or ``"sum"``.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to reverse the edges.
        node_dim: node dimension of dense features with more than 2 dimensions; the last dimension holds the channels.

    Shape:
        x (nodes, in_channels), dense or sparse, or dense (\\*, nodes, in_channels); edge_index (2, edges), from sources to
        targets, with edge_weight (edges,), or a matrix ``A[target, source]`` such as :func:`numscorch.adj_t` returns (see the guide:
        graphs); result (\\*, nodes, out_channels).

    Raises:
        SizeError: a size is not positive.
        UnsupportedError: ``add_self_loops`` is True and ``normalize`` False, or the aggregation or the flow is not supported.

    Source: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2017.

    >>> layer = GCNConv(4, 2)
    >>> layer, layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    (GCNConv(4, 2), torch.Size([3, 2]))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        *,
        aggr: str = "add",
        flow: str = TO_TARGET,
        node_dim: int = -2,
    ):
        super().__init__(aggr, flow, node_dim, SUMS)
        check_channels("GCNConv", in_channels=in_channels, out_channels=out_channels)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        if self.add_self_loops and not normalize:
            raise UnsupportedError(
                "GCNConv with add_self_loops=True, normalize=False: normalisation adds the loops; leave one of the two arguments out"
            )
        self.lin = projection(in_channels, out_channels, False, draw_glorot)
        self.bias = torch.nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the weights, and drop the matrix stored by ``cached``."""
        if not isinstance(self.lin, LazyLinear):
            draw_glorot(self.lin)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._kept: dict[torch.dtype, SparseTensor] = {}

    def forward(self, x: Features, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Return the features after the convolution, (\\*, nodes, out_channels).

        Args:
            x: features (nodes, in_channels), dense or sparse; or dense features (\\*, nodes, in_channels).
            edge_index: integer tensor (2, edges), from sources to targets; or a sparse matrix ``A[target, source]``, whose values are
                the weights.
            edge_weight: weights (edges,) of an edge list; 1 by default.

        Raises:
            SizeError: the features, the edges or the weights have another shape.
            RangeError: an edge names a node that does not exist.
            FormatError: the edges are not integers.
            UnsupportedError: ``x`` is a pair, edge_weight is given with a matrix, or data types differ.
        """
        if isinstance(x, tuple | list):
            raise UnsupportedError("GCNConv takes features of one kind of nodes, not a pair: use SAGEConv, GATConv or GINConv")
        x = checked_features(x, self.lin.in_features, self, node_dim=self.node_dim)
        materialize(self.lin, x.shape[-1])
        graph = directed(edge_index, self.flow)
        is_list = not isinstance(graph, SparseTensor)
        if not self.cached and x.ndim == 2 and (is_seldom_used(graph, x, cost=2) or (is_list and torch.compiler.is_compiling())):
            return self._in_two_steps(x, graph, edge_weight)
        matrix = self._matrix(folded(x, self.node_dim).shape[0], x.dtype, graph, edge_weight)
        if x.ndim == 2:
            return _propagate(matrix, x, self.lin.weight, self.bias)
        moved = linear(x, self.lin.weight)
        return _add_bias(unfolded(einsum("ij,jf->if", matrix, folded(moved, self.node_dim)), moved, self.node_dim), self.bias)

    def _in_two_steps(self, x: Any, graph: Any, edge_weight: Tensor | None) -> Tensor:
        """Return the result by a sum, over the fewer channels, and a product with the weight."""
        is_narrowing = self.out_channels < self.lin.in_features
        features = linear(x, self.lin.weight) if is_narrowing else x
        sum_of = normalized_sum if torch.compiler.is_compiling() else gcn_sum
        total = sum_of(features, graph, edge_weight, self.improved, self.add_self_loops, self.normalize)
        return _add_bias(total, self.bias) if is_narrowing else linear(total, self.lin.weight, self.bias)

    def _matrix(self, nodes: int, dtype: torch.dtype, graph: Any, edge_weight: Tensor | None) -> SparseTensor:
        """Return the propagation matrix: normalised, or the weighted adjacency matrix."""
        if not self.normalize:
            return sums(graph, (nodes, nodes), dtype, edge_weight)
        if dtype in self._kept:
            return self._kept[dtype]
        matrix = gcn_norm(graph, edge_weight, nodes, self.improved, self.add_self_loops, dtype=dtype)
        is_trained = (graph if edge_weight is None else edge_weight).requires_grad  # a cached matrix would cut later calls' gradients
        if self.cached and not is_trained and not matrix.values.is_inference():
            self._kept[dtype] = matrix
        return matrix

    def __repr__(self) -> str:
        return f"GCNConv({self.in_channels}, {self.out_channels})"


class SAGEConv(Convolution):
    """``lin_l`` of the aggregated neighbour features plus ``lin_r`` of the node's own features.

    Nodes without neighbours aggregate to 0. Equal neighbours share the gradient of ``"max"`` and ``"min"`` evenly; parallel edges count
    once. The maximum of sparse features, such as bags of words, is sparse. Entries that are not stored count as 0.

    Args:
        in_channels: features per node, or a pair (per source, per target); -1 infers the size from the first input.
        out_channels: features per target of the result.
        aggr: ``"mean"``, ``"max"``, ``"min"``, ``"sum"`` or ``"add"``, ``"var"`` or ``"std"``; or a list of them, whose results are
            concatenated as the input of ``lin_l``.
        normalize: whether to normalize the rows of the result to length 1.
        root_weight: whether to add the node's own features, transformed by ``lin_r``.
        project: whether to transform the source features by ``lin`` and relu first.
        bias: whether ``lin_l`` has a bias.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to reverse the edges; pairs of features need the former.
        node_dim: node dimension of dense features with more than 2 dimensions; the last dimension holds the channels.

    Shape:
        x (nodes, in_channels), or a pair (source features, target features), where the target features may be None; edge_index
        (2, edges), from sources to targets, or a matrix ``A[target, source]`` such as :func:`numscorch.adj_t` returns (see the guide:
        graphs). The values of a matrix multiply features in sums and means, and must be 1 for the other aggregations. Result
        (targets, out_channels). Dense features may have more dimensions, (\\*, nodes, in_channels).

    Raises:
        SizeError: a size is not positive, or ``project`` is True and the size is inferred from the first input.
        UnsupportedError: the aggregation or the flow is unknown.

    Source: Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", 2017.

    >>> layer = SAGEConv(4, 2, aggr="max")
    >>> layer, layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    (SAGEConv(4, 2, aggr=max), torch.Size([3, 2]))
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str | Sequence[str] = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        *,
        flow: str = TO_TARGET,
        node_dim: int = -2,
    ):
        super().__init__(aggr, flow, node_dim, tuple(AGGREGATIONS))
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        check_channels("SAGEConv", sources=sources, targets=targets, out_channels=out_channels)
        if project:
            if sources == LAZY:
                raise SizeError("SAGEConv with project=True needs in_channels: the first input cannot set it")
            self.lin = torch.nn.Linear(sources, sources)
        self.lin_l = projection(LAZY if sources == LAZY else sources * len(self._aggregations), out_channels, bias)
        if root_weight:
            self.lin_r = projection(targets, out_channels, False)

    @property
    def _channels(self) -> tuple[int, int]:
        """Features per source and per target; -1 before the first input sets them."""
        sources = self.lin_l.in_features if self.lin_l.in_features == LAZY else self.lin_l.in_features // len(self._aggregations)
        targets = self.in_channels if isinstance(self.in_channels, int) else self.in_channels[1]
        return sources, self.lin_r.in_features if self.root_weight else targets

    def reset_parameters(self) -> None:
        """Reinitialize the weights."""
        for child in self.children():
            child.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features | tuple[Features, Features | None], edge_index: Any, size: Sequence[int | None] | None = None) -> Tensor:
        """Return the features of the targets, (targets, out_channels) or (\\*, targets, out_channels).

        Args:
            x: features (nodes, in_channels), dense or sparse, or dense features (\\*, nodes, in_channels); or a pair
                (source features, target features), where the target features may be None.
            edge_index: integer tensor (2, edges), from sources to targets; or a sparse matrix ``A[target, source]``.
            size: numbers (sources, targets). The number of targets is needed if neither features nor a matrix determine it.

        Raises:
            SizeError: the features, the edges or ``size`` have another shape.
            RangeError: an edge names a node that does not exist.
            FormatError: the edges are not integers.
            UnsupportedError: a matrix has values other than 1 for an aggregation without weights, or data types differ.
        """
        sources, targets, graph, nodes = self._read(x, edge_index, self._channels, size, self.node_dim)
        if self.project:
            sources = linear(sources, self.lin.weight, self.lin.bias).relu()
        materialize(self.lin_l, sources.shape[-1] * len(self._aggregations))
        weight, bias = self.lin_l.weight, self.lin_l.bias
        is_mean = self._aggregations == ("mean",) and sources.ndim == 2
        if not is_mean or torch.compiler.is_compiling():
            result = linear(self._aggregate(sources, graph, nodes), weight, bias)
        elif is_seldom_used(graph, sources):
            result = linear(edge_sum(sources, graph, nodes, divides=True), weight, bias)
        else:
            result = _propagate(means(graph, nodes, sources.dtype), sources, weight, None)
            result = _add_bias(result, None if bias is None else bias.to(result.dtype))  # autocast narrows biases of torch's linear, too
        if self.root_weight and targets is not None:
            materialize(self.lin_r, targets.shape[-1])
            result = result + linear(targets, self.lin_r.weight)
        return functional.normalize(result, dim=-1) if self.normalize else result

    def __repr__(self) -> str:
        return f"SAGEConv({self.in_channels}, {self.out_channels}, aggr={self.aggr})"


class GINConv(Convolution):
    """A network applied to the summed features of the neighbours plus (1 + eps) times the node's own features.

    Args:
        nn: the network, a module or function of features (targets, in_channels).
        eps: extra weight of the node's own features.
        train_eps: whether ``eps`` is a parameter rather than a buffer.
        aggr: ``"add"``, or another single aggregation of :class:`SAGEConv`.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to reverse the edges; pairs of features need the former.
        node_dim: node dimension of dense features with more than 2 dimensions; the last dimension holds the channels.

    Shape:
        x (nodes, in_channels), or a pair (source features, target features), where the target features may be None; edge_index
        (2, edges), from sources to targets, or a matrix ``A[target, source]`` such as :func:`numscorch.adj_t` returns (see the guide:
        graphs), whose values multiply features; result: the network's output for (targets, in_channels).

    Raises:
        UnsupportedError: ``nn`` is not callable, the aggregation or the flow is unknown, or several aggregations are given.

    Source: Xu, Hu, Leskovec and Jegelka, "How Powerful are Graph Neural Networks?", 2019.

    >>> layer = GINConv(torch.nn.Linear(4, 2))
    >>> layer
    GINConv(nn=Linear(in_features=4, out_features=2, bias=True))
    >>> layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 2])
    """

    eps: Tensor

    def __init__(
        self,
        nn: Callable[[Tensor], Tensor],
        eps: float = 0.0,
        train_eps: bool = False,
        *,
        aggr: str = "add",
        flow: str = TO_TARGET,
        node_dim: int = -2,
    ):
        super().__init__(aggr, flow, node_dim, tuple(AGGREGATIONS))
        if not callable(nn):
            raise UnsupportedError(f"GINConv({nn!r}): the first argument is the network, such as torch.nn.Linear({nn!r}, out_channels)")
        if len(self._aggregations) > 1:
            raise UnsupportedError(f"GINConv with aggr={aggr!r}: the node's own features are added to one aggregation; give one")
        self.nn, self.initial_eps = nn, eps
        self.eps = torch.nn.Parameter(torch.empty(1)) if train_eps else torch.nn.Buffer(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the network's weights, and reset ``eps`` to its initial value."""
        _reset(self.nn)
        torch.nn.init.constant_(self.eps, self.initial_eps)

    def forward(self, x: Features | tuple[Features, Features | None], edge_index: Any, size: Sequence[int | None] | None = None) -> Tensor:
        """Return the output of the network for each target.

        Args:
            x: features (nodes, in_channels), dense or sparse, or dense features (\\*, nodes, in_channels); or a pair
                (source features, target features), where the target features may be None.
            edge_index: integer tensor (2, edges), from sources to targets; or a sparse matrix ``A[target, source]``.
            size: numbers (sources, targets). The number of targets is needed if neither features nor a matrix determine it.

        Raises:
            SizeError: the features, the edges or ``size`` have another shape.
            RangeError: an edge names a node that does not exist.
            FormatError: the edges are not integers.
            UnsupportedError: a matrix has values other than 1 for an aggregation without weights, or data types differ.
        """
        sources, targets, graph, nodes = self._read(x, edge_index, (LAZY, LAZY), size, self.node_dim)
        result: Any = self._aggregate(sources, graph, nodes)
        if isinstance(result, Tensor) and isinstance(targets, Tensor):
            result = torch.addcmul(result, 1 + self.eps, targets)  # one pass over the features
        elif targets is not None:
            result = result + (1 + self.eps) * targets
        return self.nn(result)

    def __repr__(self) -> str:
        return f"GINConv(nn={self.nn})"


def _propagate(matrix: SparseTensor, x: Features, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``matrix @ x @ weight.t() + bias``; on one process without gradients, the last kernel adds the bias."""
    if bias is None or torch.is_grad_enabled() or handler_of([matrix, x]) is not None:
        return _add_bias(einsum(PROPAGATED, matrix, x, weight), bias)
    return evaluate(WITH_BIAS, A=matrix, x=x, w=weight, b=bias)


def _add_bias(result: Any, bias: Tensor | None) -> Tensor:
    return result if bias is None else add_bias(result, bias)


def _reset(module: Any) -> None:
    """Reinitialize a module if it has ``reset_parameters``, else its children; plain functions have no weights."""
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()
        return
    for child in module.children() if isinstance(module, torch.nn.Module) else ():
        _reset(child)
