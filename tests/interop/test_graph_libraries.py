"""Matrices of torch_sparse and graphs of DGL are converted to adjacency matrices with their weights, and back."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import numscorch as ns

pytestmark = [pytest.mark.usefixtures("interpreted"), pytest.mark.filterwarnings("ignore:.* edges are repeated:UserWarning")]
EDGES = torch.tensor([[0, 0, 2, 1, 2], [1, 1, 0, 2, 2]])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize("back", ["to_edge_index", "to_torch_sparse", "to_networkx", "to_dgl"])
def test_formats_with_padding_are_refused(back: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch_sparse", "networkx", "dgl"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    with pytest.raises(ns.UnsupportedError, match=r"stored as ELL\(2\): this format has padding"):
        getattr(ns.adj_t([[0, 1, 1], [2, 0, 2]], size=3, format="ELL"), back)()


# ---- torch_sparse


@dataclass
class StoredRows:
    """The attributes of torch_sparse.SparseTensor that the conversion reads."""

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


def test_from_torch_sparse() -> None:
    rows = StoredRows(torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0]), torch.tensor([1.0, 2.0], requires_grad=True))
    A = ns.from_torch_sparse(rows, copy=False)
    assert A.values.data_ptr() == rows.value.data_ptr()
    assert A.pattern.level_arrays(1)[1].ctypes.data == rows.col.data_ptr()
    A.to_dense().sum().backward()
    assert rows.value.grad.tolist() == [1.0, 1.0]
    assert ns.from_torch_sparse(stored(None)).to_dense().tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 1]]
    assert ns.from_torch_sparse(stored(WEIGHTS), ns.COO(2)).to_dense().tolist() == [[0, 3, 0], [0, 0, 3], [4, 0, 5]]
    with pytest.raises(ns.UnsupportedError, match=r"from_torch_sparse takes a torch_sparse\.SparseTensor, not Tensor"):
        ns.from_torch_sparse(EDGES)


def test_to_torch_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "torch_sparse", SimpleNamespace(SparseTensor=lambda **given: calls.append(given) or given))
    A = ns.adj_t(EDGES, WEIGHTS.clone().requires_grad_()).t().to(ns.CSR)
    back = A.to_torch_sparse()
    assert (back["rowptr"].tolist(), back["col"].tolist()) == ([0, 1, 2, 4], [1, 2, 0, 2])
    assert (back["rowptr"].dtype, back["col"].dtype, back["sparse_sizes"]) == (torch.int64, torch.int64, (3, 3))
    assert A.to_torch_sparse(copy=False)["value"] is A.values and back["value"] is not A.values
    A.to(ns.CSC).to_torch_sparse()["value"].sum().backward()
    with pytest.raises(ns.SizeError, match=r"a tensor of shape \(2,\) is not the matrix of a graph: it must be 2-dimensional"):
        ns.from_torch(torch.ones(2)).to_torch_sparse()


def test_a_round_trip_through_torch_sparse() -> None:
    real = pytest.importorskip("torch_sparse", reason="torch_sparse is not installed: it is compiled for each version of torch")
    A = ns.adj_t(EDGES, WEIGHTS)
    back = A.to_torch_sparse()
    assert type(back) is real.SparseTensor
    assert torch.equal(ns.from_torch_sparse(back).to_dense(), A.to_dense())


# ---- DGL


class Graph:
    """The methods of DGLGraph that the conversion calls. Ids number the edges in the order of the constructor."""

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


def test_from_dgl() -> None:
    graph = Graph((EDGES[0], EDGES[1]), 3)
    graph.edata["w"] = WEIGHTS.clone().requires_grad_()
    expected = ns.adj_t(EDGES, WEIGHTS).t().to_dense()
    A = ns.from_dgl(graph, "w")
    assert torch.equal(A.to_dense(), expected)
    assert torch.equal(ns.from_dgl(graph, WEIGHTS, ns.CSC).to_dense(), expected)
    assert torch.equal(ns.from_dgl(graph).to_dense(), (expected != 0).float())
    A.to_dense().sum().backward()
    assert graph.edata["w"].grad.tolist() == [1.0] * 5


def test_graphs_of_dgl_without_one_matrix_are_refused() -> None:
    graph = Graph((EDGES[0], EDGES[1]), 3)
    with pytest.raises(ns.FormatError, match="the edges have no data 'w', but none"):
        ns.from_dgl(graph, "w")
    graph.canonical_etypes *= 2
    with pytest.raises(ns.UnsupportedError, match=r"the graph has 2 kinds of edges: pick one of them, as graph\[\('_N', '_E', '_N'\)\]"):
        ns.from_dgl(graph)
    with pytest.raises(ns.UnsupportedError, match="from_dgl takes a DGLGraph, not Tensor"):
        ns.from_dgl(EDGES)


def test_to_dgl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", SimpleNamespace(graph=lambda edges, num_nodes: Graph(edges, num_nodes)))
    A = ns.adj_t(EDGES, WEIGHTS).t()
    graph = A.to_dgl("w")
    assert torch.equal(ns.from_dgl(graph, "w").to_dense(), A.to_dense())
    with pytest.raises(ns.SizeError, match=r"a tensor of shape \(3, 4\) is not the matrix of a graph: it must be square"):
        ns.adj_t(EDGES, size=(4, 3)).to_dgl()


def test_a_round_trip_through_dgl() -> None:
    dgl = pytest.importorskip("dgl", reason="DGL is not installed: it is compiled for each version of torch")
    A = ns.adj_t(EDGES, WEIGHTS)
    graph = A.to_dgl()
    assert isinstance(graph, dgl.DGLGraph)
    assert torch.equal(ns.from_dgl(graph, "weight").to_dense(), A.to_dense())
