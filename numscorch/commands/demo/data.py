"""The graph of the demo: scikit-learn's digits, or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

import numscorch as ns

from ...errors import NumscorchError
from ...files.load import load_graph
from ...tensors.sparse_tensor import SparseTensor

NEIGHBOURS, TRAIN_PER_CLASS, VALIDATE_PER_CLASS = 10, 20, 30  # numbers of nodes


@dataclass(frozen=True, eq=False)
class Task:
    """A node classification task: a graph ``adj_t[target, source]``, node features (CSR or dense), labels, and the split."""

    name: str
    origin: str
    adj_t: SparseTensor
    features: SparseTensor | torch.Tensor
    labels: torch.Tensor
    train: torch.Tensor
    validation: torch.Tensor
    test: torch.Tensor

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.labels.max()) + 1


def digits() -> Task:
    """scikit-learn's digits: 1,797 images of 8 x 8 pixels, each connected to its ten nearest neighbours.

    Raises:
        NumscorchError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.neighbors import kneighbors_graph
    except ImportError as error:
        raise NumscorchError("the digits need scikit-learn: pip install 'numscorch[examples]', or pass a graph or --matrix") from error
    data = load_digits()
    nearest = torch.tensor(kneighbors_graph(data.data, NEIGHBOURS).nonzero())
    labels = torch.from_numpy(data.target).long()
    adj_t = ns.adj_t(torch.cat([nearest, nearest.flip(0)], 1).unique(dim=1), size=len(labels))
    origin = "no file was given: handwritten digits, each connected to its ten nearest neighbours"
    return Task("digits", origin, adj_t, torch.from_numpy(data.data / 16).float(), labels, *split(labels))


def split(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random split into training nodes (20 per class), validation nodes (30 per class) and test nodes (all others)."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    members = [order[labels[order] == label] for label in labels.unique()]
    ends = TRAIN_PER_CLASS, TRAIN_PER_CLASS + VALIDATE_PER_CLASS
    train, validation, test = zip(*[(m[: ends[0]], m[ends[0] : ends[1]], m[ends[1] :]) for m in members], strict=True)
    return torch.cat(train), torch.cat(validation), torch.cat(test)


def from_file(path: Path) -> Task:
    """The task of a graph file. Each node's features are scaled to sum 1; without features, each node gets a one-hot feature."""
    graph = load_graph(path)
    if graph.features is None:
        features, origin = ns.eye(len(graph.labels), format=ns.CSR), f"{path}; it has no features, so nodes have one-hot features"
    else:
        sums = ns.sum(abs(graph.features), 1, keepdim=True).clamp(min=1e-12)
        features, origin = graph.features / sums, str(path)
    return Task(path.stem, origin, graph.adj_t, features, graph.labels, graph.train_idx, graph.val_idx, graph.test_idx)
