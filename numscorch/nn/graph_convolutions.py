"""Graph convolutions that sum, average or take the largest of what neighbours send: GCNConv, SAGEConv and GINConv.

Arguments, parameters and results are those of ``torch_geometric.nn``, so that weights of one fit the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..api import einsum, evaluate
from ..errors import UnsupportedError
from ..sparse_tensor import SparseTensor
from .features import Features, check_channels, size_of, take_features, take_pair, transformed
from .graphs import gcn_norm, means, sums
from .neighbours import largest

PROPAGATED = "ij,jf,of->io"  # in which order the three are multiplied is the contraction path's decision
WITH_BIAS = "y[i,o] = A[i,j] * x[j,f] * w[o,f] + b[o]"


class GCNConv(torch.nn.Module):
    """``N @ x @ weight.t() + bias`` with the normalised adjacency matrix N of :func:`numscorch.nn.graphs.gcn_norm`.

    Whether ``N @ x`` or ``x @ weight.t()`` comes first is decided by the contraction path of einsum, from what the operands
    store; the features may be sparse.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the result.
        improved: whether a self loop that is added weighs 2 (see ``gcn_norm``).
        cached: whether the first graph's normalised matrix is kept, for each data type, whatever graph is given later; none is whose
            weights require grad. It isn't needed for speed: the matrix is remembered beside its graph anyway.
        add_self_loops: whether nodes without a self loop get one; by default, if ``normalize``.
        normalize: whether the matrix is normalised.
        bias: whether there is one.

    Shape:
        x (nodes, in_channels), dense or sparse; graph: edge_index (2, edges), from sources to targets, with edge_weight (edges,), or an
        adjacency matrix (targets, sources); result (nodes, out_channels).

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
    ):
        super().__init__()
        check_channels("GCNConv", in_channels=in_channels, out_channels=out_channels)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        if self.add_self_loops and not normalize:
            raise UnsupportedError("GCNConv with add_self_loops=True, normalize=False: loops are added by the normalisation, so use both")
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.bias = torch.nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, and forget the graph that was kept."""
        torch.nn.init.xavier_uniform_(self.lin.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._kept: dict[torch.dtype, SparseTensor] = {}

    def forward(self, x: Features, graph: Any, edge_weight: Tensor | None = None) -> Tensor:
        """The features after the convolution, of shape (nodes, out_channels)."""
        if isinstance(x, tuple | list):
            raise UnsupportedError("GCNConv takes features of one kind of nodes, not a pair: use SAGEConv, GATConv or GINConv")
        x = take_features(x, self.in_channels, self)
        return _propagated(self._matrix(x, graph, edge_weight), x, self.lin.weight, self.bias)

    def _matrix(self, x: Features, graph: Any, edge_weight: Tensor | None) -> SparseTensor:
        """The matrix that is multiplied by."""
        nodes, dtype = x.shape[0], x.dtype
        if not self.normalize:
            return sums(graph, (nodes, nodes), dtype, edge_weight)
        if dtype in self._kept:
            return self._kept[dtype]
        made = gcn_norm(graph, edge_weight, nodes, self.improved, self.add_self_loops, dtype)
        is_trained = (graph if edge_weight is None else edge_weight).requires_grad  # a later call's gradient would miss its weights
        if self.cached and not is_trained and not made.values.is_inference():
            self._kept[dtype] = made
        return made

    def __repr__(self) -> str:
        return f"GCNConv({self.in_channels}, {self.out_channels})"


class SAGEConv(torch.nn.Module):
    """``lin_l`` of the mean, or the largest, of the neighbours' features, and ``lin_r`` of a node's own.

    Where a node has no neighbours, their mean and the largest are 0. The gradient of the largest is shared out evenly between
    equal neighbours; several edges between two nodes count as one there. The largest of sparse features, as bags of words, is
    sparse as well; those that aren't stored take part as 0.

    Args:
        in_channels: features of a node, or (of a source, of a target).
        out_channels: features of a target in the result.
        aggr: ``"mean"`` or ``"max"``.
        normalize: whether rows of the result have length 1.
        root_weight: whether there is ``lin_r``.
        project: whether sources' features go through ``lin`` and relu first.
        bias: whether ``lin_l`` has one.

    Shape:
        x (nodes, in_channels), or a pair of those of sources and targets; graph: edge_index (2, edges), from sources to targets, or an
        adjacency matrix (targets, sources), by whose values features are multiplied, and which are 1 for ``"max"``;
        result (targets, out_channels).

    Source: Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", 2017.

    >>> layer = SAGEConv(4, 2, aggr="max")
    >>> layer, layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    (SAGEConv(4, 2, aggr=max), torch.Size([3, 2]))
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
    ):
        super().__init__()
        if aggr not in ("mean", "max"):
            raise UnsupportedError(f"SAGEConv with aggr={aggr!r}: only 'mean' and 'max' are compiled; sums are GINConv's")
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        sources, targets = self._channels
        check_channels("SAGEConv", sources=sources, targets=targets, out_channels=out_channels)
        if project:
            self.lin = torch.nn.Linear(sources, sources)
        self.lin_l = torch.nn.Linear(sources, out_channels, bias=bias)
        if root_weight:
            self.lin_r = torch.nn.Linear(targets, out_channels, bias=False)

    @property
    def _channels(self) -> tuple[int, int]:
        """Features of a source, and of a target."""
        return (self.in_channels, self.in_channels) if isinstance(self.in_channels, int) else self.in_channels

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for own in self.children():
            own.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features | tuple[Features, Features | None], graph: Any, size: Sequence[int | None] | None = None) -> Tensor:
        """The features of targets, of shape (targets, out_channels); ``size``, (sources, targets), where features don't say it."""
        sources, targets = take_pair(x, self._channels, self)
        nodes = size_of(sources, targets, size)
        if self.project:
            sources = transformed(sources, self.lin.weight, self.lin.bias).relu()
        result = _plus(self._gathered(sources, graph, nodes), self.lin_l.bias)
        if self.root_weight and targets is not None:
            result = result + transformed(targets, self.lin_r.weight)
        return functional.normalize(result, dim=-1) if self.normalize else result

    def _gathered(self, sources: Features, graph: Any, nodes: tuple[int, int]) -> Tensor:
        """What neighbours send, times the weight of ``lin_l``."""
        if self.aggr == "mean":
            return _propagated(means(graph, nodes, sources.dtype), sources, self.lin_l.weight, None)
        return transformed(largest(sources, graph, nodes), self.lin_l.weight)

    def __repr__(self) -> str:
        return f"SAGEConv({self.in_channels}, {self.out_channels}, aggr={self.aggr})"


class GINConv(torch.nn.Module):
    """A network of the sum of the neighbours' features and 1 + eps times a node's own.

    Args:
        nn: the network, a module or function of features (targets, in_channels).
        eps: how much more a node's own features weigh than a neighbour's.
        train_eps: whether ``eps`` is a parameter, rather than a buffer.

    Shape:
        x (nodes, in_channels), or a pair of those of sources and targets; graph: edge_index (2, edges), from sources to targets, or an
        adjacency matrix (targets, sources), by whose values features are multiplied; result: what ``nn`` makes of (targets, in_channels).

    Source: Xu, Hu, Leskovec and Jegelka, "How Powerful are Graph Neural Networks?", 2019.

    >>> layer = GINConv(torch.nn.Linear(4, 2))
    >>> layer
    GINConv(nn=Linear(in_features=4, out_features=2, bias=True))
    >>> layer(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 2])
    """

    eps: Tensor

    def __init__(self, nn: Callable[[Tensor], Tensor], eps: float = 0.0, train_eps: bool = False):
        super().__init__()
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

    def forward(self, x: Features | tuple[Features, Features | None], graph: Any, size: Sequence[int | None] | None = None) -> Tensor:
        """What the network makes of the sums; ``size``, (sources, targets), where features don't say it."""
        widths = [own.shape[-1] if own is not None and own.ndim else 1 for own in (x if isinstance(x, tuple | list) else (x, x))]
        sources, targets = take_pair(x, widths, self)
        result: Any = einsum("ij,jf->if", sums(graph, size_of(sources, targets, size), sources.dtype), sources)
        if targets is not None:
            result = result + (1 + self.eps) * targets
        return self.nn(result)

    def __repr__(self) -> str:
        return f"GINConv(nn={self.nn})"


def _propagated(matrix: SparseTensor, x: Features, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The matrix times the features times the weight, and the bias; without gradients, the last product's kernel adds it."""
    made: Tensor
    if bias is None or torch.is_grad_enabled():
        made = _plus(einsum(PROPAGATED, matrix, x, weight), bias)
    else:
        made = evaluate(WITH_BIAS, A=matrix, x=x, w=weight, b=bias)
    return made


def _plus(result: Any, bias: Tensor | None) -> Tensor:
    """The result, and the bias if there is one."""
    made: Tensor = result if bias is None else result + bias
    return made


def _reset(module: Any) -> None:
    """Draw the weights anew of a module, or of those in it; a plain function has none."""
    if callable(own := getattr(module, "reset_parameters", None)):
        own()
        return
    for child in module.children() if isinstance(module, torch.nn.Module) else ():
        _reset(child)
