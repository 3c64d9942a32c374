"""Graphs of ``benchmarks.paper``, read from the folder NUMSCORCH_BENCH_DATA, or else random graphs of the same sizes.

A file ``graphs/NAME.npz`` has the arrays ``edge_index`` (2, edges), ``labels`` and ``train_idx``, and features as a CSR matrix:
``feat_indptr``, ``feat_indices``, ``feat_data`` and ``feat_shape``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch

import numscorch as ns

from ..data import FOLDER
from ..generated import power_law, uniform

FEW = 0.05  # density below which features count as sparse


@dataclass(frozen=True)
class Graph:
    """An undirected graph with node features and classes; each edge is stored in both directions."""

    name: str
    edges: torch.Tensor
    features: ns.SparseTensor
    labels: torch.Tensor
    training: torch.Tensor  # training nodes
    is_real: bool

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

    @property
    def has_few_features(self) -> bool:
        """Whether less than 5 % of the features are nonzero."""
        return self.features.nnz < FEW * self.features.shape[0] * self.features.shape[1]

    @cached_property
    def dense_features(self) -> torch.Tensor:
        """The features as a dense tensor."""
        return self.features.to_dense()

    @cached_property
    def adjacency(self) -> torch.Tensor:
        """The normalised adjacency matrix as a torch CSR tensor with int32 indices."""
        return ns.nn.graphs.gcn_norm(self.edges, num_nodes=self.features.shape[0], dtype=torch.float32).to_torch()

    @property
    def told(self) -> str:
        """The name, with a note if the graph is synthetic."""
        return self.name if self.is_real else f"{self.name} (synthetic)"


@dataclass(frozen=True)
class Statistics:
    """Sizes that a random graph shares with the real graph."""

    nodes: int
    width: int
    stored: int  # nonzero features
    edges: int
    classes: int


STATISTICS = {
    "cora": Statistics(2_708, 1_433, 49_216, 10_556, 7),
    "dblp": Statistics(17_716, 1_639, 92_192, 105_734, 4),
    "coauthor_cs": Statistics(18_333, 6_805, 1_092_079, 163_788, 15),
    "amazon_photo": Statistics(7_650, 745, 1_979_909, 238_162, 8),
    "flickr": Statistics(7_575, 12_047, 182_517, 479_476, 9),
    "tiny": Statistics(120, 40, 200, 480, 3),
}


@cache
def graph(name: str) -> Graph:
    """The graph of a name, read from its file or else drawn at random."""
    folder = os.environ.get(FOLDER)
    file = Path(folder or ".", "graphs", f"{name}.npz")
    return _read(name, file) if folder and file.is_file() else _random(name, STATISTICS[name])


def _read(name: str, file: Path) -> Graph:
    with np.load(file, allow_pickle=False) as held:
        shape = tuple(int(size) for size in held["feat_shape"])
        features = ns.from_csr(held["feat_indptr"].astype(np.int32), held["feat_indices"], held["feat_data"], shape)
        edges, labels, training = (torch.from_numpy(held[key]) for key in ("edge_index", "labels", "train_idx"))
    return Graph(name, edges, features, labels, training, True)


def _random(name: str, numbers: Statistics) -> Graph:
    """A random graph with a power law of degrees, uniformly placed features and balanced classes."""
    one_way = power_law(numbers.nodes, numbers.edges // 2).indices()
    edges = torch.cat([one_way, one_way.flip(0)], 1)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    features = uniform(numbers.nodes, numbers.width, round(numbers.stored / numbers.nodes))
    labels = torch.arange(numbers.nodes) % numbers.classes
    return Graph(name, edges, features, labels, torch.arange(20 * numbers.classes), False)
