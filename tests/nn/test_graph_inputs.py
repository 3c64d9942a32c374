"""Graphs read as matrices: distinct edges with their counts, added self loops, and the positions of edge weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.nn.graph_inputs import ADD_MISSING_LOOPS, KEEP_LOOPS, REPLACE_LOOPS, place_edges, place_loops, read_graph
from numscorch.nn.graphs import gcn_norm
from numscorch.schedule import tuning
from numscorch.tensors.packing import counted_entries
from numscorch.tensors.validate import validate

CASES = [(1, 1, 0), (1, 1, 4), (5, 5, 0), (6, 6, 9), (40, 40, 300), (30, 7, 90), (7, 30, 90), (50, 50, 20)]


def edges_of(rows: int, columns: int, count: int, dtype: type = np.int64) -> np.ndarray:
    """Random sources and targets, some of them repeated."""
    generator = np.random.default_rng(rows * 1000 + count)
    return np.stack([generator.integers(0, columns, count), generator.integers(0, rows, count)]).astype(dtype)


def dense_of(edges: np.ndarray, weights: np.ndarray, shape: tuple[int, int]) -> torch.Tensor:
    dense = np.zeros(shape)
    np.add.at(dense, (edges[1], edges[0]), weights)
    return torch.from_numpy(dense)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("replaces_loops", [False, True])
@pytest.mark.parametrize(("rows", "columns", "count"), CASES)
def test_distinct_edges_are_counted(rows: int, columns: int, count: int, replaces_loops: bool, dtype: type) -> None:
    edges = edges_of(rows, columns, count, dtype)
    counted = counted_entries(edges[::-1], (rows, columns), diagonal=replaces_loops)
    assert (counted is None) == (rows >= tuning.COUNTED_COORDINATES * count)
    if counted is None:
        return
    pattern, counts = counted
    validate(pattern)
    expected = dense_of(edges, np.ones(count), (rows, columns))
    if replaces_loops:
        expected.fill_diagonal_(1.0)
    assert torch.equal(ns.SparseTensor(pattern, counts.double()).to_dense(), expected)
    assert pattern.nnz == int((expected != 0).sum())


def test_numbers_of_edges_of_large_graphs_do_not_overflow() -> None:
    edges = np.array([[2**31 - 2, 5], [2**31 - 2, 2**31 - 2]], np.int32)
    wide = ns.adj_t(torch.from_numpy(edges), size=2**31 - 1, format="DCSR")
    assert wide.indices().tolist() == [[2**31 - 2, 2**31 - 2], [5, 2**31 - 2]]
    pattern, _ = counted_entries(np.array([[3, 3, 3], [2**30, 5, 2**30]], np.int32), (4, 2**31 - 1)) or pytest.fail("not counted")
    assert [array.tolist() for array in pattern.arrays[1]] == [[0, 0, 0, 0, 2], [5, 2**30]]


@pytest.mark.parametrize("loops", [KEEP_LOOPS, ADD_MISSING_LOOPS, REPLACE_LOOPS])
@pytest.mark.parametrize(("rows", "columns", "count"), CASES)
def test_weights_are_placed_and_summed(rows: int, columns: int, count: int, loops: str) -> None:
    edges, weights = edges_of(rows, columns, count), np.random.default_rng(0).random(count)
    placement = place_edges(torch.from_numpy(edges).flip(0), (rows, columns), loops)
    validate(placement.pattern)
    is_loop = edges[0] == edges[1]
    kept = np.ones(count, bool) if loops == KEEP_LOOPS else ~is_loop
    expected = dense_of(edges[:, kept], weights[kept], (rows, columns))
    if loops != KEEP_LOOPS:
        expected.fill_diagonal_(3.0)
    if loops == ADD_MISSING_LOOPS:
        for at in np.flatnonzero(is_loop):
            expected[edges[0, at], edges[0, at]] = weights[at]  # the last loop counts
    torch.testing.assert_close(placement.matrix(torch.from_numpy(weights), 3.0).to_dense(), expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("loops", [ADD_MISSING_LOOPS, REPLACE_LOOPS])
@pytest.mark.parametrize(("rows", "columns", "count"), CASES)
def test_loops_of_a_matrix_are_placed_as_those_of_its_edges(rows: int, columns: int, count: int, loops: str, dtype: str) -> None:
    edges = np.unique(edges_of(rows, columns, count), axis=1)
    A = ns.from_coo(torch.from_numpy(edges[::-1].copy()), torch.arange(edges.shape[1]) - 3.0, (rows, columns), "CSR")
    pos, crd = (array.to(getattr(torch, dtype)) for array in A.pattern.arrays[1])
    A = ns.from_csr(pos, crd, A.values, (rows, columns))
    placed, sorted_again = place_loops(A.pattern, loops), place_edges(A.indices(), (rows, columns), loops)
    validate(placed.pattern)
    assert placed.pattern.stores_as(sorted_again.pattern)
    assert placed.pattern.index_dtype == sorted_again.pattern.index_dtype
    assert torch.equal(placed.matrix(A.values, 2.5).values, sorted_again.matrix(A.values, 2.5).values)


@pytest.mark.parametrize("format", ["CSR", "CSC", "COO(2)", "DCSR", "DCSC"])
def test_gradients_of_normalised_matrices_flow_to_the_weights(format: str) -> None:
    edges = np.unique(edges_of(6, 6, 12), axis=1)[::-1].copy()
    weights = torch.rand(edges.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5

    def normalised(values: torch.Tensor) -> torch.Tensor:
        return gcn_norm(ns.from_coo(edges, values, (6, 6), format)).to_dense()

    def by_torch(values: torch.Tensor) -> torch.Tensor:
        A = torch.zeros(6, 6, dtype=torch.float64).index_put((torch.from_numpy(edges[0]), torch.from_numpy(edges[1])), values)
        A = A + torch.diag((A.diagonal() == 0).double())
        roots = A.sum(1).rsqrt()
        return roots[:, None] * A * roots

    upstream = torch.rand(6, 6, dtype=torch.float64)
    results = []
    for function in (normalised, by_torch):
        leaf = weights.clone().requires_grad_()
        result = function(leaf)
        results.append((result.detach(), *torch.autograd.grad((result * upstream).sum(), leaf)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "format", ["CSR", "CSC", "COO(2)", "DCSR", "DCSC", "(i, j) -> (i: dense, j: bitmap)", "(i, j) -> (i: dense, j: hash)"]
)
@pytest.mark.parametrize("loops", [KEEP_LOOPS, ADD_MISSING_LOOPS, REPLACE_LOOPS])
def test_every_format_has_the_edges_of_csr(format: str, loops: str) -> None:
    edges = np.unique(edges_of(9, 9, 30), axis=1)[::-1].copy()
    A = ns.from_coo(edges, torch.arange(edges.shape[1]) - 3.0, (9, 9))  # one stored 0
    graph, expected = (read_graph(A.to(form), None, None) for form in (format, "CSR"))
    assert torch.equal(graph.counted(torch.float64, loops).to_dense(), expected.counted(torch.float64, loops).to_dense())
    assert torch.equal(graph.matrix(None, loops, 2.0).to_dense(), expected.matrix(None, loops, 2.0).to_dense())
    assert graph.counted(None, loops).pattern.stores_as(expected.counted(None, loops).pattern)
