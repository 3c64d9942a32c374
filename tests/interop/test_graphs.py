"""Graphs of other libraries are adjacency matrices here, with the weights that those libraries give them, and go back."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns

EDGES = torch.tensor([[0, 0, 2, 1, 2], [1, 1, 0, 2, 2]])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


def geometric() -> Any:
    """PyTorch Geometric, whose import warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")


def quiet(function: Any, *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


# ---- edge lists


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["none", "some"])
@pytest.mark.parametrize("size", [None, 4, (3, 5), (None, 4)])
def test_adj_t_is_the_transpose_of_what_torch_geometric_makes_of_edges(weights: torch.Tensor | None, size: Any) -> None:
    utils = geometric().utils
    A = ns.adj_t(EDGES, weights, size)
    expected = quiet(utils.to_torch_csr_tensor, EDGES, weights, size).to_dense().t()
    assert (A.format, A.shape) == (ns.CSR, expected.shape)
    assert torch.equal(A.to_dense(), expected)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["none", "some"])
def test_adj_t_is_that_of_torch_geometric(weights: torch.Tensor | None) -> None:
    transforms, Data = geometric().transforms, geometric().data.Data
    data = Data(edge_index=EDGES, edge_weight=weights, num_nodes=3)
    theirs = quiet(transforms.ToSparseTensor(remove_edge_index=True, layout=torch.sparse_csr), data).adj_t
    expected = theirs.to_dense() if weights is not None else (theirs.to_dense() != 0).float()
    assert torch.equal(ns.adj_t(EDGES, weights).to_dense(), expected)


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2)], ids=str)
def test_to_edge_index_is_the_inverse_of_adj_t(format: Any) -> None:
    A = ns.adj_t(EDGES, WEIGHTS, (3, 5), format)
    edges, weights = A.to_edge_index()
    assert edges.dtype == torch.int64
    assert torch.equal(ns.adj_t(edges, weights, (3, 5), format).to_dense(), A.to_dense())
    assert set(map(tuple, edges.T.tolist())) == set(map(tuple, EDGES.T.tolist()))
    assert all(A.to_dense()[target, source] == weight for source, target, weight in zip(*edges.tolist(), weights, strict=True))
    in_order, values = torch.tensor([[2, 0, 1], [0, 1, 2]]), torch.tensor([1.0, 2.0, 3.0])
    back = ns.adj_t(in_order, values).to_edge_index()
    assert torch.equal(back[0], in_order)
    assert torch.equal(back[1], values)


@pytest.mark.parametrize("back", ["to_edge_index", "to_torch_sparse", "to_networkx", "to_dgl"])
def test_padding_is_no_edge(back: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch_sparse", "networkx", "dgl"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    with pytest.raises(ns.UnsupportedError, match=r"stored as ELL\(2\): this format has padding"):
        getattr(ns.adj_t([[0, 1, 1], [2, 0, 2]], size=3, format="ELL"), back)()


def test_the_old_name_says_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"from_edge_index.*ns\.adj_t\(edge_index\).*A\[target, source\].*\.t\(\)"):
        _ = ns.from_edge_index


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2)], ids=str)
def test_edges_are_those_that_torch_geometric_reads(format: ns.Format) -> None:
    utils = geometric().utils
    A = ns.adj_t(EDGES, WEIGHTS, (4, 5), format)
    (edges, values), (wanted, attributes) = A.to_edge_index(), quiet(utils.to_edge_index, A.to_torch())
    assert (edges.dtype, edges.tolist(), values.tolist()) == (wanted.dtype, wanted.flip(0).tolist(), attributes.tolist())
    with pytest.raises((TypeError, AttributeError)):  # values is a tensor, not a method: the guide says what to call
        utils.to_edge_index(A)


def test_an_edge_index_of_torch_geometric() -> None:
    EdgeIndex = geometric().EdgeIndex
    A = ns.adj_t(EdgeIndex(EDGES, sparse_size=(3, 7)), WEIGHTS)
    assert tuple(A.shape) == (7, 3)
    assert torch.equal(A.to_dense()[:3], ns.adj_t(EDGES, WEIGHTS).to_dense())
    assert tuple(ns.adj_t(EdgeIndex(EDGES)).shape) == (3, 3)
    assert type(A.to_edge_index()[0]) is torch.Tensor


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, "(i, j) -> (i: dense, j: bitmap)"], ids=str)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["none", "some"])
def test_edges_in_every_format(format: Any, weights: torch.Tensor | None, plain: pytest.MonkeyPatch) -> None:
    A = ns.adj_t(EDGES, weights, format=format)
    expected = torch.zeros(3, 3).index_put(tuple(EDGES.flip(0)), torch.ones(5) if weights is None else weights, accumulate=True)
    expected = expected if weights is not None else expected.clamp(max=1)
    assert torch.equal(A.to_dense(), expected)
    edges, values = A.to_edge_index()
    assert torch.equal(torch.zeros(3, 3).index_put(tuple(edges.flip(0)), values, accumulate=True), expected)


def test_weights_of_edges_in_order_are_not_copied() -> None:
    edges, weights = torch.tensor([[1, 0, 2], [0, 1, 2]]), torch.ones(3)
    assert ns.adj_t(edges, weights, format=ns.COO(2)).values.data_ptr() == weights.data_ptr()


@pytest.mark.parametrize("format", [ns.CSR, ns.COO(2)])
def test_gradients_flow_to_weights_and_from_them(format: Any) -> None:
    weights = WEIGHTS.clone().requires_grad_()
    A = ns.adj_t(EDGES, weights, format=format)
    x = torch.arange(1.0, 4.0)
    (A @ x).sum().backward(retain_graph=True)
    assert torch.equal(weights.grad, x[EDGES[0]])
    weights.grad = None
    (A.to_edge_index()[1] ** 2).sum().backward()
    summed = {(0, 1): 3.0}  # the weights of two equal edges
    assert weights.grad.tolist() == [2 * summed.get((int(i), int(j)), w) for (i, j), w in zip(EDGES.T, WEIGHTS.tolist(), strict=True)]


@pytest.mark.parametrize("empty", [torch.empty(2, 0, dtype=torch.int64), np.empty((2, 0))])
def test_graphs_without_edges(empty: Any) -> None:
    assert tuple(ns.adj_t(empty).shape) == (0, 0)
    A = ns.adj_t(empty, size=np.int64(3))
    assert (tuple(A.shape), A.nnz) == ((3, 3), 0)
    assert A.to_edge_index()[0].shape == (2, 0)


@pytest.mark.parametrize(
    ("edges", "options", "error", "told"),
    [
        (EDGES.T, {}, ns.SizeError, r"edge_index has shape \(5, 2\): pass sources and targets, .*did you mean edge_index\.T"),
        (EDGES[0], {}, ns.SizeError, r"edge_index has shape \(5,\)"),
        (EDGES.double(), {}, ns.FormatError, "edge_index has dtype torch.float64"),
        (EDGES - 1, {}, IndexError, "edge 0 of edge_index has source -1, but the graph has 2 nodes: nodes are numbered from 0 to 1"),
        (EDGES, {"size": 2}, ns.RangeError, "edge 2 of edge_index has source 2, but the graph has 2 nodes: nodes are numbered from 0"),
        (EDGES, {"size": (3, 2)}, ns.RangeError, "edge 3 of edge_index has target 2, but the graph has 3 sources and 2 targets"),
        (EDGES, {"size": (3, 0)}, ns.RangeError, "edge 0 of edge_index has target 1, .* 3 sources and 0 targets: no edge can name one"),
        (EDGES, {"size": (2,)}, ns.SizeError, r"size is \(2,\), but a graph's matrix has 2 dimensions"),
        (EDGES, {"edge_weight": WEIGHTS[:2]}, ns.SizeError, "indices has 5 entries, but values has 2"),
        (EDGES, {"edge_weight": WEIGHTS[:, None]}, ns.SizeError, r"values has shape \(5, 1\)"),
    ],
)
def test_edges_that_are_none(edges: Any, options: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        ns.adj_t(edges, **options)


def test_a_message_passed_along_edges() -> None:
    """adj_t times the features is the sum of what each node's sources send it, as PyTorch Geometric's layers compute it."""
    utils = geometric().utils
    A, X = ns.adj_t(EDGES, WEIGHTS), torch.arange(6.0).reshape(3, 2)
    expected = utils.scatter(X[EDGES[0]] * WEIGHTS[:, None], EDGES[1], 0, 3)
    assert torch.equal(A @ X, expected)


# ---- torch_sparse


@dataclass
class StoredRows:
    """What torch_sparse.SparseTensor offers of its matrix."""

    rowptr: torch.Tensor
    col: torch.Tensor
    value: torch.Tensor | None = None
    sparse_sizes_: tuple[int, int] = (3, 3)

    def csr(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return self.rowptr, self.col, self.value

    def sparse_sizes(self) -> tuple[int, int]:
        return self.sparse_sizes_


def stored(value: torch.Tensor | None) -> StoredRows:
    return StoredRows(torch.tensor([0, 2, 3, 5]), torch.tensor([1, 1, 2, 0, 2]), value)


def test_torch_sparse_comes_in() -> None:
    rows = StoredRows(torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0]), torch.tensor([1.0, 2.0], requires_grad=True))
    A = ns.from_torch_sparse(rows)
    assert A.values.data_ptr() == rows.value.data_ptr()
    assert A.pattern.level_arrays(1)[1].ctypes.data == rows.col.data_ptr()
    A.to_dense().sum().backward()
    assert rows.value.grad.tolist() == [1.0, 1.0]
    assert ns.from_torch_sparse(stored(None)).to_dense().tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 1]]
    assert ns.from_torch_sparse(stored(WEIGHTS), ns.COO(2)).to_dense().tolist() == [[0, 3, 0], [0, 0, 3], [4, 0, 5]]
    with pytest.raises(ns.UnsupportedError, match=r"from_torch_sparse takes a torch_sparse\.SparseTensor, not Tensor"):
        ns.from_torch_sparse(EDGES)


def test_torch_sparse_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "torch_sparse", SimpleNamespace(SparseTensor=lambda **given: made.append(given) or given))
    A = ns.adj_t(EDGES, WEIGHTS.clone().requires_grad_()).t().to(ns.CSR)
    back = A.to_torch_sparse()
    assert (back["rowptr"].tolist(), back["col"].tolist()) == ([0, 1, 2, 4], [1, 2, 0, 2])
    assert (back["rowptr"].dtype, back["col"].dtype, back["sparse_sizes"]) == (torch.int64, torch.int64, (3, 3))
    assert back["value"] is A.values
    A.to(ns.CSC).to_torch_sparse()["value"].sum().backward()
    with pytest.raises(ns.SizeError, match=r"a tensor of shape \(2,\) is no graph: its matrix has 2 dimensions"):
        ns.from_torch(torch.ones(2)).to_torch_sparse()


def test_torch_sparse_itself() -> None:
    real = pytest.importorskip("torch_sparse", reason="torch_sparse is not installed: it is compiled for each version of torch")
    A = ns.adj_t(EDGES, WEIGHTS)
    back = A.to_torch_sparse()
    assert type(back) is real.SparseTensor
    assert torch.equal(ns.from_torch_sparse(back).to_dense(), A.to_dense())


# ---- DGL


class Graph:
    """What a DGLGraph offers of its edges; ids count them in the order in which they were given."""

    def __init__(self, edges: tuple[torch.Tensor, torch.Tensor], num_nodes: int):
        self.edges, self.num_nodes = edges, num_nodes
        self.edata: dict[str, torch.Tensor] = {}
        self.canonical_etypes = [("_N", "_E", "_N")]

    def num_src_nodes(self) -> int:
        return self.num_nodes

    num_dst_nodes = num_src_nodes

    def adj_tensors(self, layout: str) -> tuple[torch.Tensor, ...]:
        sources, targets = self.edges
        ids = torch.sort(sources, stable=True).indices
        counts = torch.bincount(sources, minlength=self.num_nodes)
        pos = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return pos, targets[ids], ids if not torch.equal(ids, torch.arange(len(ids))) else ids[:0]


def test_dgl_comes_in() -> None:
    graph = Graph((EDGES[0], EDGES[1]), 3)
    graph.edata["w"] = WEIGHTS.clone().requires_grad_()
    expected = ns.adj_t(EDGES, WEIGHTS).t().to_dense()
    A = ns.from_dgl(graph, "w")
    assert torch.equal(A.to_dense(), expected)
    assert torch.equal(ns.from_dgl(graph, WEIGHTS, ns.CSC).to_dense(), expected)
    assert torch.equal(ns.from_dgl(graph).to_dense(), (expected != 0).float())
    A.to_dense().sum().backward()
    assert graph.edata["w"].grad.tolist() == [1.0] * 5


def test_what_dgl_has_that_is_no_matrix() -> None:
    graph = Graph((EDGES[0], EDGES[1]), 3)
    with pytest.raises(ns.FormatError, match="the edges have no data 'w', but none"):
        ns.from_dgl(graph, "w")
    graph.canonical_etypes *= 2
    with pytest.raises(ns.UnsupportedError, match=r"the graph has 2 kinds of edges: pick one of them, as graph\[\('_N', '_E', '_N'\)\]"):
        ns.from_dgl(graph)
    with pytest.raises(ns.UnsupportedError, match="from_dgl takes a DGLGraph, not Tensor"):
        ns.from_dgl(EDGES)


def test_dgl_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", SimpleNamespace(graph=lambda edges, num_nodes: Graph(edges, num_nodes)))
    A = ns.adj_t(EDGES, WEIGHTS).t()
    graph = A.to_dgl("w")
    assert torch.equal(ns.from_dgl(graph, "w").to_dense(), A.to_dense())
    with pytest.raises(ns.SizeError, match=r"a tensor of shape \(3, 4\) is no graph: its matrix has as many sources as targets"):
        ns.adj_t(EDGES, size=(4, 3)).to_dgl()


def test_dgl_itself() -> None:
    dgl = pytest.importorskip("dgl", reason="DGL is not installed: it is compiled for each version of torch")
    A = ns.adj_t(EDGES, WEIGHTS)
    graph = A.to_dgl()
    assert isinstance(graph, dgl.DGLGraph)
    assert torch.equal(ns.from_dgl(graph, "weight").to_dense(), A.to_dense())


# ---- networkx

networkx = pytest.importorskip("networkx", reason="networkx is not installed")
KINDS = [networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph]


def knots(kind: Any) -> Any:
    """A graph of letters with a loop, a node alone, parallel edges, and one without a weight."""
    graph = kind()
    graph.add_nodes_from("zab")
    graph.add_weighted_edges_from([("a", "b", 2.0), ("b", "a", 3.0), ("a", "b", 0.5), ("c", "c", 4.0), ("b", "c", -1.0)])
    graph.add_edge("a", "c", cost=7)
    return graph


@pytest.mark.parametrize("nodelist", [None, "abcz", "ca", ""])
@pytest.mark.parametrize("weight", ["weight", "cost", None])
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_are_what_networkx_makes_of_them(kind: Any, weight: str | None, nodelist: str | None) -> None:
    graph = knots(kind)
    A = ns.from_networkx(graph, weight, nodelist, dtype=torch.float64)
    assert (A.format, A.dtype) == (ns.CSR, torch.float64)
    if nodelist == "":  # networkx makes no such matrix
        assert tuple(A.shape) == (0, 0)
        return
    expected = networkx.to_scipy_sparse_array(graph, nodelist=nodelist, weight=weight, dtype=float)
    assert np.array_equal(A.to_dense().numpy(), expected.toarray())
    assert np.array_equal(ns.from_networkx(graph, weight, nodelist, torch.float64, ns.COO(2)).to_scipy().toarray(), expected.toarray())


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_go_back(kind: Any) -> None:
    A = ns.from_networkx(knots(kind), dtype=torch.float64)
    graph = A.to_networkx(kind)
    assert type(graph) is kind
    assert list(graph) == [0, 1, 2, 3]
    assert np.array_equal(networkx.to_numpy_array(graph), A.to_dense().numpy())


def test_a_graph_has_directions_by_default() -> None:
    graph = ns.adj_t(EDGES, WEIGHTS).t().to_networkx()
    assert type(graph) is networkx.DiGraph
    assert sorted(graph.edges(data="weight")) == [(0, 1, 3.0), (1, 2, 4.0), (2, 0, 3.0), (2, 2, 5.0)]


def test_what_networkx_cannot_have() -> None:
    A = ns.adj_t(EDGES, WEIGHTS).t()
    with pytest.raises(ns.FormatError, match=r"an undirected graph's matrix is symmetric, but entry \(2, 0\) is 3.0, .*: use a DiGraph"):
        A.to_networkx(networkx.Graph)
    with pytest.raises(ns.SizeError, match="its matrix has as many sources as targets"):
        ns.adj_t(EDGES, size=(4, 3)).to_networkx()


def test_what_is_no_graph_of_numbers() -> None:
    graph = knots(networkx.Graph)
    with pytest.raises(ns.FormatError, match="nodelist names 'q', which is not a node of the graph"):
        ns.from_networkx(graph, nodelist="aq")
    with pytest.raises(ns.FormatError, match="nodelist names 'a' twice: name each node once"):
        ns.from_networkx(graph, nodelist="aba")
    with pytest.raises(ns.FormatError, match=r"torch\.int64 can't hold the weight 0\.5"):
        ns.from_networkx(graph, dtype=torch.int64)
    graph.add_edge("a", "z", weight="heavy")
    with pytest.raises(ns.FormatError, match="the weights of edges are no numbers of one type"):
        ns.from_networkx(graph)
    with pytest.raises(ns.UnsupportedError, match="from_networkx takes a networkx graph, not Tensor"):
        ns.from_networkx(EDGES)


def test_weights_that_are_trained() -> None:
    w = torch.tensor(2.0, requires_grad=True)
    graph = networkx.Graph()
    graph.add_edge(0, 1, weight=w)
    ns.from_networkx(graph).to_dense().sum().backward()
    assert w.grad == 2.0


def test_whole_weights() -> None:
    graph = networkx.DiGraph()
    graph.add_edge(0, 1, weight=2**60 + 1)
    assert ns.from_networkx(graph, dtype=torch.int64).values.tolist() == [2**60 + 1]
    assert ns.from_networkx(networkx.Graph()).shape == (0, 0)
