"""Conversions between graphs of other libraries and adjacency matrices: PyTorch Geometric, torch_sparse, DGL and networkx.

Edge lists become ``A[target, source]``, PyTorch Geometric's ``adj_t``, the matrix of graph layers. Graphs of networkx and DGL become
``A[source, target]``, as in those libraries. Edges without weights become 1. Weights of duplicate edges are summed; duplicate edges
without weights become one entry of 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from ..convert.construct import from_coo, from_csr
from ..errors import FormatError, OperandError, RangeError, SizeError, UnsupportedError
from ..ir.format import CSR, Format
from ..tensors.arrays import as_indices, as_shape, as_values
from ..tensors.methods import METHODS
from ..tensors.packing import of_entries
from ..tensors.sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# ---- edge lists of PyTorch Geometric


def adj_t(
    edge_index: torch.Tensor | ArrayLike,
    edge_weight: torch.Tensor | ArrayLike | None = None,
    size: int | Sequence[int | None] | None = None,
    format: Format | str | None = None,
) -> SparseTensor:
    """The adjacency matrix ``A[target, source]`` of an edge list, for graph layers; O(edges log edges).

    ``A[edge_index[1, e], edge_index[0, e]] = edge_weight[e]``, like PyTorch Geometric's ``adj_t``: ``A @ x`` sums the features of each
    node's sources. ``A.t()`` is ``A[source, target]`` and shares memory. Weights of duplicate edges are summed; without weights,
    duplicate edges become one entry of 1. Gradients flow to the weights. See the guide: graphs.

    Args:
        edge_index: sources and targets, integers of shape (2, edges), or PyTorch Geometric's ``EdgeIndex``.
        edge_weight: weights of shape (edges,); by default float32 ones.
        size: the number of nodes, or (sources, targets) of a bipartite graph; by default the size of an ``EdgeIndex``, or the largest
            node number in ``edge_index`` plus 1.
        format: the result's format, CSR by default. Graph layers take formats without padding: CSR, CSC, DCSR, DCSC, COO, and others
            whose innermost level is ``compressed``, ``singleton``, ``hash`` or ``bitmap``.

    Shape:
        (targets, sources).

    Raises:
        FormatError: ``edge_index`` isn't integer.
        RangeError: an edge names a node outside the graph.
        SizeError: the shapes don't match.
        OperandError: ``edge_index`` is a matrix or a graph object.
        UnsupportedError: kernels can't read the weights' data type.

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
    node_counts = _size(edges, size)
    check_nodes(edges, node_counts, "the graph has")
    return _matrix(edges.flip(0), edge_weight, node_counts[::-1], format)


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
    for row, end, nodes in zip(edges, ("source", "target"), size, strict=True):
        if len(row) and not 0 <= int(row.min()) <= int(row.max()) < nodes:
            at = int(((row < 0) | (row >= nodes)).nonzero()[0])
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
        raise OperandError(f"adj_t takes an edge_index, not a {kind}: {of_data('adj_t', edge_index)}")
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


def of_data(function: str, data: Any) -> str:
    """The error text that shows how to pass the edges of a graph object, such as PyTorch Geometric's Data, to a function.

    >>> from types import SimpleNamespace
    >>> of_data("adj_t", SimpleNamespace(edge_index=None, edge_weight=torch.ones(1), num_nodes=3))
    'pass its edges, as in adj_t(data.edge_index, data.edge_weight, size=data.num_nodes)'
    """
    weight = ", data.edge_weight" if getattr(data, "edge_weight", None) is not None else ""
    size = ", size=data.num_nodes" if getattr(data, "num_nodes", None) is not None else ""
    return f"pass its edges, as in {function}(data.edge_index{weight}{size})"


def _size(edges: torch.Tensor, size: int | Sequence[int | None] | None) -> tuple[int, ...]:
    """The numbers of sources and targets; by default the largest node number plus 1."""
    largest = [int(nodes.max()) + 1 if len(nodes) else 0 for nodes in edges]
    if size is None:
        return max(largest), max(largest)
    if isinstance(size, SupportsIndex):
        return as_shape((index(size), index(size)))
    if len(size) != 2:
        raise SizeError(f"size is {tuple(size)}, but a graph's matrix has 2 dimensions: pass the number of nodes, or (sources, targets)")
    return as_shape([count if nodes is None else nodes for nodes, count in zip(size, largest, strict=True)])


def _matrix(
    places: torch.Tensor, weight: torch.Tensor | ArrayLike | None, shape: tuple[int, ...], format: Format | str | None
) -> SparseTensor:
    target = CSR if format is None else format
    if weight is not None:
        return from_coo(places, as_values(weight), shape, target)
    return _unweighted(from_coo(places, torch.ones(places.shape[1]), shape, target))


def _unweighted(A: SparseTensor) -> SparseTensor:
    """The matrix with each summed edge count replaced by 1; padding stays 0."""
    return A.with_values((A.values != 0).to(A.dtype))


def to_edge_index(A: SparseTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The edges of a matrix ``A[target, source]``, the inverse of :func:`adj_t`; gradients flow to the weights.

    Pass ``A.t()`` if the matrix is ``A[source, target]``, as with networkx or DGL. See the guide: graphs.

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
    _check_matrix(A)
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


def _check_matrix(A: SparseTensor, square: bool = False) -> None:
    if A.ndim != 2 or (square and A.pattern.shape[0] != A.pattern.shape[1]):
        expected = "as many sources as targets" if square and A.ndim == 2 else "2 dimensions"
        raise SizeError(f"a tensor of shape {A.pattern.shape} is no graph: its matrix has {expected}")
    check_unpadded(A)


# ---- torch_sparse


def from_torch_sparse(adj: Any, format: Format | str | None = None) -> SparseTensor:
    """Convert a ``torch_sparse.SparseTensor``. The CSR arrays are shared; gradients flow to the values.

    Graph layers take ``A[target, source]``, the ``adj_t`` of PyTorch Geometric. If the matrix is ``A[source, target]``, pass ``A.t()``,
    which shares memory. See the guide: graphs.

    Args:
        adj: the matrix; entries without values become 1.
        format: the result's format, CSR by default.

    Raises:
        UnsupportedError: the argument isn't a ``torch_sparse.SparseTensor``, or kernels can't read the values' data type.
    """
    if not hasattr(adj, "sparse_sizes") or not hasattr(adj, "csr"):
        raise UnsupportedError(f"from_torch_sparse takes a torch_sparse.SparseTensor, not {type(adj).__name__}: use from_torch")
    pos, crd, values = adj.csr()
    A = from_csr(pos, crd, torch.ones(len(crd)) if values is None else values, tuple(adj.sparse_sizes()))
    A = _unweighted(A) if values is None else A
    return A if format is None else A.to(format)


def to_torch_sparse(A: SparseTensor) -> Any:
    """Convert to a ``torch_sparse.SparseTensor`` with int64 CSR arrays; values are shared if A is CSR.

    PyTorch Geometric's layers take ``A[target, source]``, as :func:`adj_t` returns. See the guide: graphs.

    Raises:
        SizeError: the tensor isn't a matrix.
        UnsupportedError: the format has padding, such as ELL.
    """
    import torch_sparse

    _check_matrix(A)
    A = A.to(CSR)
    pos, crd = (torch.from_numpy(array).to(torch.int64) for array in A.pattern.level_arrays(1))
    return torch_sparse.SparseTensor(
        rowptr=pos, col=crd, value=A.values, sparse_sizes=tuple(A.pattern.shape), is_sorted=True, trust_data=True
    )


# ---- DGL


def from_dgl(graph: Any, weight: str | torch.Tensor | None = None, format: Format | str | None = None) -> SparseTensor:
    """The adjacency matrix ``A[source, target]`` of a DGL graph with one edge type; gradients flow to the weights.

    Graph layers take ``A.t()``, which shares memory. See the guide: graphs.

    Args:
        graph: the graph.
        weight: the name of the edge data that holds the weights, or weights of shape (edges,) in the order of edge ids; by default ones.
        format: the result's format, CSR by default.

    Raises:
        FormatError: the edges have no such data.
        UnsupportedError: the argument isn't a DGL graph with one edge type, or kernels can't read the weights' data type.
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
    stored = torch.ones(len(crd)) if values is None else as_values(values)
    if values is not None and len(edge_ids):
        stored = stored.index_select(0, edge_ids.to(torch.int64))
    A = from_csr(pos, crd, stored, (graph.num_src_nodes(), graph.num_dst_nodes()))
    A = _unweighted(A) if values is None else A
    return A if format is None else A.to(format)


def to_dgl(A: SparseTensor, weight: str = "weight") -> Any:
    """Convert to a DGL graph with an edge from i to j for each stored ``A[i, j]``, and the values as edge data ``weight``.

    Edges are in storage order. Pass ``A.t()`` if the matrix is ``A[target, source]``. See the guide: graphs.

    Raises:
        SizeError: the tensor isn't a square matrix.
        UnsupportedError: the format has padding, such as ELL.
    """
    import dgl

    _check_matrix(A, square=True)
    (sources, targets), values = to_edge_index(A.t())
    graph = dgl.graph((sources, targets), num_nodes=A.pattern.shape[0])
    graph.edata[weight] = values
    return graph


# ---- networkx


def from_networkx(
    graph: Any,
    weight: str | None = "weight",
    nodelist: Iterable[Any] | None = None,
    dtype: torch.dtype = torch.float32,
    format: Format | str | None = None,
) -> SparseTensor:
    """The adjacency matrix ``A[source, target]`` of a networkx graph, like ``networkx.to_scipy_sparse_array``; O(edges).

    Graph layers take ``A.t()``, which shares memory. See the guide: graphs.

    Edges of an undirected graph are stored in both directions, self-loops once. Parallel edges of a multigraph are summed.

    Args:
        graph: a graph of any networkx class.
        weight: the edge attribute that holds the weight; edges without it have weight 1. None: all edges have weight 1.
        nodelist: the nodes in the order of rows and columns, possibly a subset; by default all nodes in the graph's order.
        dtype: the data type of the values.
        format: the result's format, CSR by default.

    Raises:
        FormatError: a node is not in the graph or is named twice, or the data type can't hold a weight.
        UnsupportedError: the argument isn't a networkx graph, or kernels can't read the data type.

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
    edges = torch.tensor([sources, targets], dtype=torch.int64)
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
        raise FormatError(f"the weights of edges are no numbers of one type ({error}): pass weight=None, or another attribute") from error
    is_lost = (weights != exact) if not dtype.is_floating_point and not dtype.is_complex else torch.zeros(0, dtype=torch.bool)
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
        return torch.stack([torch.as_tensor(value, dtype=wide) for value in values])
    return torch.tensor(values, dtype=wide)


def to_networkx(A: SparseTensor, create_using: Any = None) -> Any:
    """Convert to a networkx graph with nodes 0 to n - 1 and, for each stored ``A[i, j]``, an edge from i to j with attribute ``weight``.

    Pass ``A.t()`` if the matrix is ``A[target, source]``. See the guide: graphs.

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

    _check_matrix(A, square=True)
    graph = networkx.empty_graph(A.pattern.shape[0], networkx.DiGraph if create_using is None else create_using)
    edges, values = to_edge_index(A.t())
    entries = list(zip(*edges.tolist(), values.tolist(), strict=True))
    if not graph.is_directed():
        weights = {(source, target): value for source, target, value in entries}
        asymmetric = next((f"{place} is {value}" for place, value in weights.items() if weights.get(place[::-1]) != value), None)
        if asymmetric is not None:
            raise FormatError(f"an undirected graph's matrix is symmetric, but entry {asymmetric}, and its mirror differs: use a DiGraph")
        entries = [entry for entry in entries if entry[0] <= entry[1]]
    graph.add_weighted_edges_from(entries)
    return graph


METHODS.update(to_edge_index=to_edge_index, to_torch_sparse=to_torch_sparse, to_networkx=to_networkx, to_dgl=to_dgl)
