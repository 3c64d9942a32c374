"""Edge lists are converted to PyTorch Geometric's adjacency matrices, with its weights, and back."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns

pytestmark = [pytest.mark.usefixtures("interpreted"), pytest.mark.filterwarnings("ignore:.* edges are repeated:UserWarning")]
EDGES = torch.tensor([[0, 0, 2, 1, 2], [1, 1, 0, 2, 2]])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


def geometric() -> Any:
    """PyTorch Geometric; its import emits warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")


def quiet(function: Any, *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["none", "some"])
@pytest.mark.parametrize("size", [None, 4, (3, 5), (None, 4)])
def test_adj_t_is_the_transpose_of_torch_geometrics_csr_matrix(weights: torch.Tensor | None, size: Any) -> None:
    utils = geometric().utils
    A = ns.adj_t(EDGES, weights, size)
    expected = quiet(utils.to_torch_csr_tensor, EDGES, weights, size).to_dense().t()
    assert (A.format, A.shape) == (ns.CSR, expected.shape)
    assert torch.equal(A.to_dense(), expected)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["none", "some"])
def test_adj_t_equals_torch_geometrics(weights: torch.Tensor | None) -> None:
    transforms, Data = geometric().transforms, geometric().data.Data
    data = Data(edge_index=EDGES, edge_weight=weights, num_nodes=3)
    reference = quiet(transforms.ToSparseTensor(remove_edge_index=True, layout=torch.sparse_csr), data).adj_t
    expected = reference.to_dense() if weights is not None else (reference.to_dense() != 0).float()
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


def test_the_old_name_recommends_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"from_edge_index.*ns\.adj_t\(edge_index\).*A\[target, source\].*\.t\(\)"):
        _ = ns.from_edge_index


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2)], ids=str)
def test_edges_equal_those_of_torch_geometric(format: ns.Format) -> None:
    utils = geometric().utils
    A = ns.adj_t(EDGES, WEIGHTS, (4, 5), format)
    (edges, values), (expected, attributes) = A.to_edge_index(), quiet(utils.to_edge_index, A.to_torch())
    assert (edges.dtype, edges.tolist(), values.tolist()) == (expected.dtype, expected.flip(0).tolist(), attributes.tolist())
    with pytest.raises((TypeError, AttributeError)):  # values is a tensor, not a method
        utils.to_edge_index(A)


def test_edge_index_objects_of_torch_geometric() -> None:
    EdgeIndex = geometric().EdgeIndex
    A = ns.adj_t(EdgeIndex(EDGES, sparse_size=(3, 7)), WEIGHTS)
    assert tuple(A.shape) == (7, 3)
    assert torch.equal(A.to_dense()[:3], ns.adj_t(EDGES, WEIGHTS).to_dense())
    assert tuple(ns.adj_t(EdgeIndex(EDGES)).shape) == (3, 3)
    assert type(A.to_edge_index()[0]) is torch.Tensor


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, "(i, j) -> (i: dense, j: bitmap)"], ids=str)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["none", "some"])
def test_edges_in_every_format(format: Any, weights: torch.Tensor | None) -> None:
    A = ns.adj_t(EDGES, weights, format=format)
    expected = torch.zeros(3, 3).index_put(tuple(EDGES.flip(0)), torch.ones(5) if weights is None else weights, accumulate=True)
    expected = expected if weights is not None else expected.clamp(max=1)
    assert torch.equal(A.to_dense(), expected)
    edges, values = A.to_edge_index()
    assert torch.equal(torch.zeros(3, 3).index_put(tuple(edges.flip(0)), values, accumulate=True), expected)


def test_weights_of_sorted_edges_are_not_copied() -> None:
    edges, weights = torch.tensor([[1, 0, 2], [0, 1, 2]]), torch.ones(3)
    assert ns.adj_t(edges, weights, format=ns.COO(2)).values.data_ptr() == weights.data_ptr()


@pytest.mark.parametrize("format", [ns.CSR, ns.COO(2)])
def test_gradients_flow_to_and_from_weights(format: Any) -> None:
    weights = WEIGHTS.clone().requires_grad_()
    A = ns.adj_t(EDGES, weights, format=format)
    x = torch.arange(1.0, 4.0)
    (A @ x).sum().backward(retain_graph=True)
    assert torch.equal(weights.grad, x[EDGES[0]])
    weights.grad = None
    (A.to_edge_index()[1] ** 2).sum().backward()
    summed = {(0, 1): 3.0}  # the weights of two duplicate edges
    assert weights.grad.tolist() == [2 * summed.get((int(i), int(j)), w) for (i, j), w in zip(EDGES.T, WEIGHTS.tolist(), strict=True)]


@pytest.mark.parametrize("empty", [torch.empty(2, 0, dtype=torch.int64), np.empty((2, 0))])
def test_graphs_without_edges(empty: Any) -> None:
    assert tuple(ns.adj_t(empty).shape) == (0, 0)
    A = ns.adj_t(empty, size=np.int64(3))
    assert (tuple(A.shape), A.nnz) == ((3, 3), 0)
    assert A.to_edge_index()[0].shape == (2, 0)


@pytest.mark.parametrize(
    ("edges", "options", "error", "message"),
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
def test_invalid_edges_are_refused(edges: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ns.adj_t(edges, **options)


def test_the_product_passes_messages_along_edges() -> None:
    """The product of adj_t and features sums the messages of each node's sources, as in PyTorch Geometric's layers."""
    utils = geometric().utils
    A, X = ns.adj_t(EDGES, WEIGHTS), torch.arange(6.0).reshape(3, 2)
    expected = utils.scatter(X[EDGES[0]] * WEIGHTS[:, None], EDGES[1], 0, 3)
    assert torch.equal(A @ X, expected)


def test_merged_edges_are_told() -> None:
    """Sums over neighbours count an edge of an edge list each time; weights of 1 add the repetitions up."""
    x, conv = torch.rand(3, 4), ns.nn.GINConv(torch.nn.Identity())
    with pytest.warns(UserWarning, match=r"1 of 5 edges .*pass torch\.ones\(5\) as weights for layers that add .*, or drop repeated edges"):
        merged = ns.adj_t(EDGES)
    assert not torch.allclose(conv(x, merged), conv(x, EDGES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(conv(x, ns.adj_t(EDGES, torch.ones(5))), conv(x, EDGES))
        unique = torch.unique(EDGES, dim=1)
        for format in (ns.CSR, ns.COO(2), "ELL"):
            assert ns.adj_t(unique, format=format).to_dense().sum() == 4


@pytest.mark.parametrize("format", [None, ns.CSR, ns.COO(2), ns.CSC])
def test_unweighted_edges_are_ones_of_the_default_data_type(format: Any) -> None:
    edges = torch.tensor([[0, 2, 1, 2], [1, 1, 0, 2]])
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            A = ns.adj_t(edges, size=3, format=format)
            assert A.dtype == dtype and A.to_dense().tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 1]]
    finally:
        torch.set_default_dtype(before)


def test_graphs_with_too_many_nodes_are_refused() -> None:
    with pytest.raises(ns.SizeError, match=r"GiB|does not fit"):
        ns.adj_t(torch.tensor([[0], [10**13]]))
