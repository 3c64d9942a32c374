"""Faults at the edge that a review found, each as a test that was red."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import numscorch as ns

EDGES = [[0, 0, 1, 2, 2, 3], [1, 3, 2, 0, 3, 1]]


@pytest.fixture
def A(plain: None) -> ns.SparseTensor:
    return ns.from_coo(EDGES, torch.arange(1.0, 7), (4, 4), format=ns.CSR)


@pytest.fixture
def D(A: ns.SparseTensor) -> torch.Tensor:
    return A.to_dense()


@pytest.mark.parametrize("weights", [[0.1, 2**40 + 1, 3], [2**40 + 1, 1, 2], [torch.tensor(0.1, dtype=torch.float64), 2**40 + 1, 0.1]])
def test_weights_of_networkx_are_not_rounded_to_float32(weights: list[Any], plain: None) -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from([(0, at + 1, weight) for at, weight in enumerate(weights)])
    assert ns.from_networkx(graph, dtype=torch.float64).values.tolist() == [float(weight) for weight in weights]


def test_whole_weights_of_networkx_are_exact(plain: None) -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from([(0, 1, 2**60 + 1), (0, 2, 2.0)])
    assert ns.from_networkx(graph, dtype=torch.int64).values.tolist() == [2**60 + 1, 2]
    graph.add_edge(1, 2, weight=0.5)
    with pytest.raises(ns.FormatError, match=r"can't hold the weight 0\.5"):
        ns.from_networkx(graph, dtype=torch.int64)


def test_a_hook_of_another_pattern_is_refused(A: ns.SparseTensor) -> None:
    A.values.requires_grad_()
    handle = A.register_hook(lambda gradient: gradient.t().to(ns.CSR))
    with pytest.raises(ns.UnsupportedError, match="pattern"):
        A.sum().backward()
    handle.remove()
    A.register_hook(lambda gradient: ns.from_coo(EDGES, 2 * gradient.values, (4, 4), format=ns.CSR))
    A.sum().backward()
    assert A.values.grad is not None
    assert A.values.grad.tolist() == [2.0] * 6
