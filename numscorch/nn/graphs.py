"""Matrices of graphs for convolutions, of shape (targets, sources): normalized adjacency matrices, sums, means, multiplicities.

``A[target, source]`` is the weight of an edge, so ``A @ x`` sums the features of each node's neighbours; see :func:`numscorch.adj_t`.
Derived matrices are cached with the tensor they were computed from, until it changes or is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..errors import SizeError, UnsupportedError
from ..interface.api import einsum, evaluate
from ..programs.operands import any_autocast, is_plain_mode
from ..schedule import tuning
from ..tensors.graph_breaks import graph_break, traced
from ..tensors.sparse_tensor import SparseTensor
from .graph_inputs import (
    ADD_MISSING_LOOPS,
    KEEP_LOOPS,
    REPLACE_LOOPS,
    TO_TARGET,
    GraphInput,
    directed,
    is_sharded,
    read_graph,
    remembered,
)

PLAIN = torch.float32, torch.float64  # data types in which torch's sums round as the kernels' sums do


@traced("nn.gcn_norm")
def gcn_norm(
    graph: Any,
    edge_weight: Tensor | None = None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = TO_TARGET,
    dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Return the adjacency matrix with self loops, normalized by the square roots of both nodes' degrees. O(edges) on a cache miss.

    The result is cached with the graph. The cache detects in-place changes that torch's version counter records (``mul_``, an
    optimizer step) and ``.data = other``. It does not detect writes through ``.data`` or a shared numpy array: make a new matrix
    with ``A.with_values(...)``, or write within ``torch.no_grad()``. Nothing is cached if the weights require grad, or for tensors
    created under ``torch.inference_mode()``.

    A node's degree is the sum of its incoming edge weights. Edges of a node of degree 0 get weight 0.

    Args:
        graph: edges from sources to targets, int64 of shape (2, edges), or an adjacency matrix of shape (targets, sources) such as
            :func:`numscorch.adj_t` returns: a SparseTensor or a sparse torch tensor. See the guide: graphs.
        edge_weight: weights of the edges, of shape (edges,); 1 by default. Weights of parallel edges are summed.
        num_nodes: number of nodes; by default the largest node index plus 1, or the size of the matrix.
        improved: whether added self loops have weight 2. As in PyTorch Geometric, this affects matrices and weighted edge lists, but
            not edge lists without weights.
        add_self_loops: whether to add self loops to nodes without one. Existing loops keep their weight; of several loops of a node
            in an edge list, the last one counts.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to reverse the edges.
        dtype: data type of the result; by default that of the weights, or torch's default for an edge list without weights.

    Shape:
        (num_nodes, num_nodes).

    Raises:
        FormatError: an edge list does not hold integers.
        RangeError: a node index is out of range.
        SizeError: shapes do not match.
        UnsupportedError: ``graph`` is not a graph, or an adjacency matrix is given with edge_weight.

    Source: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2017.

    >>> gcn_norm(torch.tensor([[0], [1]]), num_nodes=2).to_dense()
    tensor([[1.0000, 0.0000],
            [0.7071, 0.5000]])
    """
    graph = directed(graph, flow)
    if is_sharded(graph):
        _check_unweighted(edge_weight)
        return _gcn_norm_of_sharded(graph, improved, add_self_loops, dtype)
    make = partial(_gcn_norm, graph, edge_weight, num_nodes, improved, add_self_loops, dtype)
    if edge_weight is None and type(graph) is Tensor and not graph.requires_grad:  # a hit skips the checks
        return remembered(graph, ("gcn_norm of", num_nodes, improved, add_self_loops, dtype), make)
    return make()


def _gcn_norm(
    graph: Any, edge_weight: Tensor | None, num_nodes: int | None, improved: bool, add_self_loops: bool, dtype: torch.dtype | None
) -> SparseTensor:
    edges = read_graph(graph, edge_weight, None if num_nodes is None else (num_nodes, num_nodes))
    targets, sources = edges.shape
    if targets != sources:
        raise SizeError(f"gcn_norm of an adjacency matrix of shape {edges.shape}: it needs as many targets as sources")
    loops, fill = _loops_of(edges, improved, add_self_loops)
    return edges.remember(("gcn_norm", loops, fill, dtype), lambda: _normalized(edges.matrix(dtype, loops, fill)))


def _loops_of(edges: GraphInput, improved: bool, add_self_loops: bool) -> tuple[str, float]:
    """Return the treatment of self loops by :func:`gcn_norm`, and the weight of added ones."""
    is_weighted = edges.weights is not None
    loops = KEEP_LOOPS if not add_self_loops else ADD_MISSING_LOOPS if is_weighted else REPLACE_LOOPS
    return loops, 2.0 if improved and is_weighted else 1.0


def _check_unweighted(edge_weight: Tensor | None) -> None:
    """Check that no weights are given beside a sharded graph, whose values are the weights.

    Raises:
        UnsupportedError: weights are given.
    """
    if edge_weight is not None:
        raise UnsupportedError("edge_weight beside a sharded graph: its values are the weights, shard ns.adj_t(edge_index, edge_weight)")


def _gcn_norm_of_sharded(graph: Any, improved: bool, add_self_loops: bool, dtype: torch.dtype | None) -> Any:
    """Normalise a sharded matrix; all ranks call it. Owned columns come first, so self loops are on the local diagonal."""
    loops, fill = ADD_MISSING_LOOPS if add_self_loops else KEEP_LOOPS, 2.0 if improved else 1.0
    graph.check_square()
    return graph.remember(
        ("gcn_norm", loops, fill, dtype),
        lambda: graph.with_local(_normalized(read_graph(graph.local, None, None).matrix(dtype, loops, fill), graph.exchange.extended)),
    )


@traced("nn.sums")
def sums(graph: Any, size: tuple[int, int], dtype: torch.dtype, edge_weight: Tensor | None = None) -> SparseTensor:
    """Return the matrix that sums source features at each target; ``size`` is (sources, targets)."""
    if is_sharded(graph):
        _check_unweighted(edge_weight)
        return graph if graph.dtype == dtype else graph.with_values(graph.values.to(dtype))
    edges = read_graph(graph, edge_weight, size)
    return edges.remember(("sums", dtype), lambda: edges.matrix(dtype))


def is_seldom_used(graph: Any, x: Any, cost: int = 1) -> bool:
    """Return whether the graph is small and in its first uses, when sums along edges take less time than making a matrix.

    ``cost`` is the work along an edge and channel, relative to a sum.
    """
    if type(x) is not Tensor or x.dtype not in PLAIN or not x.is_cpu or torch.compiler.is_compiling() or any_autocast():
        return False
    is_matrix = type(graph) is SparseTensor and graph.ndim == 2 and graph.dtype is x.dtype
    is_list = type(graph) is Tensor and graph.layout is torch.strided and graph.ndim == 2 and graph.shape[0] == 2
    edges = graph.nnz if is_matrix else graph.shape[1] if is_list else tuning.FEW_MESSAGES + 1
    if edges * x.shape[1] * cost > tuning.FEW_MESSAGES or not is_plain_mode():
        return False
    return next(graph.pattern.remember("uses", count) if is_matrix else remembered(graph, "uses", count)) < tuning.FEW_USES


@contextmanager
def naming_nodes(graph: Any, size: tuple[int, int]) -> Iterator[None]:
    """Let torch find nodes out of range, and raise the error of :func:`read_graph`, which names the edge, instead of torch's error."""
    try:
        yield
    except (IndexError, RuntimeError):
        read_graph(graph, None, size)
        raise


def sum_along(x: Tensor, targets: Tensor, sources: Tensor, nodes: int, weights: Tensor | None = None) -> Tensor:
    """Sum source features at each of the targets, edge by edge. Differentiable; O(edges * channels) time and memory.

    Args:
        x: features (sources, ...).
        targets, sources: the ends of each edge.
        nodes: number of targets.
        weights: factors of the features, (edges, ...) with as many dimensions as ``x``.
    """
    messages = x.index_select(0, sources)
    return x.new_zeros(nodes, *x.shape[1:]).index_add(0, targets, messages if weights is None else messages * weights)


def edge_sum(x: Any, graph: Any, size: tuple[int, int], divides: bool = False) -> Tensor:
    """Return the weighted sum of the source features at each target, computed edge by edge; ``divides`` averages.

    ``size`` is (sources, targets).
    """
    with naming_nodes(graph, size):
        targets, sources, weights = read_graph(graph, None, size, checks_nodes=False).listed(x.dtype)
        total = sum_along(x, targets, sources, size[1], None if weights is None else weights[:, None])
        return total / torch.bincount(targets, minlength=size[1]).clamp_(min=1)[:, None] if divides else total


def gcn_sum(x: Tensor, graph: Any, edge_weight: Tensor | None, improved: bool, add_self_loops: bool, normalize: bool) -> Tensor:
    """Return ``gcn_norm(...) @ x``, or the weighted sum without ``normalize``, computed edge by edge."""
    nodes = x.shape[0]
    with naming_nodes(graph, (nodes, nodes)):
        edges = read_graph(graph, edge_weight, (nodes, nodes), checks_nodes=False)
        targets, sources, weights = edges.listed(x.dtype, *_loops_of(edges, improved, add_self_loops))
        if normalize:
            weights = torch.ones_like(targets, dtype=x.dtype) if weights is None else weights
            roots = _roots(x.new_zeros(nodes).index_add(0, targets, weights))
            weights = roots.index_select(0, targets) * weights * roots.index_select(0, sources)
        return sum_along(x, targets, sources, nodes, None if weights is None else weights[:, None])


@traced("nn.normalized_sum", lambda x, *others: x)
def normalized_sum(x: Any, graph: Any, edge_weight: Tensor | None, improved: bool, add_self_loops: bool, normalize: bool) -> Any:
    """Return ``gcn_norm(...) @ x``, or the weighted sum without ``normalize``, by a matrix."""
    nodes = x.shape[0]
    if normalize:
        return einsum("ij,jf->if", gcn_norm(graph, edge_weight, nodes, improved, add_self_loops, dtype=x.dtype), x)
    return einsum("ij,jf->if", sums(graph, (nodes, nodes), x.dtype, edge_weight), x)


@traced("nn.means")
def means(graph: Any, size: tuple[int, int], dtype: torch.dtype) -> SparseTensor:
    """Return the matrix that averages source features at each target; ``size`` is (sources, targets)."""
    edges = read_graph(graph, None, size)

    def make() -> SparseTensor:
        A = edges.matrix(dtype)
        ones = A if edges.weights is None else A.with_values(torch.ones_like(A.values))
        return evaluate("M[i,j] = A[i,j] / c[i]", A=A, c=einsum("ij->i", ones))

    return edges.remember(("means", dtype), make)


@traced("nn.zeros")
def zeros(graph: Any, size: tuple[int, int], dtype: torch.dtype) -> SparseTensor:
    """Return a CSR matrix with a stored 0 at each edge; its max-plus product with features is each target's maximum.

    Raises:
        UnsupportedError: an adjacency matrix has values other than 1, which max-plus would ignore.
    """
    edges = read_graph(graph, None, size)

    def make() -> SparseTensor:
        weights = edges.by_rows().weights
        if weights is not None and not bool((weights == 1).all()):
            raise UnsupportedError(
                "aggr='max' and 'min' ignore edge weights, but the adjacency matrix has values other than 1: drop them with"
                " adj.with_values(torch.ones(adj.values.shape)), or use aggr='mean'"
            )
        counts = edges.counted(dtype, KEEP_LOOPS)
        return counts.with_values(torch.zeros_like(counts.values))

    return edges.remember(("zeros", dtype), make)


@graph_break
def multiplicities(graph: Any, size: tuple[int, int], dtype: torch.dtype, add_self_loops: bool) -> SparseTensor:
    """Return the number of edges from each source to each target, in CSR; edge weights are ignored.

    With ``add_self_loops``, each node that is both source and target has exactly one self loop.
    """
    edges = read_graph(graph, None, size)
    loops = REPLACE_LOOPS if add_self_loops else KEEP_LOOPS
    return edges.remember(("multiplicities", loops, dtype), lambda: edges.counted(dtype, loops))


def _normalized(A: SparseTensor, extended: Callable[[Tensor], Tensor] = lambda roots: roots) -> SparseTensor:
    """Normalise by the degrees of targets and of sources; ``extended`` maps the factors of targets to the factors of sources."""
    roots = _roots(einsum("ij->i", A))
    return evaluate("N[i,j] = d[i] * A[i,j] * e[j]", A=A, d=roots, e=extended(roots))


def _roots(degrees: Tensor) -> Tensor:
    """Return the inverse square roots of degrees, 0 for degree 0."""
    roots = degrees.pow(-0.5)
    return roots.masked_fill(roots == float("inf"), 0.0)
