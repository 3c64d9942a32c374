"""Graph convolutions that aggregate what neighbours send: GCNConv, SAGEConv and GINConv.

Arguments, parameters and results are those of ``torch_geometric.nn``, so that weights of one fit the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..api import einsum, evaluate
from ..errors import SizeError, UnsupportedError
from ..tensors.sparse_tensor import SparseTensor
from .aggregation import AGGREGATIONS, SUMS
from .convolution import Convolution
from .features import Features, checked_features, checked_pair, folded, linear, unfolded
from .graphs import TO_TARGET, directed, gcn_norm, means, sums
from .lazy import LAZY, LazyLinear, check_channels, draw_glorot, materialize, projection

PROPAGATED = "ij,jf,of->io"  # in which order the three are multiplied is the contraction path's decision
WITH_BIAS = "y[i,o] = A[i,j] * x[j,f] * w[o,f] + b[o]"


class GCNConv(Convolution):
    """Graph convolution with the arguments and results of ``torch_geometric.nn.GCNConv``: ``N @ x @ weight.t() + bias``.

    N is the normalised adjacency matrix of :func:`numscorch.nn.graphs.gcn_norm`. The order of the two products is chosen by
    the number of operations. The features may be sparse.

    Args:
        in_channels: features of a node; -1 leaves it to the first input.
        out_channels: features of a node in the result.
        improved: whether a self loop that is added weighs 2. As in PyTorch Geometric, it has no effect on an edge list without weights, but
            on a matrix, whose values are weights, it has.
        cached: whether the first graph's normalised matrix is used for all later graphs, unless its weights require grad. It isn't
            needed for speed: the matrix is remembered beside its graph.
        add_self_loops: whether nodes without a self loop get one; by default, if ``normalize``.
        normalize: whether the matrix is normalised.
        bias: whether there is one.
        aggr: ``"add"`` or ``"sum"``.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to send messages against the edges.
        node_dim: which dimension of dense features of more than 2 dimensions counts nodes; the last one counts channels.

    Shape:
        x (nodes, in_channels), dense or sparse, or dense (\\*, nodes, in_channels); edge_index (2, edges), from sources to
        targets, with edge_weight (edges,), or a matrix ``A[target, source]``, as :func:`numscorch.adj_t` makes (see the guide: graphs);
        result (\\*, nodes, out_channels).

    Raises:
        UnsupportedError: self loops are to be added, and nothing normalised.

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
                "GCNConv with add_self_loops=True, normalize=False: the normalisation adds the loops; leave one of the two arguments out"
            )
        self.lin = projection(in_channels, out_channels, False, draw_glorot)
        self.bias = torch.nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, and forget the graph that was kept."""
        if not isinstance(self.lin, LazyLinear):
            draw_glorot(self.lin)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._kept: dict[torch.dtype, SparseTensor] = {}

    def forward(self, x: Features, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """The features after the convolution, of shape (nodes, out_channels)."""
        if isinstance(x, tuple | list):
            raise UnsupportedError("GCNConv takes features of one kind of nodes, not a pair: use SAGEConv, GATConv or GINConv")
        x = checked_features(x, self.lin.in_features, self, node_dim=self.node_dim)
        materialize(self.lin, x.shape[-1])
        nodes = folded(x, self.node_dim).shape[0]
        matrix = self._matrix(nodes, x.dtype, directed(edge_index, self.flow), edge_weight)
        if x.ndim == 2:
            return _propagate(matrix, x, self.lin.weight, self.bias)
        moved = linear(x, self.lin.weight)
        result: Any = unfolded(einsum("ij,jf->if", matrix, folded(moved, self.node_dim)), moved, self.node_dim)
        return _add_bias(result, self.bias)

    def _matrix(self, nodes: int, dtype: torch.dtype, graph: Any, edge_weight: Tensor | None) -> SparseTensor:
        """The matrix that is multiplied by."""
        if not self.normalize:
            return sums(graph, (nodes, nodes), dtype, edge_weight)
        if dtype in self._kept:
            return self._kept[dtype]
        matrix = gcn_norm(graph, edge_weight, nodes, self.improved, self.add_self_loops, dtype=dtype)
        is_trained = (graph if edge_weight is None else edge_weight).requires_grad  # a later call's gradient would miss its weights
        if self.cached and not is_trained and not matrix.values.is_inference():
            self._kept[dtype] = matrix
        return matrix

    def __repr__(self) -> str:
        return f"GCNConv({self.in_channels}, {self.out_channels})"


class SAGEConv(Convolution):
    """``lin_l`` of the neighbours' features, aggregated, and ``lin_r`` of a node's own.

    Where a node has no neighbours, the aggregated features are 0. The gradient of the largest is shared out evenly between
    equal neighbours; several edges between two nodes count as one there. The largest of sparse features, as bags of words, is
    sparse as well; those that aren't stored take part as 0.

    Args:
        in_channels: features of a node, or (of a source, of a target); -1 leaves it to the first input.
        out_channels: features of a target in the result.
        aggr: ``"mean"``, ``"max"``, ``"min"``, ``"sum"`` or ``"add"``, ``"var"`` or ``"std"``; or a list of them, whose results go
            side by side into ``lin_l``.
        normalize: whether rows of the result have length 1.
        root_weight: whether there is ``lin_r``.
        project: whether sources' features go through ``lin`` and relu first.
        bias: whether ``lin_l`` has one.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to send messages against the edges.
        node_dim: which dimension of dense features of more than 2 dimensions counts nodes; the last one counts channels.

    Shape:
        x (nodes, in_channels), or a pair of those of sources and of targets, or None for these; edge_index (2, edges), from
        sources to targets, or a matrix ``A[target, source]``, as :func:`numscorch.adj_t` makes (see the guide: graphs); its
        values multiply features in sums and means, and must be 1 for the other aggregations; result (targets, out_channels). Dense
        features may have more dimensions, (\\*, nodes, in_channels).

    Raises:
        SizeError: ``project`` with a size that is left to the first input.
        UnsupportedError: another aggregation.

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
                raise SizeError("SAGEConv with project=True needs the size of its features: the first input cannot set it")
            self.lin = torch.nn.Linear(sources, sources)
        self.lin_l = projection(LAZY if sources == LAZY else sources * len(self._aggregations), out_channels, bias)
        if root_weight:
            self.lin_r = projection(targets, out_channels, False)

    @property
    def _channels(self) -> tuple[int, int]:
        """Features of a source, and of a target; -1 where the first input tells them."""
        sources = self.lin_l.in_features if self.lin_l.in_features == LAZY else self.lin_l.in_features // len(self._aggregations)
        wanted = self.in_channels if isinstance(self.in_channels, int) else self.in_channels[1]
        return sources, self.lin_r.in_features if self.root_weight else wanted

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for child in self.children():
            child.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features | tuple[Features, Features | None], edge_index: Any, size: Sequence[int | None] | None = None) -> Tensor:
        """The features of targets, (targets, out_channels); ``size`` is (sources, targets), if neither features nor a matrix state it."""
        sources, targets = checked_pair(x, self._channels, self, self.node_dim)
        graph, nodes = self._directed(edge_index, sources, targets), self._size(sources, targets, size, edge_index)
        if self.project:
            sources = linear(sources, self.lin.weight, self.lin.bias).relu()
        materialize(self.lin_l, sources.shape[-1] * len(self._aggregations))
        result = _add_bias(self._aggregate_and_transform(sources, graph, nodes), self.lin_l.bias)
        if self.root_weight and targets is not None:
            materialize(self.lin_r, targets.shape[-1])
            result = result + linear(targets, self.lin_r.weight)
        return functional.normalize(result, dim=-1) if self.normalize else result

    def _aggregate_and_transform(self, sources: Features, graph: Any, nodes: tuple[int, int]) -> Tensor:
        """What neighbours send, times the weight of ``lin_l``."""
        if self._aggregations == ("mean",) and sources.ndim == 2:
            return _propagate(means(graph, nodes, sources.dtype), sources, self.lin_l.weight, None)
        return linear(self._aggregate(sources, graph, nodes), self.lin_l.weight)

    def __repr__(self) -> str:
        return f"SAGEConv({self.in_channels}, {self.out_channels}, aggr={self.aggr})"


class GINConv(Convolution):
    """A network of the sum of the neighbours' features and 1 + eps times a node's own.

    Args:
        nn: the network, a module or function of features (targets, in_channels).
        eps: how much more a node's own features weigh than a neighbour's.
        train_eps: whether ``eps`` is a parameter, rather than a buffer.
        aggr: ``"add"`` for the sum of the neighbours' features, or what else SAGEConv takes but for lists.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to send messages against the edges.
        node_dim: which dimension of dense features of more than 2 dimensions counts nodes; the last one counts channels.

    Shape:
        x (nodes, in_channels), or a pair of those of sources and of targets, or None for these; edge_index (2, edges), from
        sources to targets, or a matrix ``A[target, source]``, as :func:`numscorch.adj_t` makes (see the guide: graphs),
        whose values multiply features; result: the network's output for (targets, in_channels).

    Raises:
        UnsupportedError: ``nn`` can't be called, or another aggregation or several.

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
            raise UnsupportedError(f"GINConv({nn!r}): its first argument is the network, as torch.nn.Linear({nn!r}, out_channels)")
        if len(self._aggregations) > 1:
            raise UnsupportedError(f"GINConv with aggr={aggr!r}: a node's own features are added to one aggregation; give one")
        self.nn, self.initial_eps = nn, eps
        if train_eps:
            self.eps = torch.nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("eps", torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the network's weights anew, and set ``eps`` to what it was."""
        _reset(self.nn)
        torch.nn.init.constant_(self.eps, self.initial_eps)

    def forward(self, x: Features | tuple[Features, Features | None], edge_index: Any, size: Sequence[int | None] | None = None) -> Tensor:
        """What the network makes of the sums; ``size`` is (sources, targets), if neither features nor a matrix state it."""
        sources, targets = checked_pair(x, (LAZY, LAZY), self, self.node_dim)
        nodes = self._size(sources, targets, size, edge_index)
        result: Any = self._aggregate(sources, self._directed(edge_index, sources, targets), nodes)
        if targets is not None:
            result = result + (1 + self.eps) * targets
        return self.nn(result)

    def __repr__(self) -> str:
        return f"GINConv(nn={self.nn})"


def _propagate(matrix: SparseTensor, x: Features, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The matrix times the features times the weight, and the bias; without gradients, the last product's kernel adds it."""
    result: Tensor
    if bias is None or torch.is_grad_enabled():
        result = _add_bias(einsum(PROPAGATED, matrix, x, weight), bias)
    else:
        result = evaluate(WITH_BIAS, A=matrix, x=x, w=weight, b=bias)
    return result


def _add_bias(result: Any, bias: Tensor | None) -> Tensor:
    """The result, and the bias if there is one."""
    total: Tensor = result if bias is None else result + bias
    return total


def _reset(module: Any) -> None:
    """Draw the weights anew of a module, or of those in it; a plain function has none."""
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()
        return
    for child in module.children() if isinstance(module, torch.nn.Module) else ():
        _reset(child)
