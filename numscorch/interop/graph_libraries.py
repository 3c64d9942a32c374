"""Conversions between graphs of other libraries and adjacency matrices: torch_sparse, DGL and networkx.

Graphs of networkx and DGL become ``A[source, target]``, as in those libraries. Edges without weights become 1. Weights of duplicate
edges are summed; duplicate edges without weights become one entry of 1, with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..convert.construct import from_coo, from_csr, owned
from ..errors import FormatError, UnsupportedError
from ..ir.format import CSR, Format
from ..tensors.arrays import as_values
from ..tensors.graph_breaks import graph_break
from ..tensors.sparse_tensor import SparseTensor
from .edge_lists import check_graph, to_edge_index, unweighted

# ---- torch_sparse


@graph_break
def from_torch_sparse(adj: Any, format: Format | str | None = None, *, copy: bool = True) -> SparseTensor:
    """Convert a ``torch_sparse.SparseTensor``; gradients flow to the values.

    Graph layers take ``A[target, source]``, the ``adj_t`` of PyTorch Geometric. If the matrix is ``A[source, target]``, pass ``A.t()`` to
    them, a view of the same memory. See the guide on graphs.

    Args:
        adj: the matrix; entries without values become 1.
        format: the result's format, CSR by default.
        copy: False shares the CSR arrays. Then write to the values only.

    Returns:
        A SparseTensor of the matrix's shape.

    Raises:
        FormatError: the format has another number of dimensions, or can't store the entries.
        UnsupportedError: the argument isn't a ``torch_sparse.SparseTensor``, or the values have an unsupported data type or device.

    >>> from types import SimpleNamespace
    >>> arrays = torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.tensor([3.0, 4.0])  # row starts, columns, values
    >>> adj = SimpleNamespace(csr=lambda: arrays, sparse_sizes=lambda: (2, 2))  # stands for a torch_sparse.SparseTensor
    >>> from_torch_sparse(adj).to_dense()
    tensor([[0., 3.],
            [4., 0.]])
    """
    if not hasattr(adj, "sparse_sizes") or not hasattr(adj, "csr"):
        raise UnsupportedError(f"from_torch_sparse takes a torch_sparse.SparseTensor, not {type(adj).__name__}: use from_torch")
    pos, crd, values = adj.csr()
    A = _of_rows(pos, crd, values, tuple(adj.sparse_sizes()), format)
    return owned(A, pos, crd, *([] if values is None else [values])) if copy else A


def _of_rows(
    pos: torch.Tensor, crd: torch.Tensor, weights: torch.Tensor | None, shape: tuple[int, int], format: Format | str | None
) -> SparseTensor:
    """The matrix of CSR arrays; each stored entry is 1 if there are no weights."""
    A = from_csr(pos, crd, torch.ones(len(crd), device="cpu") if weights is None else weights, shape, copy=False)
    A = unweighted(A, len(crd)) if weights is None else A
    return A if format is None else A.to(format)


def to_torch_sparse(A: SparseTensor, copy: bool = True) -> Any:
    """Convert to a ``torch_sparse.SparseTensor`` with int64 CSR arrays; gradients flow to the values.

    ``copy=False`` shares the values of CSR, and index arrays that are int64. Then write to the values only.

    PyTorch Geometric's layers take ``A[target, source]``, as :func:`numscorch.adj_t` returns. See the guide on graphs.

    Raises:
        SizeError: the tensor isn't a matrix.
        UnsupportedError: the format has padding, such as ELL.
    """
    import torch_sparse

    check_graph(A)
    A = A.to(CSR)
    pos, crd = (array.to(torch.int64, copy=copy) for array in A.pattern.arrays[1])
    values = A.values.clone() if copy else A.values
    return torch_sparse.SparseTensor(
        rowptr=pos, col=crd, value=values, sparse_sizes=tuple(A.pattern.shape), is_sorted=True, trust_data=True
    )


# ---- DGL


@graph_break
def from_dgl(graph: Any, weight: str | torch.Tensor | None = None, format: Format | str | None = None) -> SparseTensor:
    """Create the adjacency matrix ``A[source, target]`` of a DGL graph with one edge type; gradients flow to the weights.

    Graph layers take ``A.t()``, which shares memory. See the guide on graphs.

    Args:
        graph: the graph.
        weight: the name of the edge data that holds the weights, or weights of shape (edges,) in the order of edge ids; by default ones.
        format: the result's format, CSR by default.

    Returns:
        A SparseTensor of shape (sources, targets).

    Raises:
        FormatError: the edges have no such data, or the format has another number of dimensions or can't store the edges.
        UnsupportedError: the argument isn't a DGL graph with one edge type, or the weights have an unsupported data type or device.

    >>> from types import SimpleNamespace
    >>> arrays = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2]), torch.tensor([0, 1])  # row starts, columns, edge ids
    >>> graph = SimpleNamespace(  # stands for dgl.graph(([0, 1], [1, 2]))
    ...     adj_tensors=lambda layout: arrays, num_src_nodes=lambda: 3, num_dst_nodes=lambda: 3
    ... )
    >>> from_dgl(graph).to_dense()
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [0., 0., 0.]])
    """
    if not hasattr(graph, "adj_tensors"):
        raise UnsupportedError(f"from_dgl takes a DGLGraph, not {type(graph).__name__}: use from_networkx, or ns.adj_t(edge_index)")
    kinds = getattr(graph, "canonical_etypes", (None,))
    if len(kinds) != 1:
        raise UnsupportedError(f"the graph has {len(kinds)} kinds of edges: pick one of them, as graph[{kinds[0]!r}]")
    if isinstance(weight, str) and weight not in graph.edata:
        raise FormatError(f"the edges have no data {weight!r}, but {', '.join(map(repr, graph.edata)) or 'none'}")
    values = graph.edata[weight] if isinstance(weight, str) else weight
    pos, crd, edge_ids = graph.adj_tensors("csr")
    if values is not None:
        values = as_values(values)
        values = values.index_select(0, edge_ids.to(torch.int64)) if len(edge_ids) else values
    A = _of_rows(pos, crd, values, (graph.num_src_nodes(), graph.num_dst_nodes()), format)
    return owned(A, pos, crd)  # DGL keeps these index arrays; weights are shared as in from_csr


def to_dgl(A: SparseTensor, weight: str = "weight") -> Any:
    """Convert to a DGL graph with an edge from i to j for each stored ``A[i, j]``, and the values as edge data ``weight``.

    Edges are in storage order. Pass ``A.t()`` if the matrix is ``A[target, source]``. See the guide on graphs.

    Raises:
        SizeError: the tensor isn't a square matrix.
        UnsupportedError: the format has padding, such as ELL.
    """
    import dgl

    check_graph(A, square=True)
    (sources, targets), values = to_edge_index(A.t())
    graph = dgl.graph((sources, targets), num_nodes=A.pattern.shape[0])
    graph.edata[weight] = values
    return graph


# ---- networkx


@graph_break
def from_networkx(
    graph: Any,
    weight: str | None = "weight",
    nodelist: Iterable[Any] | None = None,
    dtype: torch.dtype = torch.float32,
    format: Format | str | None = None,
) -> SparseTensor:
    """Create the adjacency matrix ``A[source, target]`` of a networkx graph, like ``networkx.to_scipy_sparse_array``.

    Graph layers take ``A.t()``, which shares memory. See the guide on graphs.

    Edges of an undirected graph are stored in both directions, self-loops once. Parallel edges of a multigraph are summed.

    Args:
        graph: a graph of any networkx class.
        weight: the edge attribute that holds the weight; edges without it have weight 1. None: all edges have weight 1.
        nodelist: the nodes in the order of rows and columns, possibly a subset; by default all nodes in the graph's order.
        dtype: the data type of the values.
        format: the result's format, CSR by default.

    Returns:
        A SparseTensor with a row and a column for each node.

    Raises:
        FormatError: a node is not in the graph or is named twice, the weights aren't numbers or the data type can't hold them, or the
            format has another number of dimensions or can't store the edges.
        UnsupportedError: the argument isn't a networkx graph, or the data type is not supported.

    Complexity:
        O(edges log edges).

    >>> import networkx
    >>> from_networkx(networkx.path_graph(3)).to_dense()
    tensor([[0., 1., 0.],
            [1., 0., 1.],
            [0., 1., 0.]])
    """
    if not hasattr(graph, "is_directed") or not hasattr(graph, "edges"):
        raise UnsupportedError(f"from_networkx takes a networkx graph, not {type(graph).__name__}: use ns.adj_t(edge_index)")
    rows = _row_numbers(graph, nodelist)
    entries = [
        (rows[source], rows[target], value)
        for source, target, value in graph.edges(data=weight, default=1)
        if source in rows and target in rows
    ]
    if not graph.is_directed():
        entries += [(target, source, value) for source, target, value in entries if source != target]
    sources, targets, values = zip(*entries, strict=True) if entries else ((), (), ())
    edges = torch.tensor([sources, targets], dtype=torch.int64, device="cpu")
    return from_coo(edges, _weights(values, dtype), (len(rows), len(rows)), CSR if format is None else format)


def _row_numbers(graph: Any, nodelist: Iterable[Any] | None) -> dict[Any, int]:
    """The row number of each node.

    Raises:
        FormatError: a node is not in the graph or is named twice.
    """
    nodes = list(graph if nodelist is None else nodelist)
    rows = {node: at for at, node in enumerate(nodes)}
    missing = [node for node in nodes if node not in graph]
    if missing:
        raise FormatError(f"nodelist names {missing[0]!r}, which is not a node of the graph")
    if len(rows) != len(nodes):
        duplicate = next(node for at, node in enumerate(nodes) if rows[node] != at)
        raise FormatError(f"nodelist names {duplicate!r} twice: name each node once")
    return rows


def _weights(values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """The weights as a tensor of a data type. Integer data types must hold the weights exactly.

    Raises:
        FormatError: the weights aren't numbers of one type, or an integer data type can't hold one of them.
    """
    try:
        exact = _as_wide(values, dtype)
        weights = exact.to(dtype)
    except (ArithmeticError, TypeError, ValueError, RuntimeError) as error:
        raise FormatError(f"the edge weights are not numbers of one type ({error}): pass weight=None, or another attribute") from error
    is_lost = (weights != exact) if not dtype.is_floating_point and not dtype.is_complex else torch.zeros(0, dtype=torch.bool, device="cpu")
    if bool(is_lost.any()):
        raise FormatError(f"{dtype} can't hold the weight {exact[is_lost][0].item()}: pass dtype=torch.float64")
    return weights


def _as_wide(values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Numbers as float64 or complex128; for integer data types as int64, if all numbers are integers.

    >>> _as_wide([0.5, 2**40 + 1], torch.float32).tolist()
    [0.5, 1099511627777.0]
    """
    wide = torch.complex128 if dtype.is_complex else torch.float64
    if not (dtype.is_complex or dtype.is_floating_point) and all(value % 1 == 0 for value in values):
        wide = torch.int64
    if any(isinstance(value, torch.Tensor) for value in values):
        return torch.stack([torch.as_tensor(value, dtype=wide, device="cpu") for value in values])
    return torch.tensor(values, dtype=wide, device="cpu")


def to_networkx(A: SparseTensor, create_using: Any = None) -> Any:
    """Convert to a networkx graph with nodes 0 to n - 1 and, for each stored ``A[i, j]``, an edge from i to j with attribute ``weight``.

    Pass ``A.t()`` if the matrix is ``A[target, source]``. See the guide on graphs.

    Args:
        A: a square matrix.
        create_using: the graph's class, or a graph to clear and fill; by default ``networkx.DiGraph``. An undirected graph needs a
            symmetric matrix and has each edge once.

    Raises:
        FormatError: the graph is undirected, but the matrix isn't symmetric.
        SizeError: the tensor isn't a square matrix.
        UnsupportedError: the format has padding, such as ELL.
    """
    import networkx

    check_graph(A, square=True)
    graph = networkx.empty_graph(A.pattern.shape[0], networkx.DiGraph if create_using is None else create_using)
    edges, values = to_edge_index(A.t())
    entries = list(zip(*edges.tolist(), values.tolist(), strict=True))
    if not graph.is_directed():
        weights = {(source, target): value for source, target, value in entries}
        asymmetric = next((f"{place} is {value}" for place, value in weights.items() if weights.get(place[::-1]) != value), None)
        if asymmetric is not None:
            raise FormatError(
                f"an undirected graph's matrix is symmetric, but entry {asymmetric}, and the mirrored entry differs: use a DiGraph"
            )
        entries = [entry for entry in entries if entry[0] <= entry[1]]
    graph.add_weighted_edges_from(entries)
    return graph
