"""Base class of graph convolutions: aggregation of messages, their direction, and the node dimension of the features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import UnsupportedError
from .aggregation import AGGREGATIONS, aggregation_names, as_dense
from .features import Features, folded, size_of, unfolded
from .graph_inputs import TO_TARGET, check_flow, directed, is_sharded, stated_size


class Convolution(torch.nn.Module):
    """Base class of graph convolutions, with the supported arguments of PyTorch Geometric's MessagePassing.

    Args:
        aggr, flow, node_dim: see the subclasses.
        supported: names of the supported aggregations.

    Raises:
        UnsupportedError: the aggregation or the direction is unknown.
    """

    def __init__(self, aggr: Any, flow: str, node_dim: int, supported: Sequence[str]):
        super().__init__()
        layer = type(self).__name__
        self.aggr, self._aggregations = aggr, aggregation_names(layer, aggr, supported)
        check_flow(layer, flow)
        self.flow, self.node_dim = flow, node_dim

    def _local(self, x: Any, graph: Any) -> tuple[Any, Any]:
        """Return features and graph; for a graph that is distributed over ranks, the features of this rank's sources and targets."""
        if not is_sharded(graph):
            return x, graph
        if not isinstance(x, torch.Tensor):
            raise UnsupportedError(f"{self} with a graph that is distributed over ranks takes the features of this rank's nodes")
        directed(graph, self.flow)  # refuses other directions
        return graph.with_halo(x)

    def _directed(self, graph: Any, sources: Features, targets: Features | None) -> Any:
        """Return the graph with its edges from sources to targets."""
        if self.flow != TO_TARGET and sources is not targets:
            raise UnsupportedError(
                f"{self} with flow={self.flow!r} and separate sources and targets: swap them, and pass edge_index.flip(0)"
            )
        return directed(graph, self.flow)

    def _size(self, sources: Features, targets: Features | None, size: Sequence[int | None] | None, graph: Any) -> tuple[int, int]:
        """Return the numbers of sources and targets."""
        rows = None if targets is None else folded(targets, self.node_dim)
        return size_of(folded(sources, self.node_dim), rows, size, stated_size(graph))

    def _aggregate(self, sources: Features, graph: Any, nodes: tuple[int, int]) -> Features:
        """Aggregate the source features at the targets; concatenate the results of several aggregations."""
        x = folded(sources, self.node_dim)
        parts = [unfolded(AGGREGATIONS[name](x, graph, nodes), sources, self.node_dim) for name in self._aggregations]
        return parts[0] if len(parts) == 1 else torch.cat(list(map(as_dense, parts)), -1)
