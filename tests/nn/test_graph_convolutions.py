"""Graph convolutions have the results and gradients of PyTorch Geometric for its weights, on any graph."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pyg_cases import BETWEEN, EDGES, IN, NODES, OUT, PAIR, SOURCES, WIDE, X, adjacency, close, leaves, network, same_as_pyg
from torch import Tensor

import numscorch as ns
from numscorch.frontend.contraction import pairs_of
from numscorch.frontend.parser import parse_einsum
from numscorch.nn.edge_attention import attend
from numscorch.nn.graph_convolutions import PROPAGATED
from numscorch.nn.graph_inputs import _entries
from numscorch.nn.graphs import gcn_norm, multiplicities
from numscorch.schedule.tuning import FEW_USES

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric isn't installed")
pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Converting sparse tensor to CSR:UserWarning"),
]


WEIGHTS = torch.rand(EDGES.shape[1], generator=torch.Generator().manual_seed(2)) + 0.1


Make = Callable[[Any], Any]
GCN: dict[str, Make] = {
    "default": lambda nn: nn.GCNConv(IN, OUT),
    "improved": lambda nn: nn.GCNConv(IN, OUT, improved=True),
    "no loops": lambda nn: nn.GCNConv(IN, OUT, add_self_loops=False),
    "not normalised": lambda nn: nn.GCNConv(IN, OUT, normalize=False),
    "no bias": lambda nn: nn.GCNConv(IN, OUT, bias=False),
    "wider": lambda nn: nn.GCNConv(IN, 3 * IN),
}
LAYERS: dict[str, Make] = {
    "mean": lambda nn: nn.SAGEConv(IN, OUT),
    "max": lambda nn: nn.SAGEConv(IN, OUT, aggr="max"),
    "mean, of length 1": lambda nn: nn.SAGEConv(IN, OUT, normalize=True, bias=False),
    "max, projected": lambda nn: nn.SAGEConv(IN, OUT, aggr="max", project=True),
    "mean, no root": lambda nn: nn.SAGEConv(IN, OUT, root_weight=False),
    "GIN": lambda nn: nn.GINConv(network(), eps=0.3),
    "GIN, eps trained": lambda nn: nn.GINConv(network(), eps=0.3, train_eps=True),
    "GAT": lambda nn: nn.GATConv(IN, OUT),
    "GAT, heads": lambda nn: nn.GATConv(IN, OUT, heads=3, negative_slope=0.5),
    "GAT, averaged": lambda nn: nn.GATConv(IN, OUT, heads=3, concat=False, residual=True),
    "GAT, no loops": lambda nn: nn.GATConv(IN, OUT, heads=3, add_self_loops=False, bias=False),
}
BIPARTITE: dict[str, Make] = {
    "mean": lambda nn: nn.SAGEConv(WIDE, OUT),
    "max": lambda nn: nn.SAGEConv(WIDE, OUT, aggr="max"),
    "GAT": lambda nn: nn.GATConv(WIDE, OUT, heads=3, residual=True),
    "GAT, no loops": lambda nn: nn.GATConv(WIDE, OUT, heads=3, add_self_loops=False),
}


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("make", GCN.values(), ids=GCN)
def test_gcn_equals_pygs(make: Make, weight: Tensor | None) -> None:
    same_as_pyg(make(ns.nn), make(pyg), X, EDGES, weight)


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_convolutions_equal_pygs(make: Make) -> None:
    same_as_pyg(make(ns.nn), make(pyg), X, EDGES)


@pytest.mark.parametrize("make", BIPARTITE.values(), ids=BIPARTITE)
def test_bipartite_convolutions_equal_pygs(make: Make) -> None:
    same_as_pyg(make(ns.nn), make(pyg), PAIR, BETWEEN)


def test_bipartite_gin_equals_pygs() -> None:
    same_as_pyg(ns.nn.GINConv(network()), pyg.GINConv(network()), (PAIR[0], X), BETWEEN)


@pytest.mark.parametrize("name", ["mean", "max", "GAT, heads", "GIN"])
def test_targets_without_features_equal_pygs(name: str) -> None:
    layer, reference = LAYERS[name](ns.nn), LAYERS[name](pyg)
    layer.load_state_dict(reference.state_dict())
    pair, size = (PAIR[0], None), (SOURCES, NODES)
    close(layer(pair, BETWEEN, size=size), reference(pair, BETWEEN, size=size))


@pytest.mark.parametrize("name", ["mean", "max", "mean, of length 1", "GAT, heads", "GAT, no loops", "GIN"])
def test_the_shape_of_a_matrix_gives_the_number_of_targets(name: str) -> None:
    layer, reference = LAYERS[name](ns.nn), LAYERS[name](pyg)
    layer.load_state_dict(reference.state_dict())
    pair, A = (PAIR[0], None), ns.adj_t(BETWEEN.unique(dim=1), size=(SOURCES, NODES))
    expected = reference(pair, BETWEEN.unique(dim=1), size=(SOURCES, NODES))
    close(layer(pair, A), expected)
    close(layer(pair, A, size=(SOURCES, NODES)), expected)
    if "GAT" not in name:  # PyTorch Geometric cannot add self loops to such a matrix
        close(layer(pair, A.to_torch()), reference(pair, A.to_torch()))
    with pytest.raises(ns.SizeError, match=r"has shape \(40, 30\), but there are features of 29 sources and 40 targets"):
        layer((PAIR[0][1:], None), A)


@pytest.mark.parametrize("name", ["default", "improved", "mean", "max", "GIN, eps trained", "GAT, heads"])
def test_double_precision_equals_pygs(name: str) -> None:
    make = (GCN | LAYERS)[name]
    same_as_pyg(make(ns.nn), make(pyg), X, EDGES, dtype=torch.float64)


@pytest.mark.parametrize("name", ["default", "mean", "max", "GIN, eps trained", "GAT, heads"])
def test_larger_graphs_equal_pygs(name: str) -> None:
    make, nodes = (GCN | LAYERS)[name], 3000
    x = torch.randn(nodes, IN, generator=torch.Generator().manual_seed(6))
    edges = torch.randint(0, nodes, (2, 20_000), generator=torch.Generator().manual_seed(7))
    same_as_pyg(make(ns.nn), make(pyg), x, edges, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["SparseTensor", "CSC", "torch's CSR", "torch's COO"])
@pytest.mark.parametrize("name", ["default", "mean", "max", "GIN", "GAT, heads"])
def test_an_adjacency_matrix_equals_its_edges(name: str, kind: str) -> None:
    A = adjacency(EDGES)
    given = {"SparseTensor": A, "CSC": A.to(ns.CSC), "torch's CSR": A.to_torch(), "torch's COO": A.to(ns.COO(2)).to_torch()}[kind]
    make = (GCN | LAYERS)[name]
    same_as_pyg(make(ns.nn), make(pyg), X, given, theirs_graph=(A.indices().flip(0),))


@pytest.mark.parametrize("name", ["no loops", "not normalised", "mean", "GIN"])
def test_a_weighted_adjacency_matrix_equals_pygs(name: str) -> None:
    A = adjacency(EDGES)
    A = A.with_values(torch.rand(A.nnz) + 0.1)
    make = (GCN | LAYERS)[name]
    same_as_pyg(make(ns.nn), make(pyg), X, A, theirs_graph=(A.to_torch(),))


@pytest.mark.parametrize("improved", [False, True])
def test_self_loops_added_to_a_matrix_have_pygs_weights(improved: bool) -> None:
    A = adjacency(EDGES[:, EDGES[0] != EDGES[1]])  # PyTorch Geometric would add to existing loops
    same_as_pyg(ns.nn.GCNConv(IN, OUT, improved), pyg.GCNConv(IN, OUT, improved), X, A, theirs_graph=(A.to_torch(),))


def test_improved_self_loops_require_weights_as_in_pyg() -> None:
    same_as_pyg(ns.nn.GCNConv(IN, OUT, improved=True), pyg.GCNConv(IN, OUT, improved=True), X, EDGES)
    assert torch.equal(gcn_norm(EDGES, improved=True).to_dense(), gcn_norm(EDGES).to_dense())
    assert not torch.equal(gcn_norm(adjacency(EDGES), improved=True).to_dense(), gcn_norm(adjacency(EDGES)).to_dense())


def test_self_loops_of_a_weighted_matrix_are_kept_as_in_an_edge_list() -> None:
    A = adjacency(EDGES)
    A = A.with_values(torch.rand(A.nnz) + 0.1)
    for improved in (False, True):
        of_edges = gcn_norm(A.indices().flip(0), A.values, NODES, improved)
        close(gcn_norm(A, improved=improved).to_dense(), of_edges.to_dense())


def test_the_maximum_of_negative_features_equals_pygs() -> None:
    same_as_pyg(ns.nn.SAGEConv(IN, OUT, aggr="max"), pyg.SAGEConv(IN, OUT, aggr="max"), -X.abs() - 1, EDGES)


def test_equal_maxima_share_the_gradient_as_in_pyg() -> None:
    edges = torch.unique(EDGES, dim=1)
    ties = X.round() + 0.5  # no zeros: where 0 is the maximum, torch's scatter_reduce gives its initial zeros a share
    same_as_pyg(ns.nn.SAGEConv(IN, OUT, aggr="max"), pyg.SAGEConv(IN, OUT, aggr="max"), ties, edges)


def test_isolated_nodes() -> None:
    none = torch.empty(2, 0, dtype=torch.int64)
    for name in ("default", "mean", "max", "GIN", "GAT, no loops"):
        make = (GCN | LAYERS)[name]
        same_as_pyg(make(ns.nn), make(pyg), X, none)
    assert not LAYERS["GAT, no loops"](ns.nn)(X, none).any(), "no edges, and no bias: nothing arrives"


@pytest.mark.parametrize("name", ["default", "mean", "max", "GIN", "GAT, heads"])
def test_sparse_features_equal_dense_features(name: str) -> None:
    layer = (GCN | LAYERS)[name](ns.nn)
    bag = X * (X > 1)
    expected = layer(bag, EDGES)
    close(layer(ns.from_torch(bag, ns.CSR), EDGES), expected)
    trained = ns.from_torch(bag, ns.CSR)
    trained.values.requires_grad_()
    bag = bag.requires_grad_()
    layer(trained, EDGES).sum().backward(), layer(bag, EDGES).sum().backward()
    assert trained.grad is not None and bag.grad is not None
    close(trained.grad.to_dense(), bag.grad * (bag != 0))


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2)], ids=str)
def test_the_maximum_of_sparse_features_equals_pygs_of_dense_features(format: ns.Format) -> None:
    """An unstored 0 is the maximum of negative features, if some neighbour lacks the feature."""
    layer, reference = ns.nn.SAGEConv(IN, OUT, aggr="max"), pyg.SAGEConv(IN, OUT, aggr="max")
    layer.load_state_dict(reference.state_dict())
    shares = torch.rand(X.shape, generator=torch.Generator().manual_seed(8))
    for bag in (X * (X > 1), -X.abs() * (shares > 0.3), -X.abs() - 1, X * 0):
        for edges in (EDGES, EDGES[:, :30], EDGES[:, :0]):
            dense, stored = bag.clone().requires_grad_(), ns.from_torch(bag, format)
            stored.values.requires_grad_()
            results = reference(dense, edges), layer(stored, edges)
            close(results[1], results[0])
            layer.zero_grad(), reference.zero_grad()
            for result in results:
                result.square().sum().backward()
            assert dense.grad is not None and stored.grad is not None
            close(stored.grad.to_dense(), dense.grad * (bag != 0))
            close(layer.lin_l.weight.grad, reference.lin_l.weight.grad)


def test_features_may_be_a_sparse_tensor_of_torch() -> None:
    layer, bag = ns.nn.GCNConv(IN, OUT), X * (X > 1)
    close(layer(bag.to_sparse_csr(), EDGES), layer(bag, EDGES))


def test_the_contraction_path_selects_the_first_product() -> None:
    def first(inputs: int, outputs: int, stored: int | None = None) -> tuple[int, int]:
        shapes = ((9000, 9000), (9000, inputs), (outputs, inputs))
        pair = pairs_of(parse_einsum(PROPAGATED, (2, 2, 2)), shapes, (90_000, stored, None))[0]
        return pair.left, pair.right

    assert first(500, 16) == (1, 2), "x @ weight.t() is narrower"
    assert first(16, 500) == (0, 1), "so is A @ x"
    assert first(500, 500, stored=40_000) == (1, 2), "few features are stored, and A @ x would store more"


def test_weights_of_edges_have_gradients() -> None:
    layer, reference = ns.nn.GCNConv(IN, OUT), pyg.GCNConv(IN, OUT)
    layer.load_state_dict(reference.state_dict())
    edges = torch.unique(EDGES, dim=1)
    weights, other = (WEIGHTS[: edges.shape[1]].clone().requires_grad_() for _ in range(2))
    for _ in range(2):  # cached matrices must not belong to a freed autograd graph
        layer(X, edges, weights).square().sum().backward()
        reference(X, edges, other).square().sum().backward()
    close(weights.grad, other.grad)


def test_a_matrix_that_is_a_parameter_has_a_gradient() -> None:
    A = ns.nn.Parameter(adjacency(EDGES))
    ns.nn.GCNConv(IN, OUT)(X, A).sum().backward()
    assert A.values.grad is not None and A.values.grad.abs().sum() > 0


@pytest.mark.parametrize("slope", [0.2, -0.3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_of_attention_equal_finite_differences(slope: float, dropout: float) -> None:
    """First and second gradients agree, with duplicate edges, isolated nodes and the same dropped weights."""
    edges = EDGES[:, -40:]
    graph = multiplicities(edges, (NODES, NODES), torch.float64, add_self_loops=False)
    assert int(graph.values.max()) > 1
    inputs = [torch.randn(NODES, 3, *size, dtype=torch.float64, requires_grad=True) for size in ((2,), (), ())]

    def attended(x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        torch.manual_seed(0)
        return attend(graph, x, s, t, slope, dropout)

    assert torch.autograd.gradcheck(attended, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(attended, inputs, fast_mode=True)


def test_gradients_that_are_differentiated_again_are_the_same() -> None:
    """The scores are computed from the features: their gradients are not those of the features."""
    layer = ns.nn.GATConv(IN, OUT).double()
    inputs = leaves(X, torch.float64), *layer.parameters()
    first, second = (torch.autograd.grad(layer(inputs[0], EDGES).square().sum(), inputs, create_graph=again) for again in (False, True))
    for gradient, expected in zip(second, first, strict=True):
        close(gradient.detach(), expected)


def test_attention_never_overflows() -> None:
    graph = multiplicities(EDGES, (NODES, NODES), torch.float32, add_self_loops=True)
    scores = torch.randn(NODES, 3) * 1e4
    for slope in (0.2, 0.0, -0.3, 1.5):
        result = attend(graph, torch.ones(NODES, 3, 2), scores, scores, slope, 0.0)
        close(result, torch.ones(NODES, 3, 2))


def test_dropout_of_attention_keeps_the_mean() -> None:
    layer = ns.nn.GATConv(IN, OUT, dropout=0.5)
    results = torch.stack([layer(X, EDGES) for _ in range(100)])
    assert results.var(0).max() > 0
    torch.testing.assert_close(results.mean(0), layer.eval()(X, EDGES), rtol=0.3, atol=0.3)


# ---- caches


def test_the_normalised_matrix_is_cached_with_the_graph() -> None:
    edges, weights = EDGES.clone(), WEIGHTS.clone()
    assert gcn_norm(edges, num_nodes=NODES) is gcn_norm(edges, num_nodes=NODES)
    assert gcn_norm(edges, weights, NODES) is gcn_norm(edges, weights, NODES)
    A = adjacency(edges)
    assert gcn_norm(A) is gcn_norm(A)
    assert gcn_norm(A) is not gcn_norm(A, improved=True)
    assert gcn_norm(edges, num_nodes=NODES).pattern is not gcn_norm(edges, num_nodes=NODES + 1).pattern


def test_written_graphs_are_normalised_again() -> None:
    edges, weights, A = EDGES.clone(), WEIGHTS.clone(), adjacency(EDGES)
    native = A.with_values(A.values.clone()).to_torch()
    for written, normalised in (
        (edges, lambda: gcn_norm(edges, num_nodes=NODES)),
        (weights, lambda: gcn_norm(edges, weights, NODES)),
        (A.values, lambda: gcn_norm(A)),
        (native.values(), lambda: gcn_norm(native)),
    ):
        before = normalised().to_dense()
        written[..., 0] += 3
        assert not torch.equal(before, normalised().to_dense())
    for replaced, normalised in ((weights, lambda: gcn_norm(edges, weights, NODES)), (A.values, lambda: gcn_norm(A))):
        before = normalised().to_dense()
        replaced.data = torch.rand(len(replaced))
        assert not torch.equal(before, normalised().to_dense())
    A.values = torch.rand(A.nnz)
    close(gcn_norm(A).to_dense(), gcn_norm(A.with_values(A.values.clone())).to_dense())


def test_sums_along_a_new_edge_list_equal_those_of_its_matrix() -> None:
    """The matrix of a small edge list is made after a few uses."""
    edges, layer = EDGES.clone(), ns.nn.GINConv(network()).double()
    results = []
    for _ in range(FEW_USES + 2):
        x = leaves(X, torch.float64)
        result = layer(x, edges)
        results.append((result.detach(), *torch.autograd.grad(result.square().sum(), [x, *layer.parameters()])))
        assert any("edges" in key for key in _entries[id(edges)][2]) == (len(results) > FEW_USES)
    for part in zip(*results, strict=True):
        for value in part[1:]:
            close(value, part[0])


@pytest.mark.parametrize("kind", ["edges", "weights", "CSR", "COO(2)"])
@pytest.mark.parametrize("name", ["default", "no loops", "not normalised", "wider", "mean", "GIN", "GAT, heads", "GAT, no loops"])
def test_first_uses_of_a_graph_equal_later_ones(name: str, kind: str) -> None:
    """Small graphs are summed edge by edge at first, and later with a matrix."""
    layer, weight = (GCN | LAYERS)[name](ns.nn).double(), WEIGHTS.double()
    if kind == "weights" and name not in GCN:
        pytest.skip("only GCNConv takes weights")
    is_list, results = kind in ("edges", "weights"), []
    graph: Any = EDGES.clone() if is_list else ns.adj_t(EDGES, weight, size=NODES, format=kind)
    for _ in range(FEW_USES + 2):
        x, given = leaves(X, torch.float64), (weight if is_list else graph.values).clone().requires_grad_()
        result = layer(x, graph, given) if kind == "weights" else layer(x, graph if is_list else graph.with_values(given))
        wanted = [x, *layer.parameters(), *([] if kind == "edges" or (kind != "weights" and name.startswith("GAT")) else [given])]
        results.append((result.detach(), *torch.autograd.grad(result.square().sum(), wanted, allow_unused=True)))
    for part in zip(*results, strict=True):
        for value in part[1:]:
            close(value, part[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_many_parallel_edges_are_counted(dtype: torch.dtype) -> None:
    edges, layer = torch.tensor([[0], [1]]).repeat(1, 3000), ns.nn.GINConv(torch.nn.Identity())
    for _ in range(FEW_USES + 2):
        assert layer(torch.ones(2, 1, dtype=dtype), edges).tolist() == [[1.0], [1.0 + float(torch.tensor(3000.0, dtype=dtype))]]


@pytest.mark.parametrize("node", [NODES, -1])
@pytest.mark.parametrize("kind", ["source", "target"])
@pytest.mark.parametrize("name", ["GIN", "default", "not normalised", "mean", "GAT", "GAT, no loops"])
def test_nodes_out_of_range_of_a_new_edge_list_are_named(name: str, node: int, kind: str) -> None:
    edges, layer = EDGES.clone(), (GCN | LAYERS)[name](ns.nn)
    edges[("source", "target").index(kind), 7] = node
    for _ in range(FEW_USES + 2):
        with pytest.raises(ns.RangeError, match=f"edge 7 of edge_index has {kind} {node},"):
            layer(X, edges)


def test_weights_within_vmap_are_normalised_in_every_call() -> None:
    batch, layer = torch.rand(3, len(WEIGHTS)), ns.nn.GCNConv(IN, OUT)
    close(torch.vmap(lambda weights: layer(X, EDGES, weights))(batch), torch.stack([layer(X, EDGES, weights) for weights in batch]))


def test_writes_that_torch_does_not_count_are_missed() -> None:
    """The documentation describes this limit and its workarounds."""
    weights = WEIGHTS.clone()
    before = gcn_norm(EDGES, weights, NODES)
    weights.data[0] += 3
    assert gcn_norm(EDGES, weights, NODES) is before
    with torch.no_grad():
        weights[0] += 3
    assert gcn_norm(EDGES, weights, NODES) is not before
    with torch.inference_mode():
        edges = EDGES.clone()
    assert gcn_norm(edges, num_nodes=NODES) is not gcn_norm(edges, num_nodes=NODES)
    edges = edges.clone()
    assert gcn_norm(edges, num_nodes=NODES) is gcn_norm(edges, num_nodes=NODES)


def test_caches_keep_no_graph_alive() -> None:
    gc.collect()
    before = len(_entries)
    edges = torch.unique(EDGES, dim=1)
    weights, A = torch.ones(edges.shape[1]), adjacency(edges)
    for graph in ((edges, weights), (edges.flip(0), weights), (A,)):
        ns.nn.GCNConv(IN, OUT)(X, *graph)
        ns.nn.GCNConv(IN, OUT, normalize=False)(X, *graph)
    for name in ("mean", "max", "GIN", "GAT, heads"):
        LAYERS[name](ns.nn)(X, edges), LAYERS[name](ns.nn)(X, A)
    assert len(_entries) > before
    del edges, weights, A, graph
    gc.collect()
    assert len(_entries) == before


def test_results_cached_in_inference_mode_can_be_used_in_training() -> None:
    edges, layer = EDGES.clone(), ns.nn.GCNConv(IN, OUT)
    with torch.inference_mode():
        expected = layer(X, edges)
    result = layer(X, edges)
    result.sum().backward()
    close(result.detach(), expected.clone())


def test_a_cached_layer_keeps_its_first_graph() -> None:
    layer = ns.nn.GCNConv(IN, OUT, cached=True)
    first = layer(X, EDGES)
    close(layer(X, EDGES.flip(1).flip(0)), first)
    close(copy.deepcopy(layer)(X, EDGES[:, :0]), first)
    assert set(layer.state_dict()) == {"lin.weight", "bias"}
    layer.reset_parameters()
    assert not layer._kept


def test_a_cached_layer_trains_weights_of_edges() -> None:
    layer, weights = ns.nn.GCNConv(IN, OUT, cached=True), WEIGHTS.clone().requires_grad_()
    with torch.no_grad():
        layer(X, EDGES, weights)
    gradients = []
    for _ in range(2):
        layer(X, EDGES, weights).sum().backward()
        gradients.append(weights.grad.clone())
        weights.grad = None
    close(gradients[0], gradients[1])
    copy.deepcopy(layer)


def test_a_cached_layer_trains_the_values_of_a_matrix_and_after_inference() -> None:
    layer, A = ns.nn.GCNConv(IN, OUT, cached=True), adjacency(EDGES)
    A = A.with_values(A.values.clone().requires_grad_())
    for graph in (A, ns.nn.Parameter(adjacency(EDGES))):
        for _ in range(2):
            layer(X, graph).sum().backward()
    with torch.inference_mode():
        edges = EDGES.clone()
        layer(X, edges)
    layer(X, edges).sum().backward()


def test_a_cached_layer_keeps_a_matrix_for_each_data_type() -> None:
    layer = ns.nn.GCNConv(IN, OUT, cached=True)
    first = layer(X, EDGES)
    result = layer.double()(X.double(), EDGES)
    close(result.float(), first)
    assert {dtype: matrix.dtype for dtype, matrix in layer._kept.items()} == {dtype: dtype for dtype in (torch.float32, torch.float64)}


# ---- modules


@pytest.mark.parametrize("name", [*GCN, *LAYERS])
def test_layers_print_and_name_parameters_as_pygs(name: str) -> None:
    make = (GCN | LAYERS)[name]
    layer, reference = make(ns.nn), make(pyg)
    assert repr(layer) == repr(reference)
    assert {k: v.shape for k, v in layer.state_dict().items()} == {k: v.shape for k, v in reference.state_dict().items()}
    reference.load_state_dict(layer.state_dict())


@pytest.mark.parametrize("name", ["default", "max, projected", "GIN, eps trained", "GAT, averaged"])
def test_layers_are_copied_and_saved(name: str) -> None:
    layer = (GCN | LAYERS)[name](ns.nn)
    expected = layer(X, EDGES)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)):
        close(other(X, EDGES), expected)
    layer.reset_parameters()
    assert not torch.equal(layer(X, EDGES), expected)


def test_weights_start_within_pygs_bounds() -> None:
    torch.manual_seed(0)
    for make in (lambda nn: nn.GCNConv(60, 80), lambda nn: nn.SAGEConv(60, 80), lambda nn: nn.GATConv(60, 40, heads=4)):
        expected = dict(make(pyg).named_parameters())
        for name, parameter in make(ns.nn).named_parameters():
            torch.testing.assert_close(parameter.abs().max(), expected[name].abs().max(), rtol=0.1, atol=0)


class TwoConvolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ns.nn.GCNConv(IN, 8), ns.nn.GCNConv(8, OUT)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        result: Tensor = self.second(self.first(x, graph).relu(), graph)
        return result


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's compiler asks for it
def test_two_layers_compile() -> None:
    net = TwoConvolutions()
    for graph in (EDGES, adjacency(EDGES)):
        expected = net(X, graph)
        compiled = torch.compile(net, backend="aot_eager")
        close(compiled(X, graph), expected)
        compiled(X, graph).sum().backward()
        close(net.first.lin.weight.grad, torch.autograd.grad(expected.sum(), net.first.lin.weight)[0])
        net.zero_grad()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_two_cached_layers_compile_to_one_program() -> None:
    net = TwoConvolutions()
    net.first.cached = net.second.cached = True
    expected = torch.autograd.grad(net(X, EDGES).sum(), list(net.parameters()))
    torch.compiler.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    close(compiled(X, EDGES), net(X, EDGES))
    close(torch.autograd.grad(compiled(X, EDGES).sum(), list(net.parameters())), expected)


# ---- invalid arguments

X3 = torch.ones(3, IN)
GRAPH = torch.tensor([[0, 1], [1, 2]])
EYE = ns.from_torch(torch.eye(4), ns.CSR)
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a target too large": (
        lambda: ns.nn.GCNConv(IN, OUT)(X3, torch.tensor([[0, 1], [1, 12]])),
        IndexError,
        "edge 1 of edge_index has target 12, but there are features of 3 nodes: nodes are numbered from 0 to 2",
    ),
    "a negative source": (
        lambda: ns.nn.SAGEConv(IN, OUT)(X3, torch.tensor([[0, -1], [1, 2]])),
        ns.SizeError,
        "edge 1 of edge_index has source -1",
    ),
    "a source too large of two kinds": (
        lambda: ns.nn.SAGEConv(IN, OUT)((X3, torch.ones(9, IN)), torch.tensor([[5], [8]])),
        ns.SizeError,
        "edge 0 of edge_index has source 5, but there are features of 3 sources and 9 targets",
    ),
    "a matrix of another size": (
        lambda: ns.nn.GATConv(IN, OUT)(X3, EYE),
        ns.SizeError,
        r"the adjacency matrix has shape \(4, 4\), but there are features of 3 nodes: [^;]*$",
    ),
    "a matrix without the last nodes": (
        lambda: ns.nn.GCNConv(IN, OUT)(torch.ones(6, IN), ns.adj_t(GRAPH)),
        ns.SizeError,
        r"\(3, 3\), but there are features of 6 nodes: .*the last nodes have no edges, make it with ns\.adj_t\(edge_index, size=6\)",
    ),
    "a rectangle without the last nodes": (
        lambda: ns.nn.SAGEConv(IN, OUT)((torch.ones(6, IN), torch.ones(5, IN)), ns.adj_t(GRAPH)),
        ns.SizeError,
        r"but there are features of 6 sources and 5 targets: .* make it with ns\.adj_t\(edge_index, size=\(6, 5\)\)",
    ),
    "a matrix the other way round": (
        lambda: ns.nn.SAGEConv(IN, OUT)((X3, torch.ones(4, IN)), ns.from_torch(torch.ones(3, 4), ns.CSR)),
        ns.SizeError,
        r"3 sources and 4 targets: it has a row for each target and a column for each source; did you mean adj.t\(\)\?",
    ),
    "other features": (
        lambda: ns.nn.GCNConv(IN, OUT)(torch.ones(3, 5), GRAPH),
        ns.SizeError,
        r"x has shape \(3, 5\), but GCNConv\(6, 4\) takes",
    ),
    "other features of targets": (
        lambda: ns.nn.SAGEConv(WIDE, OUT)((X3, X3), GRAPH),
        ns.SizeError,
        r"x\[1\] has shape \(3, 6\), but SAGEConv\(\(6, 5\), 4, aggr=mean\) takes \(nodes, 5\)",
    ),
    "a pair for GCN": (
        lambda: ns.nn.GCNConv(IN, OUT)((X3, X3), GRAPH),
        ns.UnsupportedError,
        "not a pair: use SAGEConv, GATConv or GINConv",
    ),
    "edges as rows": (
        lambda: ns.nn.GCNConv(IN, OUT)(X3, torch.zeros(5, 2, dtype=torch.int64)),
        ns.SizeError,
        r"edge_index has shape \(5, 2\): .* did you mean edge_index.t\(\)\?",
    ),
    "a dense matrix": (
        lambda: ns.nn.GCNConv(IN, OUT)(X3, torch.eye(3)),
        ns.SizeError,
        r"make a dense adjacency matrix sparse with ns.from_torch\(adj\)",
    ),
    "nodes that are floats": (
        lambda: ns.nn.GCNConv(IN, OUT)(X3, torch.tensor([[0.0], [1.0]])),
        ns.FormatError,
        "coordinates and positions are integers",
    ),
    "a list": (
        lambda: ns.nn.GCNConv(IN, OUT)(X3, [[0], [1]]),
        ns.UnsupportedError,
        "a graph is an edge_index or an adjacency matrix, not list",
    ),
    "too few weights": (
        lambda: ns.nn.GCNConv(IN, OUT)(X3, GRAPH, torch.ones(1)),
        ns.SizeError,
        "edge_weight has 1 entries, but edge_index has 2 edges",
    ),
    "weights beside a matrix": (
        lambda: ns.nn.GCNConv(IN, 4)(torch.ones(4, IN), EYE, torch.ones(4)),
        ns.UnsupportedError,
        r"ordered by target and not as in the edge list: make the matrix with its weights, as ns\.adj_t\(edge_index, edge_weight\) does",
    ),
    "a rectangle": (lambda: gcn_norm(ns.from_torch(torch.ones(3, 4), ns.CSR)), ns.SizeError, "as many targets as sources"),
    "the largest of weighted messages": (
        lambda: ns.nn.SAGEConv(IN, OUT, aggr="max")(torch.ones(4, IN), EYE * 2),
        ns.UnsupportedError,
        r"values other than 1: drop them with",
    ),
    "another size": (
        lambda: ns.nn.SAGEConv(IN, OUT)((X3, None), GRAPH, size=(4, 3)),
        ns.SizeError,
        r"size=\(4, 3\) gives 4 sources, but there are features of 3",
    ),
    "an edge's features": (
        lambda: ns.nn.GATConv(IN, OUT)(X3, GRAPH, torch.ones(2, 1)),
        ns.UnsupportedError,
        "GATConv with edge_attr, but no edge_dim: give edge_dim=",
    ),
    "features of too few edges": (
        lambda: ns.nn.GATConv(IN, OUT, edge_dim=3)(X3, GRAPH, torch.ones(1, 3)),
        ns.SizeError,
        r"edge_attr has shape \(1, 3\), but there are 2 edges with 3 features",
    ),
    "features of a matrix's edges": (
        lambda: ns.nn.GATConv(IN, OUT, edge_dim=1)(torch.ones(4, IN), EYE, torch.ones(4)),
        ns.UnsupportedError,
        "edge_attr with an adjacency matrix, whose edges have no order: pass edge_index",
    ),
    "an unknown fill": (
        lambda: ns.nn.GATConv(IN, OUT, edge_dim=1, fill_value="median")(X3, GRAPH, torch.ones(2)),
        ns.OperandError,
        "fill_value='median': give a number, a tensor, or one of add, sum, mean",
    ),
    "loops without a norm": (lambda: ns.nn.GCNConv(IN, OUT, add_self_loops=True, normalize=False), ns.UnsupportedError, "adds the loops"),
    "an unknown aggregation": (
        lambda: ns.nn.SAGEConv(IN, OUT, aggr="lstm"),
        ns.UnsupportedError,
        "aggr='lstm': it takes 'mean', 'max', 'min', 'sum', 'add', 'var', 'std', or a list of them",
    ),
    "no aggregation": (lambda: ns.nn.SAGEConv(IN, OUT, aggr=[]), ns.UnsupportedError, r"aggr=\[\]: it takes"),
    "channels for GIN's network": (
        lambda: ns.nn.GINConv(IN, OUT),
        ns.UnsupportedError,
        r"GINConv\(6\): the first argument is the network, such as torch.nn.Linear\(6, out_channels\)",
    ),
    "two aggregations of GIN": (lambda: ns.nn.GINConv(network(), aggr=["max", "min"]), ns.UnsupportedError, "give one"),
    "the largest of normalised messages": (lambda: ns.nn.GCNConv(IN, OUT, aggr="max"), ns.UnsupportedError, "it takes 'add', 'sum'$"),
    "an average of attention": (lambda: ns.nn.GATConv(IN, OUT, aggr="mean"), ns.UnsupportedError, "it takes 'add', 'sum'$"),
    "an unknown direction": (lambda: ns.nn.GCNConv(IN, OUT, flow="up"), ns.UnsupportedError, "flow='up': give 'source_to_target' or"),
    "two kinds of nodes the other way": (
        lambda: ns.nn.SAGEConv(IN, OUT, flow="target_to_source")((X3, X3.clone()), GRAPH),
        ns.UnsupportedError,
        r"swap them, and pass edge_index.flip\(0\)",
    ),
    "channels as nodes": (lambda: ns.nn.GCNConv(IN, OUT, node_dim=-1)(X3, GRAPH), ns.SizeError, r"node_dim=-1 of GCNConv\(6, 4\) cannot"),
    "batches of attention": (lambda: ns.nn.GATConv(IN, OUT)(X3[None], GRAPH), ns.SizeError, r"takes \(nodes, 6\)"),
    "no channels": (lambda: ns.nn.GCNConv(0, OUT), ns.SizeError, "in_channels=0: give a positive integer, or -1 for a size"),
    "results to be found later": (lambda: ns.nn.GCNConv(IN, -1), ns.SizeError, "out_channels=-1: give a positive integer"),
    "channels of a pair": (lambda: ns.nn.GCNConv((IN, IN), OUT), ns.SizeError, "give a positive integer"),
    "weights as the size": (
        lambda: ns.nn.SAGEConv(IN, OUT)(X3, GRAPH, torch.ones(GRAPH.shape[1])),
        ns.SizeError,
        r"size is a tensor of shape .*: pass \(number of sources",
    ),
    "projections to be found later": (lambda: ns.nn.SAGEConv(-1, OUT, project=True), ns.SizeError, "project=True needs in_channels"),
}


def test_channels_may_be_integers_of_numpy_and_torch() -> None:
    layer = ns.nn.GCNConv(np.int64(IN), torch.tensor(OUT))  # type: ignore[arg-type]
    assert layer(X3, GRAPH).shape == (3, OUT)


@pytest.mark.parametrize(("call", "error", "text"), WRONG.values(), ids=WRONG)
def test_invalid_arguments_are_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_weights_of_another_layer_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"size mismatch for lin\.weight"):
        ns.nn.GCNConv(IN, OUT).load_state_dict(pyg.GCNConv(IN, OUT + 1).state_dict())


@pytest.mark.parametrize("layer", [ns.nn.GCNConv(3, 2), ns.nn.SAGEConv(3, 2), ns.nn.GATConv(3, 2)], ids=str)
def test_autocast(layer: torch.nn.Module) -> None:
    x, edges = torch.randn(5, 3), torch.tensor([[0, 1, 2, 4, 0, 1, 3], [1, 2, 3, 4, 3, 0, 0]])
    with torch.autocast("cpu", torch.bfloat16):
        result = layer(x, edges)
    torch.testing.assert_close(result.float(), layer(x, edges), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_autocast_narrows_biases_of_linear_layers_as_torch_does(aggr: str) -> None:
    x, layer = torch.randn(5, 3), ns.nn.SAGEConv(3, 2, aggr=aggr)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x, torch.tensor([[0, 1], [1, 2]])).dtype == layer.lin_l(x).dtype == torch.bfloat16
