"""Graph inputs of convolutions: read edge lists and adjacency matrices, check them, and place their edges in a matrix.

Values derived from the tensors of a graph are cached until a tensor changes or is freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from ..errors import OperandError, SizeError, UnsupportedError
from ..frontend.datatypes import summed_in
from ..interop.edge_lists import check_unpadded, checked_size, counted
from ..ir.format import CSR
from ..programs.gradients import attached
from ..programs.torch_sparse import forget
from ..tensors.arrays import as_indices, as_values
from ..tensors.modes import as_numpy, made_outside, without_autocast
from ..tensors.packing import coordinates, counted_entries, is_identity, of_entries, of_rows, pack
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor

T = TypeVar("T")

MOST_REMEMBERED = 32  # capacity of the cache, in values per tensor
KEEP_LOOPS, ADD_MISSING_LOOPS, REPLACE_LOOPS = "keep", "add missing", "replace"  # treatment of self loops
FEATURES_OF = "there are features of"
TO_TARGET, TO_SOURCE = FLOWS = "source_to_target", "target_to_source"

_entries: dict[int, tuple[weakref.ref[Tensor], tuple[int, int], dict[Hashable, Any]]] = {}  # by id: tensor, state, cached values


def remembered(tensor: Tensor, key: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``, cached by tensor and key until the tensor changes.

    The cache does not modify the tensor. Cached values must not refer to the tensor, because that would keep it alive.

    The cache detects changes by autograd's version counter and by the data pointer, which ``tensor.data = other`` changes. It does not
    detect writes through ``.data`` or a numpy array that shares the memory: write within ``torch.no_grad()`` instead. Tensors
    created under ``torch.inference_mode()`` have no version counter, and tensors within a torch.func transform have no data pointer:
    nothing is cached for them.

    >>> weights, total = torch.ones(2), lambda: remembered(weights, "sum", lambda: float(weights.sum()))
    >>> total(), weights.mul_(5).tolist(), total()
    (2.0, [5.0, 5.0], 10.0)
    >>> weights.data.mul_(5).tolist(), total()
    ([25.0, 25.0], 10.0)
    >>> weights.data = torch.ones(2)
    >>> total()
    2.0
    """
    if tensor.is_inference() or is_functorch_wrapped_tensor(tensor):
        return make()
    entry, state = _entries.get(id(tensor)), (tensor._version, tensor.data_ptr() if tensor.layout is torch.strided else 0)
    if entry is None or entry[0]() is not tensor or entry[1] != state:
        entry = _entries[id(tensor)] = weakref.ref(tensor, partial(forget, _entries, id(tensor))), state, {}
    values = entry[2]
    if key not in values:
        with torch.no_grad(), without_autocast():  # later calls may train, or use another precision
            computed = made_outside(make)
        if len(values) >= MOST_REMEMBERED:
            values.clear()
        values[key] = computed
    return values[key]


@dataclass(frozen=True, eq=False)
class EdgeSelection:
    """The edges that a layer uses: some edges of the graph, and added self loops after them."""

    kept: Tensor | None = None  # indices of the graph's edges; None for all edges
    added: Tensor | None = None  # nodes with an added self loop

    def of(self, features: Tensor) -> Tensor:
        """Return the features (edges, ...) of the kept edges."""
        return features if self.kept is None else features.index_select(0, self.kept)

    def weights(self, weights: Tensor, fill: float) -> Tensor:
        """Return the weights of all selected edges; ``fill`` is the weight of added loops. Differentiable."""
        kept = self.of(weights)
        return kept if self.added is None else torch.cat([kept, kept.new_full((len(self.added),), fill)])

    def ends(self, ends: Tensor) -> Tensor:
        """Return one end of all selected edges, from that of the graph's edges."""
        kept = self.of(ends)
        return kept if self.added is None else torch.cat([kept, self.added])


def select_edges(endpoints: Sequence[Tensor], nodes: int, loops: str) -> EdgeSelection:
    """Select edges by their targets and sources. O(edges + nodes).

    ``loops`` says whether self loops are kept, added to nodes without one, or replaced by one per node.
    """
    if loops == KEEP_LOOPS:
        return EdgeSelection()
    targets, sources = map(as_numpy, endpoints)
    is_loop = targets == sources
    kept, last = np.flatnonzero(~is_loop), np.full(nodes, -1)
    if loops == ADD_MISSING_LOOPS:
        edges = np.flatnonzero(is_loop)
        last[targets[edges]] = edges  # of several loops, NumPy keeps the last one
        kept = np.concatenate([kept, last[last >= 0]])
    return EdgeSelection(torch.from_numpy(kept), torch.from_numpy(np.flatnonzero(last < 0)))


@dataclass(frozen=True, eq=False)
class EdgePlacement:
    """The positions of selected edges among the values of a matrix (targets, sources)."""

    pattern: Pattern
    slots: Tensor | None  # position of each selected edge; None if they are in order
    selection: EdgeSelection

    def matrix(self, weights: Tensor, fill: float) -> SparseTensor:
        """Return the matrix of these weights, summed over parallel edges; ``fill`` is the weight of added loops. Differentiable."""
        return SparseTensor(self.pattern, self.summed(self.selection.weights(weights, fill)))

    def summed(self, values: Tensor) -> Tensor:
        """Return the values of the matrix, each the sum of the values of parallel edges."""
        if self.slots is None:
            return values
        wide = values.new_zeros(self.pattern.nnz, *values.shape[1:], dtype=summed_in(values.dtype))
        return wide.index_add(0, self.slots, values.to(wide.dtype)).to(values.dtype)


def place_edges(endpoints: Sequence[Tensor], shape: tuple[int, int], loops: str) -> EdgePlacement:
    """Place edges in a CSR matrix; ``endpoints`` holds their targets and sources, int64. O(edges log edges)."""
    selection = select_edges(endpoints, min(shape), loops)
    pattern, positions, order = pack(np.stack([as_numpy(selection.ends(ends)) for ends in endpoints]), shape, CSR)
    slots = np.empty(len(order), dtype=np.int64)
    slots[order] = positions
    return EdgePlacement(pattern, None if is_identity(slots, pattern.nnz) else torch.from_numpy(slots), selection)


def place_loops(pattern: Pattern, loops: str) -> EdgePlacement:
    """Place the entries of a CSR matrix and self loops, as ``place_edges`` does, but without sorting: O(nnz + rows).

    >>> import numscorch as ns
    >>> placement = place_loops(ns.from_torch(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).pattern, ADD_MISSING_LOOPS)
    >>> [array.tolist() for array in placement.pattern.arrays[1]], placement.slots.tolist()
    ([[0, 2, 4], [0, 1, 0, 1]], [1, 2, 3, 0])
    """
    (pos, columns), kept = pattern.level_arrays(1), None
    rows = np.arange(pattern.shape[0]).repeat(np.diff(pos))
    if loops == REPLACE_LOOPS:
        kept = np.flatnonzero(rows != columns)
        rows, columns = rows[kept], columns[kept]
    is_missing = np.ones(min(pattern.shape), bool)
    is_missing[columns[rows == columns]] = False
    missing = np.flatnonzero(is_missing)
    counts = np.bincount(rows, minlength=pattern.shape[0])
    before = np.cumsum(counts) - counts + np.bincount(rows[columns < rows], minlength=len(counts))  # entries before the diagonal
    added = before[missing] + np.arange(len(missing))
    slots = np.append(np.delete(np.arange(len(rows) + len(missing)), added), added)
    counts[missing] += 1
    placed = of_rows(counts, np.insert(columns, before[missing], missing), pattern.shape)
    selection = EdgeSelection(None if kept is None else torch.from_numpy(kept), torch.from_numpy(missing))
    return EdgePlacement(placed, torch.from_numpy(slots), selection)


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

    def by_rows(self) -> GraphInput:
        """Return the graph with its matrix in CSR."""
        if not isinstance(self.source, SparseTensor) or self.source.format == CSR:
            return self
        A = self.source.to(CSR)
        return replace(self, source=A, weights=A.values)

    def endpoints(self) -> tuple[Tensor, Tensor]:
        """Return the targets and the sources of all edges, int64."""
        if isinstance(self.source, SparseTensor):
            targets, sources = coordinates(self.source.pattern).unbind()
        else:
            edges = self.source
            is_plain = type(edges) is Tensor and edges.dtype is torch.int64  # the check takes as long as a sum over a small graph
            sources, targets = (edges if is_plain else _checked(edges).to(torch.int64)).unbind()
        return targets, sources

    def place(self, loops: str) -> EdgePlacement:
        """Return the placement of the edges, cached with the pattern or the edge list; a matrix must be in CSR."""
        source = self.source
        if not isinstance(source, SparseTensor):
            return remembered(source, ("edges", self.shape, loops), lambda: place_edges(self.endpoints(), self.shape, loops))
        if loops == KEEP_LOOPS:
            return EdgePlacement(source.pattern, None, EdgeSelection())
        return source.pattern.remember(("edges", loops), lambda: place_loops(source.pattern, loops))

    def counted(self, dtype: torch.dtype | None, loops: str) -> SparseTensor:
        """Return the number of edges at each entry of the matrix; weights are ignored, and replaced self loops count once."""
        graph, diagonal, placed = self.by_rows(), loops == REPLACE_LOOPS, None
        edges = graph.source
        if not isinstance(edges, SparseTensor):
            key = "edges", self.shape, loops, "counted"
            placed = remembered(edges, key, lambda: counted_entries(as_numpy(_checked(edges))[::-1], self.shape, diagonal=diagonal))
        if placed is None:
            return graph.place(loops).matrix(torch.ones(graph.edges, dtype=dtype), 1.0)
        return SparseTensor.trusted(placed[0], placed[1].to(torch.get_default_dtype() if dtype is None else dtype))

    def listed(self, dtype: torch.dtype, loops: str = KEEP_LOOPS, fill: float = 1.0) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return targets, sources and weights of the selected edges, added loops last; no weights for an unweighted edge list."""
        endpoints, weights = self.endpoints(), self.weights
        selection = select_edges(endpoints, min(self.shape), loops)
        if isinstance(self.source, SparseTensor):
            weights = of_entries(self.source.pattern, self.source.values)
        targets, sources = map(selection.ends, endpoints)
        return targets, sources, None if weights is None else selection.weights(weights.to(dtype), fill)

    def matrix(self, dtype: torch.dtype | None, loops: str = KEEP_LOOPS, fill: float = 1.0) -> SparseTensor:
        """Return the weighted adjacency matrix; in CSR, unless it is a matrix that keeps its loops."""
        graph = self if loops == KEEP_LOOPS else self.by_rows()
        if graph.weights is None:
            return graph.counted(dtype, loops)
        weights = graph.weights if dtype is None else graph.weights.to(dtype)
        weights = weights if weights.requires_grad else weights.detach()  # a new tensor: the cache must not keep the user's tensor alive
        if isinstance(graph.source, SparseTensor) and loops == KEEP_LOOPS:
            return graph.source.with_values(weights)
        return graph.place(loops).matrix(weights, fill)

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """Return ``make()``, cached by ``key`` unless the weights require grad."""
        if self.cache_owner.requires_grad:
            return make()
        pattern: Hashable = self.shape  # distinguishes graphs with the same cache owner
        if isinstance(self.source, SparseTensor):
            pattern = self.source.pattern
        elif self.weights is not None:
            pattern = self.place(KEEP_LOOPS)
        return remembered(self.cache_owner, (pattern, *key), make)


def is_sharded(graph: Any) -> bool:
    """Return whether the graph is distributed over ranks, a ``ShardedSparseTensor``."""
    return not isinstance(graph, SparseTensor | torch.Tensor) and hasattr(graph, "with_halo")


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
    return remembered(graph, TO_SOURCE, lambda: _checked(graph).to(torch.int64).flip(0)) if isinstance(graph, Tensor) else graph


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


def read_graph(graph: Any, edge_weight: Tensor | None, size: tuple[int, int] | None, checks_nodes: bool = True) -> GraphInput:
    """Read a graph; ``size`` is (sources, targets), and by default follows from the graph.

    Without ``checks_nodes``, the nodes of an edge list may be out of range; then ``size`` is required.

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
    return _from_edges(graph, edge_weight, size, checks_nodes)


def _from_matrix(graph: Any, edge_weight: Tensor | None, size: tuple[int, int] | None) -> GraphInput:
    if edge_weight is not None:
        raise UnsupportedError(
            "edge_weight with an adjacency matrix, whose values are the weights, ordered by target and not as in the edge list: make the "
            "matrix with its weights, as ns.adj_t(edge_index, edge_weight) does, and leave edge_weight out"
        )
    A = attached(graph)
    if not isinstance(A, SparseTensor):
        raise UnsupportedError("the adjacency matrix has only dense levels: convert it with .to(ns.CSR)")
    if A.ndim != 2:
        raise SizeError(
            f"a tensor of shape {A.pattern.shape} is not the matrix of a graph: pass a matrix with 2 dimensions, (targets, sources)"
        )
    if size is not None and A.pattern.shape != size[::-1]:
        hint = "; did you mean adj.t()?" if A.pattern.shape == size else ""
        if A.pattern.shape[0] < size[1] and A.pattern.shape[1] == size[0] == size[1]:
            hint = "; for a slice of rows, pass a pair of features, (x, x[rows]), to SAGEConv, GATConv or GINConv"
        elif all(rows <= nodes for rows, nodes in zip(A.pattern.shape, size[::-1], strict=True)):
            nodes = size[0] if size[0] == size[1] else size
            hint = f"; if the last nodes have no edges, make it with ns.adj_t(edge_index, size={nodes})"
        raise SizeError(
            f"the adjacency matrix has shape {A.pattern.shape}, but {FEATURES_OF} {counted(size)}: "
            f"it has a row for each target and a column for each source{hint}"
        )
    check_unpadded(A)
    return GraphInput(A, (A.pattern.shape[0], A.pattern.shape[1]), A.values, A.values)


def _from_edges(graph: Tensor, edge_weight: Tensor | None, size: tuple[int, int] | None, checks_nodes: bool) -> GraphInput:
    count = graph.shape[1] if graph.ndim == 2 and graph.shape[0] == 2 else None
    if count is None:
        hint = "; did you mean edge_index.t()?" if graph.ndim == 2 and graph.shape[1] == 2 else ""
        hint = "; make a dense adjacency matrix sparse with ns.from_torch(adj)" if graph.is_floating_point() and graph.ndim == 2 else hint
        raise SizeError(f"edge_index has shape {tuple(graph.shape)}: pass sources and targets, shape (2, edges){hint}")
    if checks_nodes or size is None:
        size = remembered(graph, ("size", size), lambda: checked_size(_checked(graph), size, FEATURES_OF))
    weights = None
    if edge_weight is not None:
        weights = as_values(edge_weight)
        if len(weights) != count:
            raise SizeError(f"edge_weight has {len(weights)} entries, but edge_index has {count} edges: pass one weight per edge")
    return GraphInput(graph, (size[1], size[0]), weights, graph if edge_weight is None else edge_weight)


def _checked(edges: Tensor) -> Tensor:
    """Return sources and targets of an edge list, int32 or int64 of shape (2, edges)."""
    return as_indices(edges.as_tensor() if hasattr(edges, "as_tensor") else edges, "edge_index")  # PyTorch Geometric's EdgeIndex
