"""Graphs as convolutions read them: edge lists or adjacency matrices, made into matrices of targets and sources.

``A[target, source]`` weighs an edge, so that ``A @ x`` sums what each node's neighbours send it: see :func:`numscorch.adj_t`.
What is made of a graph is remembered beside the tensor it was made from, until that is written to or dies.
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
from ..interop.graphs import check_nodes, check_unpadded, counted
from ..ir.format import CSR
from ..tensors.arrays import as_indices, as_values
from ..tensors.packing import is_identity, of_entries, pack
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor, beside_programs
from .remembering import remembered

T = TypeVar("T")
KEEP_LOOPS, ADD_MISSING_LOOPS, REPLACE_LOOPS = "keep", "add missing", "replace"  # treatment of self loops
FEATURES_OF = "there are features of"
TO_TARGET, TO_SOURCE = FLOWS = "source_to_target", "target_to_source"


@beside_programs
def gcn_norm(
    graph: Any,
    edge_weight: Tensor | None = None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = TO_TARGET,
    dtype: torch.dtype | None = None,
) -> SparseTensor:
    """The adjacency matrix with self loops, each weight divided by the roots of its two nodes' degrees. O(edges), once.

    It is remembered beside the graph. It is computed again at each call if weights require grad or a tensor was made under
    ``torch.inference_mode()``, and otherwise after a change that torch counts (``mul_``, an optimizer step) or ``.data = other``. Writes
    through ``.data`` or a shared numpy array are not seen: make a new matrix with ``A.with_values(...)``, or write within
    ``torch.no_grad()``.

    A node's degree is the sum of the weights of the edges to it; where that is 0, so are the results.

    Args:
        graph: edges from sources to targets, int64 of shape (2, edges), or an adjacency matrix of shape (targets, sources), as
            :func:`numscorch.adj_t` makes: a SparseTensor, or a sparse tensor of torch's. See the guide: graphs.
        edge_weight: one for each edge, of shape (edges,); 1 by default. Weights of equal edges are summed.
        num_nodes: how many there are, by default as many as the graph names.
        improved: whether a self loop that is added weighs 2. As in PyTorch Geometric, it has no effect on an edge list without weights, but
            on a matrix, whose values are weights, it has.
        add_self_loops: whether each node without a self loop gets one. A loop that is there keeps its weight; of several in an edge
            list, the last one does.
        flow: ``"source_to_target"``, or ``"target_to_source"`` to send messages against the edges.
        dtype: of the weights; by default as they come, and torch's default for an edge list without them.

    Shape:
        (num_nodes, num_nodes).

    Raises:
        FormatError: an edge list of numbers that are no integers.
        RangeError: an edge names a node that there isn't.
        SizeError: shapes that disagree.
        UnsupportedError: it is no graph, or an adjacency matrix comes with other weights.

    Source: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2017.

    >>> gcn_norm(torch.tensor([[0], [1]]), num_nodes=2).to_dense()
    tensor([[1.0000, 0.0000],
            [0.7071, 0.5000]])
    """
    graph = directed(graph, flow)
    make = partial(_gcn_norm, graph, edge_weight, num_nodes, improved, add_self_loops, dtype)
    if edge_weight is None and type(graph) is Tensor and not graph.requires_grad:  # what was found right once isn't looked at again
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


@beside_programs
def sums(graph: Any, size: tuple[int, int], dtype: torch.dtype, edge_weight: Tensor | None = None) -> SparseTensor:
    """The matrix whose product with the sources' features is the sum of what arrives at each target; ``size`` is (sources, targets)."""
    edges = read_graph(graph, edge_weight, size)
    return edges.remember(("sums", dtype), lambda: edges.matrix(dtype))


@beside_programs
def means(graph: Any, size: tuple[int, int], dtype: torch.dtype) -> SparseTensor:
    """The matrix whose product with the sources' features is the mean of what arrives at each target."""
    edges = read_graph(graph, None, size)

    def make() -> SparseTensor:
        A = edges.matrix(dtype)
        ones = A if edges.weights is None else A.with_values(torch.ones_like(A.values))
        matrix: SparseTensor = evaluate("M[i,j] = A[i,j] / c[i]", A=A, c=einsum("ij->i", ones))
        return matrix

    return edges.remember(("means", dtype), make)


@beside_programs
def zeros(graph: Any, size: tuple[int, int], dtype: torch.dtype) -> SparseTensor:
    """A stored 0 for each pair of nodes with an edge, in CSR: its max-plus product with features is the largest that arrives.

    Raises:
        UnsupportedError: an adjacency matrix has other values than 1, by which nothing is multiplied here.
    """
    edges = read_graph(graph, None, size)

    def make() -> SparseTensor:
        weights = edges.edge_weights()
        if weights is not None and not bool((weights == 1).all()):
            raise UnsupportedError(
                "aggr='max' and 'min' take no weighted messages, but the adjacency matrix has values other than 1: drop them with"
                " adj.with_values(torch.ones(adj.values.shape)), or use aggr='mean'"
            )
        pattern = edges.place(KEEP_LOOPS).pattern
        return SparseTensor(pattern, torch.zeros(pattern.nnz, dtype=dtype))

    return edges.remember(("zeros", dtype), make)


@beside_programs
def multiplicities(graph: Any, size: tuple[int, int], dtype: torch.dtype, add_self_loops: bool) -> SparseTensor:
    """How many edges there are from each source to each target, in CSR; weights don't matter.

    With ``add_self_loops``, every node that is both has exactly one to itself.
    """
    edges = read_graph(graph, None, size)
    loops = REPLACE_LOOPS if add_self_loops else KEEP_LOOPS
    return edges.remember(("multiplicities", loops, dtype), lambda: edges.place(loops).matrix(torch.ones(edges.edges, dtype=dtype), 1.0))


def _normalized(A: SparseTensor) -> SparseTensor:
    degrees = einsum("ij->i", A)
    roots = degrees.pow(-0.5)
    roots = roots.masked_fill(roots == float("inf"), 0.0)
    normalized: SparseTensor = evaluate("N[i,j] = d[i] * A[i,j] * e[j]", A=A, d=roots, e=roots)
    return normalized


# ---- taking a graph


@dataclass(frozen=True, eq=False)
class EdgePlacement:
    """Where the weights of edges go in a matrix of targets and sources."""

    pattern: Pattern
    slots: Tensor | None  # the position of each weight; None where they are in order
    selection: Tensor | None  # which edges' weights are taken; None where all are
    added_loops: int  # self loops that come after them

    def matrix(self, weights: Tensor, fill: float) -> SparseTensor:
        """The matrix of these weights, those at one place summed; gradients flow to them."""
        values = weights if self.selection is None else weights.index_select(0, self.selection)
        if self.added_loops:
            values = torch.cat([values, values.new_full((self.added_loops,), fill)])
        if self.slots is not None:
            values = values.new_zeros(self.pattern.nnz).index_add(0, self.slots, values)
        return SparseTensor(self.pattern, values)


def place_edges(endpoints: Tensor, shape: tuple[int, int], loops: str) -> EdgePlacement:
    """Edges at these targets and sources (2, edges), with their self loops as they are, remaining or anew. O(edges log edges)."""
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
    """A graph as it was given: an edge list, or an adjacency matrix."""

    source: Tensor | SparseTensor  # edge_index, or the matrix
    shape: tuple[int, int]  # targets, sources
    weights: Tensor | None  # the edges', or the matrix's values
    cache_owner: Tensor  # what things are remembered with

    @property
    def edges(self) -> int:
        """How many there are."""
        return self.source.nnz if isinstance(self.source, SparseTensor) else int(self.source.shape[1])

    def place(self, loops: str) -> EdgePlacement:
        """Where the edges go; remembered with the pattern or the edge list."""
        if isinstance(self.source, SparseTensor):
            A = self.source
            return A.pattern.remember(("edges", loops), lambda: place_edges(A.indices(), self.shape, loops))
        edges = self.source
        return remembered(edges, ("edges", self.shape, loops), lambda: place_edges(_endpoints(edges), self.shape, loops))

    def endpoints(self, loops: str) -> Tensor:
        """Targets and sources (2, edges) of the edges that are placed, their self loops as they are or anew."""
        placement = self.place(loops)
        edges = self.source.indices() if isinstance(self.source, SparseTensor) else _endpoints(self.source)
        edges = edges if placement.selection is None else edges[:, placement.selection]
        return torch.cat([edges, torch.arange(placement.added_loops).expand(2, -1)], 1) if placement.added_loops else edges

    def edge_weights(self) -> Tensor | None:
        """The weight of each edge, in the order of the edge list or of the matrix's entries; None where an edge list has none."""
        return of_entries(self.source.pattern, self.source.values) if isinstance(self.source, SparseTensor) else self.weights

    def matrix(self, dtype: torch.dtype | None, loops: str = KEEP_LOOPS, fill: float = 1.0) -> SparseTensor:
        """The weighted adjacency matrix."""
        A, keeps_entries = self.source, isinstance(self.source, SparseTensor) and loops == KEEP_LOOPS
        given = self.weights if keeps_entries else self.edge_weights()
        weights = torch.ones(self.edges, dtype=dtype) if given is None else given
        weights = weights if dtype is None else weights.to(dtype)
        weights = weights if weights.requires_grad else weights.detach()  # another tensor: what is remembered keeps none of a user's alive
        if isinstance(A, SparseTensor) and keeps_entries:
            return A.with_values(weights)
        return self.place(loops).matrix(weights, fill)

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """What is made of the graph, made at the first call; at each call, where gradients flow to the weights."""
        if self.cache_owner.requires_grad:
            return make()
        return remembered(self.cache_owner, (self._pattern(), *key), make)

    def _pattern(self) -> Hashable:
        """What tells apart graphs that are remembered beside one tensor."""
        if isinstance(self.source, SparseTensor):
            return self.source.pattern
        return self.shape if self.weights is None else self.place(KEEP_LOOPS)


def check_flow(layer: str, flow: object) -> None:
    """That a direction is known.

    Raises:
        UnsupportedError: it isn't.
    """
    if flow not in FLOWS:
        raise UnsupportedError(f"{layer} with flow={flow!r}: give {TO_TARGET!r} or {TO_SOURCE!r}")


def directed(graph: Any, flow: str) -> Any:
    """The same graph if messages go from sources to targets, else the reversed one.

    Raises:
        UnsupportedError: an unknown direction.
    """
    check_flow("gcn_norm", flow)
    if flow == TO_TARGET:
        return graph
    if is_matrix(graph):
        return attached(graph).t()
    return remembered(graph, TO_SOURCE, lambda: _endpoints(graph)) if isinstance(graph, Tensor) else graph


def is_matrix(graph: Any) -> bool:
    """Whether a graph is an adjacency matrix rather than an edge list."""
    return isinstance(graph, SparseTensor | SparseParameter) or (isinstance(graph, Tensor) and graph.layout is not torch.strided)


def stated_size(graph: Any) -> tuple[int | None, int | None] | None:
    """How many sources and targets a graph says that there are: a matrix, or an ``EdgeIndex`` of PyTorch Geometric; None if it doesn't.

    >>> stated_size(torch.zeros(2, 7, dtype=torch.int64)), stated_size(torch.zeros(2, 7).to_sparse())
    (None, (7, 2))
    """
    if is_matrix(graph):
        return (graph.shape[1], graph.shape[0]) if graph.ndim == 2 else None
    return graph.sparse_size() if hasattr(graph, "sparse_size") else None


def read_graph(graph: Any, edge_weight: Tensor | None, size: tuple[int, int] | None) -> GraphInput:
    """A graph between so many sources and targets; by default, as many as it names.

    Raises:
        FormatError: an edge list of numbers that are no integers.
        RangeError: an edge names a node that there isn't.
        SizeError: shapes that disagree.
        UnsupportedError: it is no graph, or an adjacency matrix comes with other weights.
    """
    if is_matrix(graph):
        return _from_matrix(graph, edge_weight, size)
    if not isinstance(graph, Tensor) and hasattr(graph, "edge_index"):
        raise OperandError(f"a graph is an edge_index or a matrix, not a {type(graph).__name__}: pass data.edge_index")
    if not isinstance(graph, Tensor):
        raise UnsupportedError(
            f"a graph is an edge_index or an adjacency matrix, not {type(graph).__name__}: pass torch.as_tensor(edges) of shape (2, edges),"
            " or a matrix A[target, source], as of ns.adj_t(edges) or ns.from_networkx(graph).t()"
        )
    return _from_edges(graph, edge_weight, size)


def _from_matrix(graph: Any, edge_weight: Tensor | None, size: tuple[int, int] | None) -> GraphInput:
    if edge_weight is not None:
        raise UnsupportedError("edge_weight beside an adjacency matrix, whose values are the weights: pass adj.with_values(edge_weight)")
    A = attached(graph)
    if not isinstance(A, SparseTensor):
        raise UnsupportedError("an adjacency matrix whose levels are all dense: convert it with .to(ns.CSR)")
    if A.ndim != 2:
        raise SizeError(f"a tensor of shape {A.pattern.shape} is no graph: its matrix has 2 dimensions, (targets, sources)")
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
            raise SizeError(f"edge_weight has {len(weights)} entries, but edge_index has {count} edges: pass one weight for each")
    return GraphInput(graph, size[::-1], weights, graph if edge_weight is None else edge_weight)


def _endpoints(edges: Tensor) -> Tensor:
    """Targets and sources of an edge list, int64."""
    plain = edges.as_tensor() if hasattr(edges, "as_tensor") else edges  # PyTorch Geometric's EdgeIndex
    return as_indices(plain, "edge_index").to(torch.int64).flip(0)


def _largest(edges: Tensor, size: tuple[int, int] | None) -> tuple[int, int]:
    """The largest source and the largest target; ``size`` is how many there may be, where that is known.

    Raises:
        FormatError: numbers that are no integers.
        RangeError: a number is negative.
    """
    endpoints = _endpoints(edges)
    if not endpoints.numel():
        return -1, -1
    if int(endpoints.min()) < 0:
        check_nodes(endpoints.flip(0), size or (int(endpoints.max()) + 1,) * 2, FEATURES_OF)
    targets, sources = endpoints.amax(1).tolist()
    return sources, targets
