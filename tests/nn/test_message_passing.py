"""Arguments shared with PyTorch Geometric's convolutions: aggregations, directions, batches, lazy sizes, features of edges."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from pyg_cases import BETWEEN, EDGES, IN, NODES, OUT, PAIR, WIDE, X, adjacency, close, leaves, network, same_as_pyg
from torch import Tensor

import numscorch as ns
from numscorch.nn.graphs import gcn_norm

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric isn't installed")
pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Converting sparse tensor to CSR:UserWarning"),
]

Make = Callable[[Any], Any]
AGGREGATIONS: list[Any] = ["sum", "add", "mean", "max", "min", "var", "std", ["mean", "max", "std"], ["add"]]
REVERSED = {"flow": "target_to_source"}
STATIC = torch.randn(3, NODES, IN, generator=torch.Generator().manual_seed(8))
FEATURES = torch.randn(EDGES.shape[1], 3, generator=torch.Generator().manual_seed(9))
FEW = BETWEEN[:, (BETWEEN[1] < PAIR[0].shape[0] - 5)]  # PyTorch Geometric reduces features of edges for sources only


# ---- aggregations


@pytest.mark.parametrize("aggr", AGGREGATIONS, ids=str)
def test_aggregations_equal_pygs(aggr: Any) -> None:
    layer, reference = ns.nn.SAGEConv(IN, OUT, aggr=aggr), pyg.SAGEConv(IN, OUT, aggr=aggr)
    assert repr(layer) == repr(reference)
    same_as_pyg(layer, reference, X, EDGES, dtype=torch.float64)
    same_as_pyg(ns.nn.SAGEConv(WIDE, OUT, aggr=aggr), pyg.SAGEConv(WIDE, OUT, aggr=aggr), PAIR, BETWEEN, dtype=torch.float64)


@pytest.mark.parametrize("aggr", ["mean", "max", "min", "var"])
def test_aggregations_of_gin_equal_pygs(aggr: str) -> None:
    same_as_pyg(ns.nn.GINConv(network(), aggr=aggr), pyg.GINConv(network(), aggr=aggr), X, EDGES)


@pytest.mark.parametrize("aggr", AGGREGATIONS, ids=str)
def test_aggregations_of_sparse_features_and_matrices(aggr: Any) -> None:
    layer = ns.nn.SAGEConv(IN, OUT, aggr=aggr)
    x = X * (X > 0.3)
    expected = layer(x, EDGES.unique(dim=1))
    close(layer(ns.from_torch(x, ns.CSR), EDGES.unique(dim=1)), expected)
    close(layer(x, adjacency(EDGES)), expected)


def test_weights_that_an_aggregation_ignores_are_refused() -> None:
    for aggr in ("max", "min", "var", "std"):
        with pytest.raises(ns.UnsupportedError, match="has values other than 1"):
            ns.nn.SAGEConv(IN, OUT, aggr=aggr)(X, adjacency(EDGES) * 2)


# ---- directions


@pytest.mark.parametrize("name", ["GCN", "GCN, weighted", "SAGE", "GIN", "GAT"])
def test_messages_from_targets_to_sources_equal_pygs(name: str) -> None:
    makes: dict[str, Make] = {
        "GCN": lambda nn: nn.GCNConv(IN, OUT, **REVERSED),
        "GCN, weighted": lambda nn: nn.GCNConv(IN, OUT, **REVERSED),
        "SAGE": lambda nn: nn.SAGEConv(IN, OUT, aggr="max", **REVERSED),
        "GIN": lambda nn: nn.GINConv(network(), **REVERSED),
        "GAT": lambda nn: nn.GATConv(IN, OUT, heads=2, **REVERSED),
    }
    weights = [torch.rand(EDGES.shape[1])] if "weighted" in name else []
    same_as_pyg(makes[name](ns.nn), makes[name](pyg), X, EDGES, *weights)


DIRECTED = EDGES.unique(dim=1)  # adj_t stores duplicate edges once
CONVOLUTIONS: dict[str, Make] = {
    "GCN": lambda nn, **flow: nn.GCNConv(IN, OUT, **flow),
    "SAGE": lambda nn, **flow: nn.SAGEConv(IN, OUT, **flow),
    "SAGE, max": lambda nn, **flow: nn.SAGEConv(IN, OUT, aggr="max", **flow),
    "GAT": lambda nn, **flow: nn.GATConv(IN, OUT, heads=2, **flow),
    "GIN": lambda nn, **flow: nn.GINConv(network(), **flow),
}


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), "torch's CSR"], ids=str)
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_adj_t_equals_its_edges(name: str, flow: str, format: Any) -> None:
    """PyTorch Geometric refuses matrices with flow='target_to_source', so the reference gets edges."""
    A = ns.adj_t(DIRECTED, size=NODES, format=ns.CSR if isinstance(format, str) else format)
    assert not torch.equal(A.to_dense(), A.to_dense().t())
    given = A.to_torch() if isinstance(format, str) else A
    layer, reference = (CONVOLUTIONS[name](nn, flow=flow) for nn in (ns.nn, pyg))
    same_as_pyg(layer, reference, X, given, theirs_graph=(DIRECTED,))
    close(layer(X, given), layer(X, DIRECTED))


@pytest.mark.parametrize("format", [ns.DCSR, ns.DCSC, "(i, j) -> (i: dense, j: hash)", "(i, j) -> (j: dense, i: bitmap)"], ids=str)
@pytest.mark.parametrize("name", [*CONVOLUTIONS, "SAGE, min", "SAGE, var"])
def test_formats_without_padding_give_the_results_of_csr(name: str, format: Any) -> None:
    makes = CONVOLUTIONS | {f"SAGE, {aggr}": partial(_sage, aggr=aggr) for aggr in ("min", "var")}
    layer = makes[name](ns.nn)
    close(layer(X, ns.adj_t(DIRECTED, size=NODES, format=format)), layer(X, ns.adj_t(DIRECTED, size=NODES)))


def _sage(nn: Any, aggr: str) -> Any:
    return nn.SAGEConv(IN, OUT, aggr=aggr)


PADDED = ["ELL", "DIA", "BCSR(2, 2)", "(i, j) -> (i: dense, j: band(40, 40))", "(i, j) -> (i: compressed, j: dense)"]


@pytest.mark.parametrize("format", PADDED)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_formats_with_padding_are_refused(name: str, format: str) -> None:
    A = ns.adj_t(DIRECTED, size=NODES).to(format)
    layer = CONVOLUTIONS[name](ns.nn)
    with pytest.raises(ns.UnsupportedError, match=rf"a graph stored as {re.escape(A.format.name)}: .* padding.* store the graph as CSR"):
        layer(X, A)
    with pytest.raises(ns.UnsupportedError, match="padding"):
        A.to_edge_index()


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_a_weighted_adj_t_equals_its_weighted_edges(flow: str) -> None:
    weights = torch.rand(EDGES.shape[1])
    layer = ns.nn.GCNConv(IN, OUT, add_self_loops=False, flow=flow)
    close(layer(X, ns.adj_t(EDGES, weights, NODES)), layer(X, EDGES, weights))


@pytest.mark.parametrize("name", ["SAGE", "SAGE, max", "GIN"])
def test_a_bipartite_adj_t_equals_its_edges(name: str) -> None:
    edges, pair = BETWEEN.unique(dim=1), (PAIR[0], X)
    layer, reference = CONVOLUTIONS[name](ns.nn), CONVOLUTIONS[name](pyg)
    same_as_pyg(layer, reference, pair, ns.adj_t(edges, size=(len(pair[0]), NODES)), theirs_graph=(edges,))


def test_the_norm_of_a_matrix_in_the_other_direction_is_cached() -> None:
    A = ns.adj_t(DIRECTED, size=NODES)
    assert gcn_norm(A, flow="target_to_source") is gcn_norm(A, flow="target_to_source")


def test_the_norm_in_the_other_direction_is_that_of_flipped_edges() -> None:
    close(gcn_norm(EDGES, None, NODES, False, True, "target_to_source").to_dense(), gcn_norm(EDGES.flip(0), None, NODES).to_dense())


# ---- batches of features


NODE_DIMS = [(name, node_dim) for name in ("GCN", "SAGE", "SAGE, several", "GIN") for node_dim in (-2, 1, 0)]


@pytest.mark.parametrize(("name", "node_dim"), [pair for pair in NODE_DIMS if pair != ("GCN", 0)])  # unsupported in PyTorch Geometric
def test_batches_equal_pygs(name: str, node_dim: int) -> None:
    makes: dict[str, Make] = {
        "GCN": lambda nn: nn.GCNConv(IN, OUT, node_dim=node_dim),
        "SAGE": lambda nn: nn.SAGEConv(IN, OUT, node_dim=node_dim, normalize=True),
        "SAGE, several": lambda nn: nn.SAGEConv(IN, OUT, aggr=["max", "sum"], node_dim=node_dim),
        "GIN": lambda nn: nn.GINConv(network(), node_dim=node_dim),
    }
    same_as_pyg(makes[name](ns.nn), makes[name](pyg), STATIC.transpose(0, 1) if node_dim == 0 else STATIC, EDGES)


@pytest.mark.parametrize("make", [lambda: ns.nn.GCNConv(IN, OUT), lambda: ns.nn.SAGEConv(IN, OUT), lambda: ns.nn.GINConv(network())])
def test_each_item_of_a_batch_is_convolved(make: Callable[[], Any]) -> None:
    layer = make()
    x = STATIC.reshape(1, 3, NODES, IN)
    close(layer(x, EDGES)[0], torch.stack([layer(features, EDGES) for features in STATIC]))
    assert layer(STATIC[:0], EDGES).shape == (0, NODES, OUT)
    layer.node_dim = 0
    close(layer(STATIC.transpose(0, 1), EDGES).transpose(0, 1), torch.stack([layer(features, EDGES) for features in STATIC]))


# ---- sizes inferred from the first input

LAZY: dict[str, tuple[Make, Any]] = {
    "GCN": (lambda nn: nn.GCNConv(-1, OUT), X),
    "SAGE": (lambda nn: nn.SAGEConv(-1, OUT), X),
    "SAGE, several": (lambda nn: nn.SAGEConv((-1, -1), OUT, aggr=["max", "sum"]), PAIR),
    "SAGE, no root": (lambda nn: nn.SAGEConv(-1, OUT, root_weight=False), X),
    "GAT": (lambda nn: nn.GATConv(-1, OUT, heads=2, residual=True), X),
    "GAT, a pair": (lambda nn: nn.GATConv((-1, -1), OUT, heads=2, residual=True), PAIR),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_sizes_equal_pygs(name: str) -> None:
    make, x = LAZY[name]
    lazy, reference, graph = make(ns.nn), make(pyg), EDGES if x is X else BETWEEN
    assert repr(lazy) == repr(reference)
    assert list(lazy.state_dict()) == list(reference.state_dict())
    copied, started = copy.deepcopy(lazy), make(ns.nn)
    started.reset_parameters()
    started.load_state_dict(lazy.state_dict())
    reference(x, graph)
    lazy(x, graph)
    assert {k: v.shape for k, v in lazy.state_dict().items()} == {k: v.shape for k, v in reference.state_dict().items()}
    for layer in (lazy, copied, started, pickle.loads(pickle.dumps(lazy))):
        same_as_pyg(layer, copy.deepcopy(reference), x, graph)
    same_as_pyg(make(ns.nn), copy.deepcopy(reference), x, graph)
    lazy.reset_parameters()
    with pytest.raises(ns.SizeError, match="has shape"):
        lazy(tuple(part[:, 1:] for part in x) if isinstance(x, tuple) else x[:, 1:], graph)


@pytest.mark.parametrize("make", [lambda nn, size: nn.GCNConv(size, 80), lambda nn, size: nn.GATConv(size, 40, heads=4)])
def test_lazy_weights_have_the_usual_initial_range(make: Callable[[Any, int], Any]) -> None:
    torch.manual_seed(0)
    lazy, other = make(ns.nn, -1), make(ns.nn, 60)
    lazy(torch.ones(NODES, 60), EDGES)
    torch.testing.assert_close(lazy.lin.weight.abs().max(), other.lin.weight.abs().max(), rtol=0.05, atol=0)


# ---- attention with features of edges

FILLS: list[Any] = ["mean", "add", "min", "max", "mul", 0.5, torch.tensor([1.0, -1.0, 2.0])]


def check_with_features(layer: Any, reference: Any, x: Any, graph: Tensor, features: Tensor, **options: Any) -> None:
    """Outputs agree, and so do gradients of node features, edge features and every parameter."""
    layer.load_state_dict(reference.state_dict())
    tensors = []
    for module in (layer.double(), reference.double()):
        given = leaves(x, torch.float64), leaves(features, torch.float64)
        result = module(given[0], graph, given[1], **options)
        result, *weights = result if isinstance(result, tuple) else (result,)
        upstream = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape)
        (result * upstream).sum().backward()
        tensors.append([result, *(w for pair in weights for w in pair), given[1].grad, *(p.grad for p in module.parameters())])
        for features_of_nodes in given[0] if isinstance(given[0], tuple) else given[:1]:
            tensors[-1].append(features_of_nodes.grad)
    for tensor, expected in zip(*tensors, strict=True):
        close(tensor, expected)


@pytest.mark.parametrize("fill", FILLS, ids=str)
def test_features_of_edges_equal_pygs(fill: Any) -> None:
    def make(nn: Any) -> Any:
        return nn.GATConv(IN, OUT, heads=2, edge_dim=3, fill_value=fill)

    assert {k: v.shape for k, v in make(ns.nn).state_dict().items()} == {k: v.shape for k, v in make(pyg).state_dict().items()}
    check_with_features(make(ns.nn), make(pyg), X, EDGES, FEATURES)


@pytest.mark.parametrize(
    "options", [{"add_self_loops": False}, {"concat": False, "residual": True}, REVERSED, {"negative_slope": -0.3}], ids=str
)
@pytest.mark.parametrize("return_weights", [None, True])
def test_attention_along_edges_equals_pygs(options: dict[str, Any], return_weights: bool | None) -> None:
    def make(nn: Any) -> Any:
        return nn.GATConv(IN, OUT, heads=2, edge_dim=3, **options)

    check_with_features(make(ns.nn), make(pyg), X, EDGES, FEATURES, return_attention_weights=return_weights)


def test_bipartite_features_of_edges_equal_pygs() -> None:
    def make(nn: Any) -> Any:
        return nn.GATConv((-1, -1), OUT, heads=2, edge_dim=-1)

    layer, reference = make(ns.nn), make(pyg)
    reference(PAIR, FEW, FEATURES[: FEW.shape[1]])
    check_with_features(layer, reference, PAIR, FEW, FEATURES[: FEW.shape[1]])
    check_with_features(ns.nn.GATConv(IN, OUT, edge_dim=1), pyg.GATConv(IN, OUT, edge_dim=1), X, EDGES, FEATURES[:, 0])


@pytest.mark.parametrize("name", ["plain", "edge_dim without features", "sparse features"])
def test_attention_weights_equal_pygs(name: str) -> None:
    edge_dim = 3 if "edge_dim" in name else None
    layer, reference = (nn.GATConv(IN, OUT, heads=2, edge_dim=edge_dim) for nn in (ns.nn, pyg))
    layer.load_state_dict(reference.state_dict())
    x = X * (X > 0) if "sparse" in name else X
    result, (edges, weights) = layer(ns.from_torch(x, ns.CSR) if "sparse" in name else x, EDGES, return_attention_weights=True)
    expected, (expected_edges, expected_weights) = reference(x, EDGES, return_attention_weights=True)
    close(result, expected)
    assert torch.equal(edges, expected_edges)
    close(weights, expected_weights)
    close(result, layer(x, EDGES, return_attention_weights=False))


def test_attention_weights_of_a_matrix_are_a_sparse_tensor_with_heads() -> None:
    layer = ns.nn.GATConv(IN, OUT, heads=2)
    distinct = EDGES.unique(dim=1)
    result, weights = layer(X, adjacency(EDGES), return_attention_weights=True)
    expected, (edges, of_edges) = layer(X, distinct, return_attention_weights=True)
    close(result, expected)
    assert weights.shape == (NODES, NODES, 2)
    close(weights.to_dense()[edges[1], edges[0]], of_edges)
    close(weights.to_dense().sum(1), torch.ones(NODES, 2))


def test_returned_attention_weights_include_dropout() -> None:
    layer = ns.nn.GATConv(IN, OUT, heads=2, dropout=0.5, bias=False)
    result, (edges, weights) = layer(X, EDGES, return_attention_weights=True)
    assert 0.3 < float((weights == 0).float().mean()) < 0.7
    sources = layer.lin(X).view(-1, 2, OUT)
    close(result, torch.zeros(NODES, 2, OUT).index_add(0, edges[1], weights[..., None] * sources[edges[0]]).flatten(1))
