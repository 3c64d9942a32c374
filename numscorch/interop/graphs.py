"""Graphs of other libraries as adjacency matrices, and back: PyTorch Geometric, torch_sparse, DGL and networkx.

Edge lists become ``A[target, source]``, PyTorch Geometric's ``adj_t``, which graph layers take. Graphs of networkx and DGL become
``A[source, target]``, as in those libraries. Edges without weights are 1. Weights of equal edges are summed; equal edges without
weights are one entry of 1.
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


# ---- edge lists, as PyTorch Geometric has them


def adj_t(
    edge_index: torch.Tensor | ArrayLike,
    edge_weight: torch.Tensor | ArrayLike | None = None,
    size: int | Sequence[int | None] | None = None,
    format: Format | str | None = None,
) -> SparseTensor:
    """The matrix that graph layers take, ``A[target, source]``, of an edge list; O(edges log edges).

    ``A[edge_index[1, e], edge_index[0, e]] = edge_weight[e]``, so that ``A @ x`` sums what each node's sources send: the ``adj_t`` of
    PyTorch Geometric. ``A.t()``, which shares its memory, is ``A[source, target]``. Weights of equal edges are summed; without weights,
    equal edges are one entry of 1. Gradients flow to the weights. See the guide: graphs.

    Args:
        edge_index: sources and targets, integers of shape (2, edges); PyTorch Geometric's ``EdgeIndex`` too.
        edge_weight: shape (edges,); by default 1 for each, float32.
        size: the number of nodes, or (sources, targets) of a bipartite graph; by default the size of an ``EdgeIndex``, or the largest
            number in ``edge_index`` plus 1.
        format: the result's format, CSR by default. Graph layers take formats without padding: CSR, CSC, DCSR, DCSC, COO, and others
            whose innermost level is ``compressed``, ``singleton``, ``hash`` or ``bitmap``.

    Shape:
        (targets, sources).

    Raises:
        FormatError: numbers that are no integers.
        RangeError: an edge names a node that there isn't.
        SizeError: lengths that disagree.
        OperandError: a matrix, or an object that has edges.
        UnsupportedError: weights that kernels can't read.

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
    wanted = _size(edges, size)
    check_nodes(edges, wanted, "the graph has")
    return _matrix(edges.flip(0), edge_weight, wanted[::-1], format)


def check_nodes(edges: torch.Tensor, size: Sequence[int], description: str) -> None:
    """That edges are between nodes that there are.

    Args:
        edges: sources and targets, (2, edges).
        size: the numbers of sources and targets.
        told: how the error goes on: ``"the graph has"``.

    Raises:
        RangeError: an edge is not; names the first one.

    >>> check_nodes(torch.tensor([[0, 5], [1, 2]]), (3, 3), "the graph has")
    Traceback (most recent call last):
    numscorch.RangeError: edge 1 of edge_index has source 5, but the graph has 3 nodes: nodes are numbered from 0 to 2
    """
    for row, what, nodes in zip(edges, ("source", "target"), size, strict=True):
        if len(row) and not 0 <= int(row.min()) <= int(row.max()) < nodes:
            at = int(((row < 0) | (row >= nodes)).nonzero()[0])
            allowed = f"nodes are numbered from 0 to {nodes - 1}" if nodes else "no edge can name one"
            raise RangeError(f"edge {at} of edge_index has {what} {int(row[at])}, but {description} {counted(size)}: {allowed}")


def counted(size: Sequence[int]) -> str:
    """How many nodes there are, or sources and targets.

    >>> counted((3, 3)), counted((3, 4))
    ('3 nodes', '3 sources and 4 targets')
    """
    return f"{size[0]} nodes" if size[0] == size[1] else f"{size[0]} sources and {size[1]} targets"


def _check_edges(given: Any) -> None:
    """That edges are no graph that has them, and no matrix.

    Raises:
        OperandError: they are.
    """
    kind = type(given).__name__
    if not isinstance(given, torch.Tensor) and hasattr(given, "edge_index"):
        raise OperandError(f"adj_t takes an edge_index, not a {kind}: {of_data('adj_t', given)}")
    if hasattr(given, "pattern"):
        raise OperandError(f"adj_t takes an edge_index, not a {kind}: graph layers take A[target, source] as it is, else A.t()")
    if isinstance(given, torch.Tensor) and given.layout is not torch.strided:
        raise OperandError(f"adj_t takes an edge_index, not a matrix ({given.layout}): make it a SparseTensor with ns.from_torch(adj)")
    if isinstance(given, torch.Tensor) and given.ndim == 2 and given.shape[0] == given.shape[1] and given.is_floating_point():
        raise OperandError(
            f"adj_t takes an edge_index, not a matrix of shape {tuple(given.shape)}: make a dense adjacency matrix sparse with "
            "ns.from_torch(adj), transposed if it is A[source, target]"
        )


def of_data(function: str, data: Any) -> str:
    """How a function takes the edges of a graph object, as PyTorch Geometric's Data.

    >>> from types import SimpleNamespace
    >>> of_data("adj_t", SimpleNamespace(edge_index=None, edge_weight=torch.ones(1), num_nodes=3))
    'pass its edges, as in adj_t(data.edge_index, data.edge_weight, size=data.num_nodes)'
    """
    weight = ", data.edge_weight" if getattr(data, "edge_weight", None) is not None else ""
    size = ", size=data.num_nodes" if getattr(data, "num_nodes", None) is not None else ""
    return f"pass its edges, as in {function}(data.edge_index{weight}{size})"


def _size(edges: torch.Tensor, size: int | Sequence[int | None] | None) -> tuple[int, ...]:
    """The number of sources and targets; what isn't given is told by the largest number."""
    largest = [int(nodes.max()) + 1 if len(nodes) else 0 for nodes in edges]
    if size is None:
        return max(largest), max(largest)
    if isinstance(size, SupportsIndex):
        return as_shape((index(size), index(size)))
    if len(size) != 2:
        raise SizeError(f"size is {tuple(size)}, but a graph's matrix has 2 dimensions: pass the number of nodes, or (sources, targets)")
    return as_shape([count if given is None else given for given, count in zip(size, largest, strict=True)])


def _matrix(
    places: torch.Tensor, weight: torch.Tensor | ArrayLike | None, shape: tuple[int, ...], format: Format | str | None
) -> SparseTensor:
    target = CSR if format is None else format
    if weight is not None:
        return from_coo(places, as_values(weight), shape, target)
    return _unweighted(from_coo(places, torch.ones(places.shape[1]), shape, target))


def _unweighted(A: SparseTensor) -> SparseTensor:
    """1 at each entry, however many edges it stands for; places without entries stay 0."""
    return A.with_values((A.values != 0).to(A.dtype))


def to_edge_index(A: SparseTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The edges of a matrix ``A[target, source]``: the inverse of :func:`adj_t`; gradients flow to the weights.

    Pass ``A.t()`` if the matrix is ``A[source, target]``, as that of networkx or DGL. See the guide: graphs.

    Args:
        A: a matrix of shape (targets, sources).

    Returns:
        Sources and targets, int64 of shape (2, nnz), and weights of shape (nnz,), both in storage order.

    Raises:
        SizeError: it is no matrix.
        UnsupportedError: its format has padding, as ELL.

    >>> edges, weights = to_edge_index(adj_t([[0, 1], [2, 0]], [3.0, 4.0]))
    >>> edges, weights
    (tensor([[1, 0],
            [0, 2]]), tensor([4., 3.]))
    """
    _check_matrix(A)
    return A.indices().flip(0), of_entries(A.pattern, A.values)


def check_unpadded(A: SparseTensor) -> None:
    """That every stored entry of a matrix is an edge.

    Raises:
        UnsupportedError: the format has padding.
    """
    if A.format.is_padded:
        raise UnsupportedError(
            f"a graph stored as {A.format.name}: this format has padding, which nothing tells from edges of weight 0, and conversions keep"
            " it; store the graph as CSR from the start, as ns.adj_t(edge_index) does"
        )


def _check_matrix(A: SparseTensor, square: bool = False) -> None:
    if A.ndim != 2 or (square and A.pattern.shape[0] != A.pattern.shape[1]):
        wanted = "as many sources as targets" if square and A.ndim == 2 else "2 dimensions"
        raise SizeError(f"a tensor of shape {A.pattern.shape} is no graph: its matrix has {wanted}")
    check_unpadded(A)


# ---- torch_sparse


def from_torch_sparse(adj: Any, format: Format | str | None = None) -> SparseTensor:
    """A SparseTensor from ``torch_sparse.SparseTensor``, whose CSR arrays are shared; gradients flow to its values.

    Graph layers take ``adj_t``, which PyTorch Geometric stores; if the matrix is ``A[source, target]``, pass them ``A.t()``, which shares
    memory. See the guide: graphs.

    Args:
        adj: the matrix; entries without values become 1.
        format: the result's format, CSR by default.

    Raises:
        UnsupportedError: no such matrix, or values that kernels can't read.
    """
    if not hasattr(adj, "sparse_sizes") or not hasattr(adj, "csr"):
        raise UnsupportedError(f"from_torch_sparse takes a torch_sparse.SparseTensor, not {type(adj).__name__}: use from_torch")
    pos, crd, values = adj.csr()
    A = from_csr(pos, crd, torch.ones(len(crd)) if values is None else values, tuple(adj.sparse_sizes()))
    A = _unweighted(A) if values is None else A
    return A if format is None else A.to(format)


def to_torch_sparse(A: SparseTensor) -> Any:
    """A ``torch_sparse.SparseTensor`` of the same matrix, with CSR arrays in int64; values are shared if A is CSR.

    PyTorch Geometric's layers take ``A[target, source]``, as :func:`adj_t` makes. See the guide: graphs.

    Raises:
        SizeError: it is no matrix.
        UnsupportedError: its format has padding, as ELL.
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
    """The adjacency matrix ``A[source, target]`` of a DGL graph with one kind of edges; gradients flow to the weights.

    Pass ``A.t()``, which shares memory, to graph layers. See the guide: graphs.

    Args:
        graph: the graph.
        weight: the name of the edges' data that are weights, or weights of shape (edges,) in the order of edge ids; by default 1.
        format: the result's format, CSR by default.

    Raises:
        FormatError: the edges have no such data.
        UnsupportedError: no such graph, or weights that kernels can't read.
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
    """A DGL graph with an edge from i to j for each stored ``A[i, j]``, whose values are the edges' data of that name.

    Edges are in storage order. Pass ``A.t()`` if the matrix is ``A[target, source]``. See the guide: graphs.

    Raises:
        SizeError: it is no square matrix.
        UnsupportedError: its format has padding, as ELL.
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
    """The adjacency matrix ``A[source, target]`` of a networkx graph, as ``networkx.to_scipy_sparse_array`` has it; O(edges).

    Pass ``A.t()``, which shares memory, to graph layers. See the guide: graphs.

    Edges of an undirected graph are stored both ways, loops once; parallel edges of a multigraph are summed.

    Args:
        graph: a graph of any class of networkx.
        weight: the edges' attribute that is their weight; None, and edges without it, are 1.
        nodelist: the nodes in the order of rows and columns, some of them or all; by default the graph's order.
        dtype: of the values.
        format: the result's format, CSR by default.

    Raises:
        FormatError: a node that is not in the graph, or named twice, or a weight that the data type can't hold.
        UnsupportedError: no graph, or values that kernels can't read.

    >>> import networkx
    >>> from_networkx(networkx.path_graph(3)).to_dense()
    tensor([[0., 1., 0.],
            [1., 0., 1.],
            [0., 1., 0.]])
    """
    if not hasattr(graph, "is_directed") or not hasattr(graph, "edges"):
        raise UnsupportedError(f"from_networkx takes a networkx graph, not {type(graph).__name__}: use ns.adj_t(edge_index)")
    places = _places(graph, nodelist)
    listed = [
        (places[source], places[target], value)
        for source, target, value in graph.edges(data=weight, default=1)
        if source in places and target in places
    ]
    if not graph.is_directed():
        listed += [(target, source, value) for source, target, value in listed if source != target]
    sources, targets, values = zip(*listed, strict=True) if listed else ((), (), ())
    edges = torch.tensor([sources, targets], dtype=torch.int64)
    return from_coo(edges, _weights(values, dtype), (len(places), len(places)), CSR if format is None else format)


def _places(graph: Any, nodelist: Iterable[Any] | None) -> dict[Any, int]:
    """The row of each node."""
    nodes = list(graph if nodelist is None else nodelist)
    places = {node: at for at, node in enumerate(nodes)}
    missing = [node for node in nodes if node not in graph]
    if missing:
        raise FormatError(f"nodelist names {missing[0]!r}, which is not a node of the graph")
    if len(places) != len(nodes):
        twice = next(node for at, node in enumerate(nodes) if places[node] != at)
        raise FormatError(f"nodelist names {twice!r} twice: name each node once")
    return places


def _weights(values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """The weights in a data type, by way of one that holds Python's floats, or whole numbers, as they are.

    Raises:
        FormatError: they are no numbers of one type, or the data type can't hold one of them.
    """
    try:
        given = _as_wide(values, dtype)
        weights = given.to(dtype)
    except (ArithmeticError, TypeError, ValueError, RuntimeError) as error:
        raise FormatError(f"the weights of edges are no numbers of one type ({error}): pass weight=None, or another attribute") from error
    lost = (weights != given) if not dtype.is_floating_point and not dtype.is_complex else torch.zeros(0, dtype=torch.bool)
    if bool(lost.any()):
        raise FormatError(f"{dtype} can't hold the weight {given[lost][0].item()}: pass dtype=torch.float64")
    return weights


def _as_wide(values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Numbers as float64, or complex128; for data types of whole numbers, as int64 where all of them are whole.

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
    """A networkx graph of nodes 0 to n - 1, with an edge from i to j for each stored ``A[i, j]``, its value as ``weight``.

    Pass ``A.t()`` if the matrix is ``A[target, source]``. See the guide: graphs.

    Args:
        A: a square matrix.
        create_using: the graph's class, or a graph that is cleared; by default ``networkx.DiGraph``. An undirected one takes
            a symmetric matrix, and has each edge once.

    Raises:
        FormatError: an undirected graph of a matrix that is not symmetric.
        SizeError: it is no square matrix.
        UnsupportedError: its format has padding, as ELL.
    """
    import networkx

    _check_matrix(A, square=True)
    graph = networkx.empty_graph(A.pattern.shape[0], networkx.DiGraph if create_using is None else create_using)
    edges, values = to_edge_index(A.t())
    entries = list(zip(*edges.tolist(), values.tolist(), strict=True))
    if not graph.is_directed():
        weights = {(source, target): value for source, target, value in entries}
        lone = next((f"{place} is {value}" for place, value in weights.items() if weights.get(place[::-1]) != value), None)
        if lone is not None:
            raise FormatError(f"an undirected graph's matrix is symmetric, but entry {lone}, and the other way it is not: use a DiGraph")
        entries = [entry for entry in entries if entry[0] <= entry[1]]
    graph.add_weighted_edges_from(entries)
    return graph


METHODS.update(to_edge_index=to_edge_index, to_torch_sparse=to_torch_sparse, to_networkx=to_networkx, to_dgl=to_dgl)
