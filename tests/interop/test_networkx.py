"""Weights of networkx graphs are exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns


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
