"""Graph networks of the paper's table 1: inference and training epochs against torch and PyTorch Geometric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch.nn import functional

import numscorch as ns
from numscorch.measuring.turns import Function

from .graphs import Graph, graph
from .runs import Run
from .tables import CSR_FEATURES, DENSE_FEATURES, PYG, PYG_CACHED, SPARSE, TABLE_1

# torch draws dropout masks serially, at the same cost for every model. This bounds the ratios of small models.
DROPOUTS: tuple[float, ...] = (TABLE_1["dropout rate"], 0.0)
STEPS = 2  # training steps with compared losses; the second loss depends on the gradients
Layer = Callable[[int, int], torch.nn.Module]


class Network(torch.nn.Module):
    """Two layers with an activation and optional dropout between them."""

    def __init__(self, first: torch.nn.Module, second: torch.nn.Module, activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu):
        super().__init__()
        self.first: Any = first
        self.second: Any = second
        self.activation = activation
        self.dropout = torch.nn.Dropout(0.0)

    def forward(self, x: Any, edges: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.dropout(self.activation(self.first(x, edges))), edges)
        return result


class InTorch(torch.nn.Module):
    """A GCN in plain torch: one matrix product for the weights and one for the neighbours."""

    def __init__(self, network: Network):
        super().__init__()
        first, second = network.first, network.second
        weights = [layer.lin.weight.detach().t().contiguous() for layer in (first, second)]
        self.weights = torch.nn.ParameterList(weights)
        self.biases = torch.nn.ParameterList([layer.bias.detach().clone() for layer in (first, second)])
        self.dropout = torch.nn.Dropout(0.0)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(adjacency @ (x @ self.weights[0]) + self.biases[0])
        result: torch.Tensor = adjacency @ (self.dropout(hidden) @ self.weights[1]) + self.biases[1]
        return result


def gcn(run: Run) -> None:
    """Measure inference with dense features, and with CSR features against peers with either."""
    for name in run.sizes.graphs:
        for hidden in run.sizes.hidden:
            run.attempt(_infer, name, hidden)


@torch.no_grad()
def _infer(run: Run, name: str, hidden: int) -> None:
    G = graph(name)
    sizes = G.features.shape[1], hidden, G.classes
    ours = _network(ns.nn.GCNConv, sizes).eval()
    in_torch = InTorch(ours).eval()
    peers: dict[str, Function] = {}
    for peer, cached in ((PYG, False), (PYG_CACHED, True)):
        theirs = _network(partial(_pyg().GCNConv, cached=cached), sizes).eval()
        theirs.load_state_dict(ours.state_dict())
        peers[peer] = partial(theirs, G.dense_features, G.edges)
    peers[DENSE_FEATURES] = lambda: in_torch(G.dense_features, G.adjacency)
    stored = G.features.to_torch()
    in_csr = {CSR_FEATURES: lambda: in_torch(stored, G.adjacency)}
    facts: dict[str, Any] = {"graph": G.name, "hidden": hidden, "few": G.has_few_features}
    case = f"{G.told}, hidden {hidden}"
    run.compare("gcn", f"{case}{OF_DENSE}", lambda: ours(G.dense_features, G.edges), peers, layout="dense", **facts)
    run.compare("gcn", case, lambda: ours(G.features, G.edges), in_csr | peers, layout="CSR", **facts)


def _network(layer: Layer, sizes: tuple[int, int, int]) -> Network:
    torch.manual_seed(0)
    return Network(layer(sizes[0], sizes[1]), layer(sizes[1], sizes[2]))


def training(run: Run) -> None:
    """Measure training epochs of GCN, SAGE with max aggregation, and GAT, as in their papers."""
    for name in run.sizes.trained:
        for model in MODELS:
            for dropout in DROPOUTS:
                run.attempt(_train, name, model, dropout)


def gcn_of(library: Any, G: Graph, **options: Any) -> Network:
    """Two graph convolutions of a library, with the channels of the paper's table 1; ``options`` are passed to both."""
    return _network(partial(library.GCNConv, **options), (G.features.shape[1], TABLE_1["hidden channels"], G.classes))


def _sage(library: Any, G: Graph) -> Network:
    sizes = (G.features.shape[1], TABLE_1["hidden channels"], G.classes)
    return _network(lambda i, o: library.SAGEConv(i, o, aggr="max"), sizes)


def _gat(library: Any, G: Graph) -> Network:
    torch.manual_seed(0)
    first, second = library.GATConv(G.features.shape[1], 8, heads=8), library.GATConv(64, G.classes, heads=1)
    return Network(first, second, functional.elu)


OF_DENSE = " of dense features"
NETWORKS: Mapping[str, Callable[[Any, Graph], Network]] = {"GCN": gcn_of, "SAGE-max": _sage, "GAT": _gat}
MODELS = {**{f"{name}{OF_DENSE}": make for name, make in NETWORKS.items()}, **NETWORKS}


def _train(run: Run, name: str, model: str, dropout: float) -> None:
    G, make = graph(name), MODELS[model]
    ours, theirs = make(ns.nn, G), make(_pyg(), G)
    theirs.load_state_dict(ours.state_dict())
    features = G.dense_features if model.endswith(OF_DENSE) else G.features  # CSR, as in the data set
    trained: dict[str, tuple[torch.nn.Module, tuple[Any, ...]]] = {PYG: (theirs, (G.dense_features, G.edges))}
    if make is gcn_of:
        trained[f"{SPARSE}: dense features"] = (InTorch(ours), (G.dense_features, G.adjacency))
    if model == "GCN":
        trained[f"{SPARSE}: CSR features"] = (InTorch(ours), (G.features.to_torch(), G.adjacency))
    our_run = (ours, (features, G.edges))
    checked = {name: _losses(G, *pair) for name, pair in {"ours": our_run, **trained}.items()}
    peers = {name: epoch_of(G, *pair, dropout) for name, pair in trained.items()}
    case = f"{model}, {G.told}{f', dropout {dropout}' * bool(dropout)}"
    run.compare("training", case, epoch_of(G, *our_run, dropout), peers, checked=checked, model=model, graph=G.name, dropout=bool(dropout))


def _losses(G: Graph, model: torch.nn.Module, inputs: tuple[Any, ...]) -> Function:
    """Function that returns the losses of the first training steps of a copy of the model, without dropout."""

    def run() -> torch.Tensor:
        step = epoch_of(G, deepcopy(model), inputs, 0.0)
        return torch.stack([step() for _ in range(STEPS)])

    return run


def epoch_of(G: Graph, model: torch.nn.Module, inputs: tuple[Any, ...], dropout: float = 0.0) -> Callable[[], torch.Tensor]:
    """Function for one full-batch training step with Adam; returns the loss before the update."""
    model.dropout = torch.nn.Dropout(dropout)
    labels = G.labels[G.training]
    optimizer = torch.optim.Adam(model.parameters(), lr=TABLE_1["learning rate"], weight_decay=TABLE_1["weight decay"])

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(*inputs)[G.training], labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _pyg() -> Any:
    """The module torch_geometric.nn; importing it takes seconds."""
    import torch_geometric.nn

    return torch_geometric.nn
