"""Graph convolutions that predict the subjects of papers

Two layers of ``GCNConv`` predict the subject of each paper from its words and its citations. The example shows how to train a network
with a sparse adjacency matrix and sparse features, and how ``load_graph`` reads a graph with labels. Run it with a random graph or with a
file:

    python examples/gcn.py                                  # a random graph of papers
    python examples/gcn.py --data cora.npz --seeds 10       # a graph for load_graph; mean and deviation of ten runs

The training is that of Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017, section 5.2: 16
hidden features, dropout of 0.5 on the inputs of both layers, Adam with learning rate 0.01, weight decay of 5e-4 on the first layer, and at
most 200 epochs. The epoch with the smallest validation loss counts.

The twin is the same network, written with torch's CSR tensors: it starts from the same weights and drops the same features.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm
from torch import nn
from torch.nn.functional import cross_entropy, dropout, normalize

import numscorch as ns
from numscorch.files.load import Graph
from numscorch.nn import GCNConv

HIDDEN, DROPPED, RATE, DECAY = 16, 0.5, 0.01, 5e-4
CLASSES, WORDS, WORDS_EACH, CITED = 7, 500, 12, 2


def drawn(count: int) -> Graph:
    """A stochastic block model: papers mostly cite papers of the same subject and use words typical of their subject."""
    labels = torch.randint(CLASSES, (count,))
    citing = torch.arange(count).repeat_interleave(CITED)
    alike = torch.where(labels[:, None] == labels, 1.0, 0.08).fill_diagonal_(0.0)
    cited = torch.multinomial(alike, CITED).flatten()
    edges = torch.cat([torch.stack([citing, cited]), torch.stack([cited, citing])], 1).unique(dim=1)
    typical = 1 + 3 * (torch.rand(CLASSES, WORDS) < 0.08).float()
    words = torch.multinomial(typical[labels], WORDS_EACH).flatten()
    bags = torch.stack([torch.arange(count).repeat_interleave(WORDS_EACH), words])
    order = torch.randperm(count)
    first = torch.cat([order[labels[order] == label][:20] for label in range(CLASSES)])
    rest = order[~torch.isin(order, first)]
    cut = len(rest) // 3
    adj_t = ns.adj_t(edges, size=count)
    features = ns.from_coo(bags, torch.ones(bags.shape[1]), (count, WORDS), format=ns.CSR)
    return Graph(adj_t, labels, first, rest[:cut], rest[cut:], features)


def read(path: Path) -> Graph:
    """Read a graph; nodes without features get one-hot features."""
    graph = ns.load_graph(path)
    return graph if graph.features is not None else replace(graph, features=ns.eye(len(graph.labels), format=ns.CSR))


def row_normalised(features: ns.SparseTensor) -> ns.SparseTensor:
    """Features divided by the sum of absolute values of their row; empty rows stay empty."""
    return features / ns.sum(abs(features), 1, keepdim=True).clamp(min=1e-12)


class GCN(nn.Module):
    """Two graph convolutions."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.first, self.second = GCNConv(inputs, HIDDEN), GCNConv(HIDDEN, classes)

    def forward(self, features: ns.SparseTensor, adj_t: ns.SparseTensor) -> torch.Tensor:
        dropped = features.with_values(dropout(features.values, DROPPED, self.training))
        self.hidden = self.first(dropped, adj_t).relu()
        return self.second(dropout(self.hidden, DROPPED, self.training), adj_t)


class Twin(nn.Module):
    """The same network with torch tensors, initialised with the weights of a GCN."""

    def __init__(self, gcn: GCN, features: ns.SparseTensor, adj_t: ns.SparseTensor):
        super().__init__()
        self.first, self.second = (nn.Linear(layer.in_channels, layer.out_channels) for layer in (gcn.first, gcn.second))
        with torch.no_grad():
            for parameter, weight in zip(self.parameters(), weights(gcn), strict=True):
                parameter.copy_(weight)
        self.features, nodes = features.to_torch(), adj_t.shape[0]
        looped = (adj_t + ns.eye(nodes, format=ns.CSR)).to_torch()
        looped.values().clamp_(max=1)  # counts an existing self loop once
        scale = (looped @ torch.ones(nodes)).rsqrt()
        rows, columns = looped.to_sparse_coo().indices()
        self.adjacency = with_values(looped, scale[rows] * scale[columns])

    def forward(self, *_: ns.SparseTensor) -> torch.Tensor:
        first, second = self.first, self.second
        dropped = with_values(self.features, dropout(self.features.values(), DROPPED, self.training))
        hidden = (self.adjacency @ (dropped @ first.weight.T) + first.bias).relu()
        return self.adjacency @ (dropout(hidden, DROPPED, self.training) @ second.weight.T) + second.bias


def with_values(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A torch CSR matrix with the pattern of ``matrix`` and other values."""
    return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, matrix.shape)


def weights(gcn: GCN) -> list[torch.Tensor]:
    """Weights and biases of both layers, in the order of the parameters of Twin."""
    return [tensor for layer in (gcn.first, gcn.second) for tensor in (layer.lin.weight, layer.bias)]


class Training:
    """A network, its optimizer, the time of each step, and the validation loss, validation accuracy and test accuracy."""

    def __init__(self, net: nn.Module, graph: Graph, features: ns.SparseTensor):
        self.net, self.graph, self.features = net, graph, features
        groups = [{"params": net.first.parameters(), "weight_decay": DECAY}, {"params": net.second.parameters()}]
        self.optimizer = torch.optim.Adam(groups, lr=RATE)
        self.times: list[float] = []
        self.curve: list[tuple[float, float, float]] = []

    def step(self) -> None:
        self.net.train()
        self.optimizer.zero_grad()
        self.loss(self.net(self.features, self.graph.adj_t), self.graph.train_idx).backward()
        self.optimizer.step()

    def loss(self, scores: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        return cross_entropy(scores[nodes], self.graph.labels[nodes])

    @torch.no_grad()
    def scores(self) -> torch.Tensor:
        return self.net.eval()(self.features, self.graph.adj_t)

    def validate(self) -> None:
        scores, graph = self.scores(), self.graph
        right = [(scores[nodes].argmax(1) == graph.labels[nodes]).double().mean().item() for nodes in (graph.val_idx, graph.test_idx)]
        self.curve.append((self.loss(scores, graph.val_idx).item(), *right))

    @property
    def test_accuracy(self) -> float:
        """Test accuracy after the epoch with the smallest validation loss."""
        return min(self.curve)[2]


def train(runs: list[Training], epochs: int, seed: int) -> None:
    """Train networks in turn, with the same seed in each epoch, so that they drop the same features."""
    for epoch in tqdm(range(epochs), desc=f"seed {seed}", unit=" epochs"):
        for run in runs:
            torch.manual_seed(seed * epochs + epoch)
            timed(run.times, run.step)
            run.validate()


def plot(ours: Training, twin: Training, path: Path) -> None:
    """Plot the accuracy after each epoch, and the first two principal components of the normalised hidden features."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for column, name, colour in ((1, "validation", "C0"), (2, "test", "C1")):
        left.plot([row[column] for row in ours.curve], colour, label=name)
        left.plot([row[column] for row in twin.curve], f"{colour}o", fillstyle="none", markevery=10, label=f"{name}, twin")
    left.set(xlabel="epoch", ylabel="accuracy")
    left.legend()
    ours.scores()
    directions = normalize(ours.net.hidden)
    hidden = directions - directions.mean(0)
    x, y = (hidden @ torch.linalg.svd(hidden, full_matrices=False).Vh[:2].T).T
    right.scatter(x, y, s=4, c=ours.graph.labels, cmap="tab10")
    right.set(title="hidden features of each node, coloured by class", xticks=[], yticks=[])
    figure.savefig(path)


def main() -> None:
    chosen = options(__doc__, data="a graph with labelled nodes (.npz)", nodes=2000, epochs=200, seeds=1)
    torch.sparse.check_sparse_tensor_invariants.disable()  # avoids a warning; the matrices of the twin are valid
    graph = drawn(chosen.nodes) if chosen.data is None else read(chosen.data)
    features, classes = row_normalised(graph.features), int(graph.labels.max()) + 1
    print(f"adjacency {graph.adj_t}\nfeatures  {features}")
    accuracies = []
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        torch.manual_seed(seed)
        run = Training(GCN(features.shape[1], classes), graph, features)
        if seed == chosen.seed:
            ours, twin = run, Training(Twin(run.net, features, graph.adj_t), graph, features)
            agree("scores before the training", (ours.scores() - twin.scores()).abs().max().item(), 1e-5)
        train([ours, twin] if run is ours else [run], chosen.epochs, seed)
        accuracies.append(run.test_accuracy)
    apart = max((a - b).abs().max().item() for a, b in zip(weights(ours.net), twin.net.parameters(), strict=True))
    agree("weights after the training", apart, 0.01)
    table(
        ("", "GCNConv", "torch's CSR", ""),
        ("accuracy on test nodes", f"{ours.test_accuracy:.1%}", f"{twin.test_accuracy:.1%}"),
        ("an epoch of training", *times_as_fast(ours.times, twin.times)),
    )
    if chosen.seeds > 1:
        each = torch.tensor(accuracies)
        print(f"accuracy on test nodes, mean of {chosen.seeds} seeds: {each.mean():.2%}, standard deviation {each.std():.2%}")
    plot(ours, twin, chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
