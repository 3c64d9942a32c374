"""Graph inputs of convolutions: convert edge lists and adjacency matrices to sparse matrices (targets, sources).

``A[target, source]`` is the weight of an edge, so ``A @ x`` sums the features of each node's neighbours; see :func:`numscorch.adj_t`.
Derived matrices are cached with the tensor they were computed from, until it changes or is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..api import einsum, evaluate
from ..compute.gradients import attached
from ..errors import OperandError, SizeError, UnsupportedError
from ..interop.edge_lists import check_nodes, check_unpadded, counted
from ..ir.format import CSR
from ..tensors.arrays import as_indices, as_values
from ..tensors.graph_breaks import graph_break
from ..tensors.packing import is_identity, of_entries, pack
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .remembering import remembered

T = TypeVar("T")
KEEP_LOOPS, ADD_MISSING_LOOPS, REPLACE_LOOPS = "keep", "add missing", "replace"  # treatment of self loops
FEATURES_OF = "there are features of"
TO_TARGET, TO_SOURCE = FLOWS = "source_to_target", "target_to_source"


@graph_break
def gcn_norm(
    graph: Any,
    edge_weight: Tensor | None = None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = TO_TARGET,
    dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Return the adjacency matrix with self loops, normalised by the square roots of both nodes' degrees. O(edges) on a cache miss.

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
    loops = KEEP_LOOPS if not add_self_loops else REPLACE_LOOPS if edges.weights is None else ADD_MISSING_LOOPS
    fill = 2.0 if improved and edges.weights is not None else 1.0
    return edges.remember(("gcn_norm", loops, fill, dtype), lambda: _normalized(edges.matrix(dtype, loops, fill)))


def is_sharded(graph: Any) -> bool:
    """Return whether the graph is distributed over ranks, a ``ShardedSparseTensor``."""
    return hasattr(graph, "with_halo")


def _check_unweighted(edge_weight: Tensor | None) -> None:
    """Check that no weights are given beside a sharded graph, whose values are the weights.

    Raises:
        UnsupportedError: there are.
    """
    if edge_weight is not None:
        raise UnsupportedError("edge_weight beside a sharded graph: its values are the weights, give A.with_values(edge_weight)")


def _gcn_norm_of_sharded(graph: Any, improved: bool, add_self_loops: bool, dtype: torch.dtype | None) -> Any:
    """Return the normalised matrix on all ranks. Owned columns come first, so self loops are on the local diagonal."""
    loops, fill = ADD_MISSING_LOOPS if add_self_loops else KEEP_LOOPS, 2.0 if improved else 1.0
    graph.check_square()

    def make() -> Any:
        A = read_graph(graph.local, None, None).matrix(dtype, loops, fill)
        return graph.with_local(_normalized(A, graph.exchange.extended))

    return graph.remember(("gcn_norm", loops, fill, dtype), make)


@graph_break
def sums(graph: Any, size: tuple[int, int], dtype: torch.dtype, edge_weight: Tensor | None = None) -> SparseTensor:
    """Return the matrix that sums source features at each target; ``size`` is (sources, targets)."""
    if is_sharded(graph):
        _check_unweighted(edge_weight)
        return graph if graph.dtype == dtype else graph.with_values(graph.values.to(dtype))
    edges = read_graph(graph, edge_weight, size)
    return edges.remember(("sums", dtype), lambda: edges.matrix(dtype))


@graph_break
def means(graph: Any, size: tuple[int, int], dtype: torch.dtype) -> SparseTensor:
    """Return the matrix that averages source features at each target; ``size`` is (sources, targets)."""
    edges = read_graph(graph, None, size)

    def make() -> SparseTensor:
        A = edges.matrix(dtype)
        ones = A if edges.weights is None else A.with_values(torch.ones_like(A.values))
        return evaluate("M[i,j] = A[i,j] / c[i]", A=A, c=einsum("ij->i", ones))

    return edges.remember(("means", dtype), make)


@graph_break
def zeros(graph: Any, size: tuple[int, int], dtype: torch.dtype) -> SparseTensor:
    """Return a CSR matrix with a stored 0 at each edge; its max-plus product with features is each target's maximum.

    Raises:
        UnsupportedError: an adjacency matrix has values other than 1, which max-plus would ignore.
    """
    edges = read_graph(graph, None, size)

    def make() -> SparseTensor:
        weights = edges.edge_weights()
        if weights is not None and not bool((weights == 1).all()):
            raise UnsupportedError(
                "aggr='max' and 'min' ignore edge weights, but the adjacency matrix has values other than 1: drop them with"
                " adj.with_values(torch.ones(adj.values.shape)), or use aggr='mean'"
            )
        pattern = edges.place(KEEP_LOOPS).pattern
        return SparseTensor(pattern, torch.zeros(pattern.nnz, dtype=dtype))

    return edges.remember(("zeros", dtype), make)


@graph_break
def multiplicities(graph: Any, size: tuple[int, int], dtype: torch.dtype, add_self_loops: bool) -> SparseTensor:
    """Return the number of edges from each source to each target, in CSR; edge weights are ignored.

    With ``add_self_loops``, each node that is both source and target has exactly one self loop.
    """
    edges = read_graph(graph, None, size)
    loops = REPLACE_LOOPS if add_self_loops else KEEP_LOOPS
    return edges.remember(("multiplicities", loops, dtype), lambda: edges.place(loops).matrix(torch.ones(edges.edges, dtype=dtype), 1.0))


def _normalized(A: SparseTensor, extended: Callable[[Tensor], Tensor] = lambda roots: roots) -> SparseTensor:
    """Normalise by the degrees of targets and of sources; ``extended`` turns the factors of the targets into those of the sources."""
    degrees = einsum("ij->i", A)
    roots = degrees.pow(-0.5)
    roots = roots.masked_fill(roots == float("inf"), 0.0)
    return evaluate("N[i,j] = d[i] * A[i,j] * e[j]", A=A, d=roots, e=extended(roots))


# ---- reading a graph


@dataclass(frozen=True, eq=False)
class EdgePlacement:
    """The positions of edge weights among the values of a matrix (targets, sources)."""

    pattern: Pattern
    slots: Tensor | None  # position of each weight; None if the weights are in order
    selection: Tensor | None  # indices of the selected edges; None for all edges
    added_loops: int  # number of self loops after the selected edges

    def matrix(self, weights: Tensor, fill: float) -> SparseTensor:
        """Return the matrix of these weights, summed over parallel edges; ``fill`` is the weight of added loops. Differentiable."""
        values = weights if self.selection is None else weights.index_select(0, self.selection)
        if self.added_loops:
            values = torch.cat([values, values.new_full((self.added_loops,), fill)])
        if self.slots is not None:
            values = values.new_zeros(self.pattern.nnz).index_add(0, self.slots, values)
        return SparseTensor(self.pattern, values)


def place_edges(endpoints: Tensor, shape: tuple[int, int], loops: str) -> EdgePlacement:
    """Place edges with these targets and sources (2, edges) in a CSR matrix. O(edges log edges).

    ``loops`` says whether self loops are kept, added to nodes without one, or replaced by one per node.
    """
    selection, missing = None, torch.empty(0, dtype=torch.int64)
    if loops != KEEP_LOOPS:
        is_loop = endpoints[0] == endpoints[1]
        selection, nodes = (~is_loop).nonzero().flatten(), min(shape)
        last = torch.full((nodes,), -1)
        if loops == ADD_MISSING_LOOPS:
            edges = is_loop.nonzero().flatten()
            last.scatter_reduce_(0, endpoints[0, edges], edges, "amax")
        selection, missing = torch.cat([selection, last[last >= 0]]), (last < 0).nonzero().flatten()
        endpoints = torch.cat([endpoints[:, selection], missing.expand(2, -1)], dim=1)
    pattern, positions, order = pack(endpoints.numpy(), shape, CSR)
    slots = torch.empty(len(order), dtype=torch.int64)
    slots[torch.from_numpy(order)] = torch.from_numpy(positions)
    return EdgePlacement(pattern, None if is_identity(slots.numpy(), pattern.nnz) else slots, selection, len(missing))


@dataclass(frozen=True, eq=False)
class GraphInput:
    """A graph argument: an edge list or an adjacency matrix."""

    source: Tensor | SparseTensor  # edge_index, or the matrix
    shape: tuple[int, int]  # targets, sources
    weights: Tensor | None  # edge_weight, or the values of the matrix
    cache_owner: Tensor  # the tensor that owns the cached results

    @property
    def edges(self) -> int:
        """The number of edges."""
        return self.source.nnz if isinstance(self.source, SparseTensor) else int(self.source.shape[1])

    def place(self, loops: str) -> EdgePlacement:
        """Return the placement of the edges, cached with the pattern or the edge list."""
        if isinstance(self.source, SparseTensor):
            A = self.source
            return A.pattern.remember(("edges", loops), lambda: place_edges(A.indices(), self.shape, loops))
        edges = self.source
        return remembered(edges, ("edges", self.shape, loops), lambda: place_edges(_endpoints(edges), self.shape, loops))

    def endpoints(self, loops: str) -> Tensor:
        """Return targets and sources (2, edges) of the placed edges, added loops last; ``loops`` keeps or replaces self loops."""
        placement = self.place(loops)
        edges = self.source.indices() if isinstance(self.source, SparseTensor) else _endpoints(self.source)
        edges = edges if placement.selection is None else edges[:, placement.selection]
        return torch.cat([edges, torch.arange(placement.added_loops).expand(2, -1)], 1) if placement.added_loops else edges

    def edge_weights(self) -> Tensor | None:
        """Return the edge weights in the order of the edge list or of the matrix's entries; None for an unweighted edge list."""
        return of_entries(self.source.pattern, self.source.values) if isinstance(self.source, SparseTensor) else self.weights

    def matrix(self, dtype: torch.dtype | None, loops: str = KEEP_LOOPS, fill: float = 1.0) -> SparseTensor:
        """Return the weighted adjacency matrix."""
        A, keeps_entries = self.source, isinstance(self.source, SparseTensor) and loops == KEEP_LOOPS
        stored = self.weights if keeps_entries else self.edge_weights()
        weights = torch.ones(self.edges, dtype=dtype) if stored is None else stored
        weights = weights if dtype is None else weights.to(dtype)
        weights = weights if weights.requires_grad else weights.detach()  # a new tensor: the cache must not keep the user's alive
        if isinstance(A, SparseTensor) and keeps_entries:
            return A.with_values(weights)
        return self.place(loops).matrix(weights, fill)

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """Return ``make()``, cached by ``key`` unless the weights require grad."""
        if self.cache_owner.requires_grad:
            return make()
        return remembered(self.cache_owner, (self._pattern(), *key), make)

    def _pattern(self) -> Hashable:
        """Return the part of the cache key that distinguishes graphs with the same cache owner."""
        if isinstance(self.source, SparseTensor):
            return self.source.pattern
        return self.shape if self.weights is None else self.place(KEEP_LOOPS)


def check_flow(layer: str, flow: object) -> None:
    """Check the direction of messages.

    Raises:
        UnsupportedError: the direction is unknown.
    """
    if flow not in FLOWS:
        raise UnsupportedError(f"{layer} with flow={flow!r}: give {TO_TARGET!r} or {TO_SOURCE!r}")


def directed(graph: Any, flow: str) -> Any:
    """Return the graph itself for ``"source_to_target"``, or the reversed graph for ``"target_to_source"``.

    Raises:
        UnsupportedError: the direction is unknown.
    """
    check_flow("gcn_norm", flow)
    if flow == TO_TARGET:
        return graph
    if is_sharded(graph):
        raise UnsupportedError(f"flow={flow!r} with a graph that is distributed over ranks: shard the reversed graph, A.t()")
    if is_matrix(graph):
        return attached(graph).t()
    return remembered(graph, TO_SOURCE, lambda: _endpoints(graph)) if isinstance(graph, Tensor) else graph


def is_matrix(graph: Any) -> bool:
    """Return whether a graph is an adjacency matrix rather than an edge list."""
    return isinstance(graph, SparseTensor | SparseParameter) or (isinstance(graph, Tensor) and graph.layout is not torch.strided)


def stated_size(graph: Any) -> tuple[int | None, int | None] | None:
    """Return (sources, targets) of a matrix or of PyTorch Geometric's ``EdgeIndex``; None for a plain edge list.

    >>> stated_size(torch.zeros(2, 7, dtype=torch.int64)), stated_size(torch.zeros(2, 7).to_sparse())
    (None, (7, 2))
    """
    if is_matrix(graph):
        return (graph.shape[1], graph.shape[0]) if graph.ndim == 2 else None
    return graph.sparse_size() if hasattr(graph, "sparse_size") else None


def read_graph(graph: Any, edge_weight: Tensor | None, size: tuple[int, int] | None) -> GraphInput:
    """Read a graph; ``size`` is (sources, targets), and by default follows from the graph.

    Raises:
        FormatError: an edge list does not hold integers.
        OperandError: an object with an ``edge_index`` is given in its place.
        RangeError: a node index is out of range.
        SizeError: shapes do not match.
        UnsupportedError: ``graph`` is not a graph, or an adjacency matrix is given with edge_weight.
    """
    if is_matrix(graph):
        return _from_matrix(graph, edge_weight, size)
    if not isinstance(graph, Tensor) and hasattr(graph, "edge_index"):
        raise OperandError(f"a graph is an edge_index or a matrix, not a {type(graph).__name__}: pass data.edge_index")
    if not isinstance(graph, Tensor):
        raise UnsupportedError(
            f"a graph is an edge_index or an adjacency matrix, not {type(graph).__name__}: pass torch.as_tensor(edges) of shape (2, edges),"
            " or a matrix A[target, source], such as ns.adj_t(edges) or ns.from_networkx(graph).t()"
        )
    return _from_edges(graph, edge_weight, size)


def _from_matrix(graph: Any, edge_weight: Tensor | None, size: tuple[int, int] | None) -> GraphInput:
    if edge_weight is not None:
        raise UnsupportedError("edge_weight with an adjacency matrix, whose values are the weights: pass adj.with_values(edge_weight)")
    A = attached(graph)
    if not isinstance(A, SparseTensor):
        raise UnsupportedError("the adjacency matrix has only dense levels: convert it with .to(ns.CSR)")
    if A.ndim != 2:
        raise SizeError(
            f"a tensor of shape {A.pattern.shape} is not the matrix of a graph: pass a matrix with 2 dimensions, (targets, sources)"
        )
    if size is not None and A.pattern.shape != size[::-1]:
        hint = "; did you mean adj.t()?" if A.pattern.shape == size else ""
        raise SizeError(
            f"the adjacency matrix has shape {A.pattern.shape}, but {FEATURES_OF} {counted(size)}: "
            f"it has a row for each target and a column for each source{hint}"
        )
    check_unpadded(A)
    return GraphInput(A, (A.pattern.shape[0], A.pattern.shape[1]), A.values, A.values)


def _from_edges(graph: Tensor, edge_weight: Tensor | None, size: tuple[int, int] | None) -> GraphInput:
    count = graph.shape[1] if graph.ndim == 2 and len(graph) == 2 else None
    if count is None:
        hint = "; did you mean edge_index.t()?" if graph.ndim == 2 and graph.shape[1] == 2 else ""
        hint = "; make a dense adjacency matrix sparse with ns.from_torch(adj)" if graph.is_floating_point() and graph.ndim == 2 else hint
        raise SizeError(f"edge_index has shape {tuple(graph.shape)}: pass sources and targets, shape (2, edges){hint}")
    largest = remembered(graph, "largest", lambda: _largest(graph, size))
    size = (max(largest) + 1, max(largest) + 1) if size is None else size
    if max(largest[0] - size[0], largest[1] - size[1]) >= 0:
        check_nodes(_endpoints(graph).flip(0), size, FEATURES_OF)
    weights = None
    if edge_weight is not None:
        weights = as_values(edge_weight)
        if len(weights) != count:
            raise SizeError(f"edge_weight has {len(weights)} entries, but edge_index has {count} edges: pass one weight per edge")
    return GraphInput(graph, size[::-1], weights, graph if edge_weight is None else edge_weight)


def _endpoints(edges: Tensor) -> Tensor:
    """Return targets and sources of an edge list, int64 of shape (2, edges)."""
    plain = edges.as_tensor() if hasattr(edges, "as_tensor") else edges  # PyTorch Geometric's EdgeIndex
    return as_indices(plain, "edge_index").to(torch.int64).flip(0)


def _largest(edges: Tensor, size: tuple[int, int] | None) -> tuple[int, int]:
    """Return the largest source and target index, or -1 without edges; ``size`` is (sources, targets), if known.

    Raises:
        FormatError: the indices are not integers.
        RangeError: an index is negative.
    """
    endpoints = _endpoints(edges)
    if not endpoints.numel():
        return -1, -1
    if int(endpoints.min()) < 0:
        check_nodes(endpoints.flip(0), size or (int(endpoints.max()) + 1,) * 2, FEATURES_OF)
    targets, sources = endpoints.amax(1).tolist()
    return sources, targets
