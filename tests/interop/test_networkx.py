"""Graphs of networkx are converted to networkx's matrices, with exact weights, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")

networkx = pytest.importorskip("networkx", reason="networkx is not installed")
EDGES = torch.tensor([[0, 0, 2, 1, 2], [1, 1, 0, 2, 2]])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
KINDS = [networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph]


def example(kind: Any) -> Any:
    """A graph of letters with a self loop, an isolated node, parallel edges, and an edge without a weight."""
    graph = kind()
    graph.add_nodes_from("zab")
    graph.add_weighted_edges_from([("a", "b", 2.0), ("b", "a", 3.0), ("a", "b", 0.5), ("c", "c", 4.0), ("b", "c", -1.0)])
    graph.add_edge("a", "c", cost=7)
    return graph


@pytest.mark.parametrize("nodelist", [None, "abcz", "ca", ""])
@pytest.mark.parametrize("weight", ["weight", "cost", None])
@pytest.mark.parametrize("kind", KINDS)
def test_from_networkx_equals_networkxs_matrix(kind: Any, weight: str | None, nodelist: str | None) -> None:
    graph = example(kind)
    A = ns.from_networkx(graph, weight, nodelist, dtype=torch.float64)
    assert (A.format, A.dtype) == (ns.CSR, torch.float64)
    if nodelist == "":  # networkx refuses an empty nodelist
        assert tuple(A.shape) == (0, 0)
        return
    expected = networkx.to_scipy_sparse_array(graph, nodelist=nodelist, weight=weight, dtype=float)
    assert np.array_equal(A.to_dense().numpy(), expected.toarray())
    assert np.array_equal(ns.from_networkx(graph, weight, nodelist, torch.float64, ns.COO(2)).to_scipy().toarray(), expected.toarray())


@pytest.mark.parametrize("kind", KINDS)
def test_to_networkx(kind: Any) -> None:
    A = ns.from_networkx(example(kind), dtype=torch.float64)
    graph = A.to_networkx(kind)
    assert type(graph) is kind
    assert list(graph) == [0, 1, 2, 3]
    assert np.array_equal(networkx.to_numpy_array(graph), A.to_dense().numpy())


def test_graphs_are_directed_by_default() -> None:
    graph = ns.adj_t(EDGES, WEIGHTS).t().to_networkx()
    assert type(graph) is networkx.DiGraph
    assert sorted(graph.edges(data="weight")) == [(0, 1, 3.0), (1, 2, 4.0), (2, 0, 3.0), (2, 2, 5.0)]


def test_asymmetric_and_rectangular_matrices_are_refused() -> None:
    A = ns.adj_t(EDGES, WEIGHTS).t()
    with pytest.raises(ns.FormatError, match=r"an undirected graph's matrix is symmetric, but entry \(2, 0\) is 3.0, .*: use a DiGraph"):
        A.to_networkx(networkx.Graph)
    with pytest.raises(ns.SizeError, match="it must be square"):
        ns.adj_t(EDGES, WEIGHTS, size=(4, 3)).to_networkx()


def test_invalid_nodes_and_weights_are_refused() -> None:
    graph = example(networkx.Graph)
    with pytest.raises(ns.FormatError, match="nodelist names 'q', which is not a node of the graph"):
        ns.from_networkx(graph, nodelist="aq")
    with pytest.raises(ns.FormatError, match="nodelist names 'a' twice: name each node once"):
        ns.from_networkx(graph, nodelist="aba")
    with pytest.raises(ns.FormatError, match=r"torch\.int64 can't hold the weight 0\.5"):
        ns.from_networkx(graph, dtype=torch.int64)
    graph.add_edge("a", "z", weight="heavy")
    with pytest.raises(ns.FormatError, match="the edge weights are not numbers of one type"):
        ns.from_networkx(graph)
    with pytest.raises(ns.UnsupportedError, match="from_networkx takes a networkx graph, not Tensor"):
        ns.from_networkx(EDGES)


def test_weights_with_gradients() -> None:
    w = torch.tensor(2.0, requires_grad=True)
    graph = networkx.Graph()
    graph.add_edge(0, 1, weight=w)
    ns.from_networkx(graph).to_dense().sum().backward()
    assert w.grad == 2.0


def test_integer_weights_and_empty_graphs() -> None:
    graph = networkx.DiGraph()
    graph.add_edge(0, 1, weight=2**60 + 1)
    assert ns.from_networkx(graph, dtype=torch.int64).values.tolist() == [2**60 + 1]
    assert ns.from_networkx(networkx.Graph()).shape == (0, 0)


@pytest.mark.parametrize("weights", [[0.1, 2**40 + 1, 3], [2**40 + 1, 1, 2], [torch.tensor(0.1, dtype=torch.float64), 2**40 + 1, 0.1]])
def test_weights_of_networkx_are_not_rounded_to_float32(weights: list[Any]) -> None:
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from([(0, at + 1, weight) for at, weight in enumerate(weights)])
    assert ns.from_networkx(graph, dtype=torch.float64).values.tolist() == [float(weight) for weight in weights]


def test_integer_weights_of_networkx_are_exact() -> None:
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from([(0, 1, 2**60 + 1), (0, 2, 2.0)])
    assert ns.from_networkx(graph, dtype=torch.int64).values.tolist() == [2**60 + 1, 2]
    graph.add_edge(1, 2, weight=0.5)
    with pytest.raises(ns.FormatError, match=r"can't hold the weight 0\.5"):
        ns.from_networkx(graph, dtype=torch.int64)
