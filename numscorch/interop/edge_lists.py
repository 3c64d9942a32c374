"""Conversions between edge lists, such as PyTorch Geometric's ``edge_index``, and adjacency matrices.

Edge lists become ``A[target, source]``, PyTorch Geometric's ``adj_t``, the matrix of graph layers. Edges without weights become 1.
Weights of duplicate edges are summed; duplicate edges without weights become one entry of 1, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..convert.construct import from_coo, noted
from ..errors import OperandError, RangeError, SizeError, UnsupportedError
from ..ir.format import CSR, Format, as_format
from ..tensors.arrays import as_indices, as_shape, as_values
from ..tensors.coordinate_order import are_within
from ..tensors.graph_breaks import graph_break
from ..tensors.ledgers import stack_level
from ..tensors.modes import as_numpy
from ..tensors.packing import counted_entries, of_entries
from ..tensors.sparse_tensor import SparseTensor


@graph_break
def adj_t(
    edge_index: torch.Tensor | ArrayLike,
    edge_weight: torch.Tensor | ArrayLike | None = None,
    size: int | Sequence[int | None] | None = None,
    format: Format | str | None = None,
) -> SparseTensor:
    """Create the adjacency matrix ``A[target, source]`` of an edge list, for graph layers.

    ``A[edge_index[1, e], edge_index[0, e]] = edge_weight[e]``, like PyTorch Geometric's ``adj_t``: ``A @ x`` sums the features of each
    node's sources. ``A.t()`` is ``A[source, target]`` and shares memory. Weights of duplicate edges are summed; then means,
    maxima and attention (SAGEConv, GATConv) count the edges once. Without weights, duplicate edges become one entry of 1, with a warning.
    Gradients flow to the weights. See the guide on graphs.

    Args:
        edge_index: sources and targets, integers of shape (2, edges), or PyTorch Geometric's ``EdgeIndex``.
        edge_weight: weights of shape (edges,); by default float32 ones.
        size: the number of nodes, or (sources, targets) of a bipartite graph. By default the size of an ``EdgeIndex``, or the largest
            node number in ``edge_index`` plus 1, without nodes at the end that have no edges.
        format: the result's format, CSR by default. Graph layers take formats without padding: CSR, CSC, DCSR, DCSC, COO, and others
            whose innermost level is ``compressed``, ``singleton``, ``hash`` or ``bitmap``.

    Returns:
        A SparseTensor of shape (targets, sources).

    Raises:
        FormatError: ``edge_index`` isn't integer, or the format has another number of dimensions or can't store the edges.
        RangeError: an edge names a node outside the graph.
        SizeError: the shapes don't match, or ``size`` has another length than 2.
        OperandError: ``edge_index`` is a matrix or a graph object.
        UnsupportedError: the weights have an unsupported data type, device or layout.

    Complexity:
        O(edges log edges).

    >>> adj_t([[0, 1, 1], [2, 0, 0]], [1.0, 2.0, 3.0], size=3).to_dense()
    tensor([[0., 5., 0.],
            [0., 0., 0.],
            [1., 0., 0.]])
    """
    _check_edges(edge_index)
    if size is None and hasattr(edge_index, "sparse_size"):
        size = edge_index.sparse_size()
    if hasattr(edge_index, "as_tensor"):
        edge_index = edge_index.as_tensor()
    edges = as_indices(edge_index, "edge_index")
    if edges.ndim != 2 or len(edges) != 2:
        hint = "; did you mean edge_index.T?" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise SizeError(f"edge_index has shape {tuple(edges.shape)}: pass sources and targets, shape (2, edges){hint}")
    shape, target = checked_size(edges, size, "the graph has")[::-1], CSR if format is None else as_format(format)
    if edge_weight is None and target == CSR and (distinct := counted_entries(as_numpy(edges)[::-1], shape)) is not None:
        A = SparseTensor(distinct[0], distinct[1].to(torch.get_default_dtype()))
        return noted(unweighted(A, edges.shape[1]), "a list of entries")
    weights = torch.ones(edges.shape[1], device="cpu") if edge_weight is None else as_values(edge_weight)
    A = from_coo(edges.flip(0), weights, shape, target, copy=False, check_invariants=False)  # nodes are checked, and flip copies
    return unweighted(A, edges.shape[1]) if edge_weight is None else A


def check_nodes(edges: torch.Tensor, size: Sequence[int], description: str) -> None:
    """Check that all edges connect nodes of the graph.

    Args:
        edges: sources and targets, of shape (2, edges).
        size: the numbers of sources and targets.
        description: the words of the error text before the numbers, such as ``"the graph has"``.

    Raises:
        RangeError: an edge names a node outside the graph; the text names the first such edge.

    >>> check_nodes(torch.tensor([[0, 5], [1, 2]]), (3, 3), "the graph has")
    Traceback (most recent call last):
    numscorch.RangeError: edge 1 of edge_index has source 5, but the graph has 3 nodes: nodes are numbered from 0 to 2
    """
    for row, end, nodes in zip(as_numpy(edges), ("source", "target"), size, strict=True):
        if not are_within(row, nodes):
            at = int(np.flatnonzero((row < 0) | (row >= nodes))[0])
            allowed = f"nodes are numbered from 0 to {nodes - 1}" if nodes else "no edge can name one"
            raise RangeError(f"edge {at} of edge_index has {end} {int(row[at])}, but {description} {counted(size)}: {allowed}")


def counted(size: Sequence[int]) -> str:
    """The number of nodes, or of sources and targets, in words.

    >>> counted((3, 3)), counted((3, 4))
    ('3 nodes', '3 sources and 4 targets')
    """
    return f"{size[0]} nodes" if size[0] == size[1] else f"{size[0]} sources and {size[1]} targets"


def _check_edges(edge_index: Any) -> None:
    """Check that the argument is an edge list, not a graph object or a matrix.

    Raises:
        OperandError: the argument is a graph object or a matrix.
    """
    kind = type(edge_index).__name__
    if not isinstance(edge_index, torch.Tensor) and hasattr(edge_index, "edge_index"):
        raise OperandError(f"adj_t takes an edge_index, not a {kind}: {_with_edges_of(edge_index)}")
    if hasattr(edge_index, "pattern"):
        raise OperandError(
            f"adj_t takes an edge_index, not a {kind}: pass the matrix itself to graph layers if it is A[target, source], else A.t()"
        )
    if isinstance(edge_index, torch.Tensor) and edge_index.layout is not torch.strided:
        raise OperandError(f"adj_t takes an edge_index, not a matrix ({edge_index.layout}): make it a SparseTensor with ns.from_torch(adj)")
    is_dense = isinstance(edge_index, torch.Tensor) and edge_index.ndim == 2 and edge_index.is_floating_point()
    if is_dense and edge_index.shape[0] == edge_index.shape[1]:
        raise OperandError(
            f"adj_t takes an edge_index, not a matrix of shape {tuple(edge_index.shape)}: make a dense adjacency matrix sparse with "
            "ns.from_torch(adj), transposed if it is A[source, target]"
        )


def _with_edges_of(data: Any) -> str:
    """The part of an error text that shows how to pass the edges of a graph object, such as PyTorch Geometric's Data, to ``adj_t``.

    >>> from types import SimpleNamespace
    >>> _with_edges_of(SimpleNamespace(edge_index=None, edge_weight=torch.ones(1), num_nodes=3))
    'pass its edges, as in adj_t(data.edge_index, data.edge_weight, size=data.num_nodes)'
    """
    weight = ", data.edge_weight" if getattr(data, "edge_weight", None) is not None else ""
    size = ", size=data.num_nodes" if getattr(data, "num_nodes", None) is not None else ""
    return f"pass its edges, as in adj_t(data.edge_index{weight}{size})"


def checked_size(edges: torch.Tensor, size: int | Sequence[int | None] | None, description: str) -> tuple[int, int]:
    """The numbers of sources and targets, by default the largest node number plus 1; checks that they include all edges.

    Raises:
        RangeError: an edge names a node outside the graph; ``description`` is part of the text, see :func:`check_nodes`.
        SizeError: ``size`` has another length than 2, or is no size.
    """
    sources, targets = _size(edges, size)
    check_nodes(edges, (sources, targets), description)
    return sources, targets


def _size(edges: torch.Tensor, size: Any) -> tuple[int, ...]:
    """The numbers of sources and targets; by default the largest node number plus 1."""
    if hasattr(size, "__index__"):  # isinstance with typing's protocol takes a millisecond
        return as_shape((index(size), index(size)))
    if size is None:
        return (_nodes_in(as_numpy(edges)),) * 2
    if len(size) != 2:
        raise SizeError(f"size is {tuple(size)}, but a graph's matrix has 2 dimensions: pass the number of nodes, or (sources, targets)")
    return as_shape([_nodes_in(row) if nodes is None else nodes for row, nodes in zip(as_numpy(edges), size, strict=True)])


def _nodes_in(edges: np.ndarray) -> int:
    """The largest node number plus 1."""
    return int(edges.max(initial=-1)) + 1


def unweighted(A: SparseTensor, edges: int) -> SparseTensor:
    """The matrix with each summed edge count replaced by 1; padding stays 0. Warns if some of the edges were repeated."""
    is_edge = A.values != 0
    if repeated := edges - int(is_edge.sum()):
        warnings.warn(
            f"{repeated} of {edges} edges are repeated, and become one entry of 1 with the first one: graph layers then compute other "
            f"results than from the edge list; pass torch.ones({edges}) as weights for layers that add them up (GCNConv, GINConv), pass "
            "the edge list itself for means, maxima and attention (SAGEConv, GATConv), or drop repeated edges with "
            "torch.unique(edge_index, dim=1)",
            UserWarning,
            stacklevel=stack_level(),
        )
    return A.with_values(is_edge.to(A.dtype))


def to_edge_index(A: SparseTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The edges of a matrix ``A[target, source]``, the inverse of :func:`adj_t`; gradients flow to the weights.

    Pass ``A.t()`` if the matrix is ``A[source, target]``, as with networkx or DGL. See the guide on graphs.

    Args:
        A: a matrix of shape (targets, sources).

    Returns:
        Sources and targets, int64 of shape (2, nnz), and weights of shape (nnz,), both in storage order.

    Raises:
        SizeError: the tensor isn't a matrix.
        UnsupportedError: the format has padding, such as ELL.

    >>> edges, weights = to_edge_index(adj_t([[0, 1], [2, 0]], [3.0, 4.0]))
    >>> edges, weights
    (tensor([[1, 0],
            [0, 2]]), tensor([4., 3.]))
    """
    check_graph(A)
    return A.indices().flip(0), of_entries(A.pattern, A.values)


def check_unpadded(A: SparseTensor) -> None:
    """Check that the format of a graph's matrix has no padding.

    Raises:
        UnsupportedError: the format has padding.
    """
    if A.format.is_padded:
        raise UnsupportedError(
            f"a graph stored as {A.format.name}: this format has padding, which can't be told apart from edges of weight 0, and conversions"
            " keep it; store the graph as CSR from the start, as ns.adj_t(edge_index) does"
        )


def check_graph(A: SparseTensor, square: bool = False) -> None:
    """Check that a tensor is the matrix of a graph; if ``square``, that it has as many sources as targets.

    Raises:
        SizeError: the shape is not that of a graph's matrix.
        UnsupportedError: the format has padding.
    """
    if A.ndim != 2 or (square and A.pattern.shape[0] != A.pattern.shape[1]):
        expected = "square" if square and A.ndim == 2 else "2-dimensional"
        raise SizeError(f"a tensor of shape {A.pattern.shape} is not the matrix of a graph: it must be {expected}")
    check_unpadded(A)
