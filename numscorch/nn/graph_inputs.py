"""Graph inputs of convolutions: read edge lists and adjacency matrices, check them, and place their edges in a matrix.

Values derived from the tensors of a graph are cached until a tensor changes or is freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
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
from ..tensors.packing import counted_entries, is_identity, of_entries, pack
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .csr_patterns import keys_of, of_keys

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
        return SparseTensor(self.pattern, self.summed(values))

    def summed(self, values: Tensor) -> Tensor:
        """Return the values of the matrix, each the sum of the values of parallel edges."""
        if self.slots is None:
            return values
        wide = values.new_zeros(self.pattern.nnz, *values.shape[1:], dtype=summed_in(values.dtype))
        return wide.index_add(0, self.slots, values.to(wide.dtype)).to(values.dtype)


def place_edges(endpoints: np.ndarray, shape: tuple[int, int], loops: str) -> EdgePlacement:
    """Place edges in a CSR matrix; ``endpoints`` holds their targets and sources (2, edges). O(edges log edges).

    ``loops`` says whether self loops are kept, added to nodes without one, or replaced by one per node.
    """
    selection, missing = None, np.arange(0)
    if loops != KEEP_LOOPS:
        is_loop = endpoints[0] == endpoints[1]
        selection, last = np.flatnonzero(~is_loop), np.full(min(shape), -1)
        if loops == ADD_MISSING_LOOPS:
            edges = np.flatnonzero(is_loop)
            last[endpoints[0, edges]] = edges  # of several loops, NumPy keeps the last one
        selection, missing = np.concatenate([selection, last[last >= 0]]), np.flatnonzero(last < 0)
        endpoints = np.concatenate([endpoints[:, selection], np.stack([missing, missing])], axis=1)
    pattern, positions, order = pack(endpoints, shape, CSR)
    slots = np.empty(len(order), dtype=np.int64)
    slots[order] = positions
    return EdgePlacement(
        pattern,
        None if is_identity(slots, pattern.nnz) else torch.from_numpy(slots),
        None if selection is None else torch.from_numpy(selection),
        len(missing),
    )


def place_missing_loops(pattern: Pattern) -> EdgePlacement:
    """Place the entries of a CSR matrix and a self loop in each row without one; entries stay in order. O(nnz + rows).

    >>> import numscorch as ns
    >>> placement = place_missing_loops(ns.from_torch(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).pattern)
    >>> [array.tolist() for array in placement.pattern.arrays[1]], placement.slots.tolist()
    ([[0, 2, 4], [0, 1, 0, 1]], [1, 2, 3, 0])
    """
    keys = keys_of(pattern)
    diagonal = np.arange(pattern.shape[0]) * (pattern.shape[1] + 1)
    at = keys.searchsorted(diagonal)
    missing = np.flatnonzero(np.append(keys, -1)[at] != diagonal)
    added = at[missing] + np.arange(len(missing))
    slots = np.append(np.delete(np.arange(len(keys) + len(missing)), added), added)
    placed = of_keys(np.insert(keys, at[missing], diagonal[missing]), pattern.shape)
    return EdgePlacement(placed, torch.from_numpy(slots), None, len(missing))


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
            if loops == ADD_MISSING_LOOPS and A.format == CSR and self.shape[0] <= self.shape[1] < 1 << 31:
                return A.pattern.remember(("edges", loops), lambda: place_missing_loops(A.pattern))
            return A.pattern.remember(("edges", loops), lambda: place_edges(as_numpy(A.indices()), self.shape, loops))
        edges = self.source
        return remembered(edges, ("edges", self.shape, loops), lambda: place_edges(as_numpy(_endpoints(edges)), self.shape, loops))

    def counted(self, dtype: torch.dtype | None, loops: str) -> SparseTensor:
        """Return the number of edges at each entry of the matrix; weights are ignored, and replaced self loops count once."""
        edges, shape, diagonal, placed = self.source, self.shape, loops == REPLACE_LOOPS, None
        if not isinstance(edges, SparseTensor):
            key = "edges", shape, loops, "counted"
            placed = remembered(edges, key, lambda: counted_entries(as_numpy(_checked(edges))[::-1], shape, diagonal=diagonal))
        if placed is None:
            return self.place(loops).matrix(torch.ones(self.edges, dtype=dtype), 1.0)
        return SparseTensor.trusted(placed[0], placed[1].to(torch.get_default_dtype() if dtype is None else dtype))

    def endpoints(self, loops: str) -> Tensor:
        """Return targets and sources (2, edges) of the placed edges, added loops last; ``loops`` keeps or replaces self loops."""
        edges = self.source.indices() if isinstance(self.source, SparseTensor) else _endpoints(self.source)
        if loops == KEEP_LOOPS:
            return edges
        placement = self.place(loops)
        edges = edges if placement.selection is None else edges[:, placement.selection]
        return torch.cat([edges, torch.arange(placement.added_loops).expand(2, -1)], 1) if placement.added_loops else edges

    def edge_weights(self) -> Tensor | None:
        """Return the edge weights in the order of the edge list or of the matrix's entries; None for an unweighted edge list."""
        return of_entries(self.source.pattern, self.source.values) if isinstance(self.source, SparseTensor) else self.weights

    def matrix(self, dtype: torch.dtype | None, loops: str = KEEP_LOOPS, fill: float = 1.0) -> SparseTensor:
        """Return the weighted adjacency matrix."""
        A, keeps_entries = self.source, isinstance(self.source, SparseTensor) and loops == KEEP_LOOPS
        stored = self.weights if keeps_entries else self.edge_weights()
        if stored is None:
            return self.counted(dtype, loops)
        weights = stored if dtype is None else stored.to(dtype)
        weights = weights if weights.requires_grad else weights.detach()  # a new tensor: the cache must not keep the user's tensor alive
        return A.with_values(weights) if isinstance(A, SparseTensor) and keeps_entries else self.place(loops).matrix(weights, fill)

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
    return hasattr(graph, "with_halo")


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
        if all(rows <= nodes for rows, nodes in zip(A.pattern.shape, size[::-1], strict=True)):
            nodes = size[0] if size[0] == size[1] else size
            hint = f"; if the last nodes have no edges, make it with ns.adj_t(edge_index, size={nodes})"
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
    sources, targets = remembered(graph, ("size", size), lambda: checked_size(_checked(graph), size, FEATURES_OF))
    weights = None
    if edge_weight is not None:
        weights = as_values(edge_weight)
        if len(weights) != count:
            raise SizeError(f"edge_weight has {len(weights)} entries, but edge_index has {count} edges: pass one weight per edge")
    return GraphInput(graph, (targets, sources), weights, graph if edge_weight is None else edge_weight)


def _checked(edges: Tensor) -> Tensor:
    """Return sources and targets of an edge list, int32 or int64 of shape (2, edges)."""
    return as_indices(edges.as_tensor() if hasattr(edges, "as_tensor") else edges, "edge_index")  # PyTorch Geometric's EdgeIndex


def _endpoints(edges: Tensor) -> Tensor:
    """Return targets and sources of an edge list, int64 of shape (2, edges)."""
    return _checked(edges).to(torch.int64).flip(0)
