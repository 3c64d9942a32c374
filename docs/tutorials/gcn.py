# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A graph network from an edge list in a CSV file
#
# At the end of this tutorial, you have a graph convolutional network (GCN) that was trained on two CSV files, evaluated,
# compared with dense matrices, applied to mini-batches and saved. You need numscorch, torch, numpy and matplotlib, and you
# should have trained a network with PyTorch before.

# %%
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import cross_entropy, dropout, linear

import numscorch as ns
from numscorch.nn.graphs import gcn_norm

# %% [markdown]
# ## Two CSV files
#
# This cell only makes data; replace it by your own files. It draws 2,000 papers of 4 subjects. A paper cites 4 others, three
# quarters of them of its own subject. Each paper has 16 features that say little about its subject, so a network
# that ignores citations makes many mistakes.

# %%
PAPERS, SUBJECTS, FEATURES, CITED = 2000, 4, 16, 4
draw = np.random.default_rng(0)
subject = draw.integers(SUBJECTS, size=PAPERS)
features = draw.normal(np.eye(SUBJECTS, FEATURES)[subject], 1.0)
folder = Path(tempfile.mkdtemp())

with open(folder / "papers.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["paper", "subject", *(f"f{i}" for i in range(FEATURES))])
    writer.writerows([p, subject[p], *features[p].round(4)] for p in range(PAPERS))

with open(folder / "citations.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["citing", "cited"])
    for paper in range(PAPERS):
        weights = np.where(subject == subject[paper], 9.0, 1.0)
        cited = draw.choice(PAPERS, CITED, replace=False, p=weights / weights.sum())
        writer.writerows([paper, other] for other in cited if other != paper)

# %% [markdown]
# ## Read them
#
# An edge list has one row for each edge: a source and a target. Graph layers take it as an integer tensor of shape
# (2, edges), with the name `edge_index`, as in PyTorch Geometric.

# %%
table = np.loadtxt(folder / "papers.csv", delimiter=",", skiprows=1)
labels = torch.from_numpy(table[:, 1]).long()
x = torch.from_numpy(table[:, 2:]).float()

citations = np.loadtxt(folder / "citations.csv", delimiter=",", skiprows=1, dtype=np.int64)
edge_index = torch.from_numpy(citations.T)
print("features", tuple(x.shape), "   edges", tuple(edge_index.shape))

# %% [markdown]
# ## Direction
#
# `adj_t` stores the edge from source to target as `A[target, source]`. Row i then lists the nodes that send to node i,
# and `A @ x` sums the features that each node receives. A transposed matrix has the same shape, so no error tells you that
# the direction is wrong. Check one edge instead.

# %%
directed = ns.adj_t(edge_index, size=len(x))
source, target = edge_index[:, 0].tolist()
print(directed)
print("A[target, source] =", directed[target, source].item())
print("A[source, target] =", directed[source, target].item())

# %% [markdown]
# With these edges, a cited paper receives from the papers that cite it, and a paper without citations receives nothing. Here a
# citation is evidence in both directions, so the network gets both. `unique` removes the repeated edges between papers that
# cite each other.

# %%
both = torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)
A = ns.adj_t(both, size=len(x))
print(A)
print("symmetric:", torch.equal(A.to_dense(), A.to_dense().T))
print(f"{A.nbytes / 1024:.0f} KiB sparse, {A.numel() * 4 / 1024:.0f} KiB dense")

# %% [markdown]
# A picture shows the structure. `A[order][:, order]` sorts rows and columns by subject, like the indices of a tensor, and
# `to_scipy` makes a matrix that matplotlib can draw. The four blocks on the diagonal are citations within a subject.

# %%
order = labels.argsort()
figure, (left, right) = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
left.spy(A[order][:, order].to_scipy(), markersize=0.2)
left.set(xticks=[], yticks=[], title="adjacency, sorted by subject")
degrees = torch.bincount(A.sum(1).int())
right.bar(range(len(degrees)), degrees.numpy())
right.set(xlabel="neighbours of a paper", ylabel="papers")
plt.show()

# %% [markdown]
# ## The network
#
# `GCNConv` multiplies the features by a weight and averages them over neighbours. It adds a self loop to each node and
# normalises the matrix itself, so `A` stays as it was read. Two layers see neighbours of neighbours.


# %%
class GCN(torch.nn.Module):
    """Two graph convolutions."""

    def __init__(self, hidden: int = 32, normalize: bool = True):
        super().__init__()
        self.first = ns.nn.GCNConv(FEATURES, hidden, normalize=normalize)
        self.second = ns.nn.GCNConv(hidden, SUBJECTS, normalize=normalize)

    def forward(self, x: torch.Tensor, adj_t: ns.SparseTensor) -> torch.Tensor:
        hidden = self.first(dropout(x, 0.3, self.training), adj_t).relu()
        return self.second(dropout(hidden, 0.3, self.training), adj_t)


# %% [markdown]
# ## Training
#
# The loop is the usual one of PyTorch. All nodes take part in each step, but only 80 of them have a label that the loss
# reads. The other nodes test the network.

# %%
torch.manual_seed(0)
shuffled = torch.randperm(len(x))
train_nodes, test_nodes = shuffled[:80], shuffled[80:]


def accuracy(model: torch.nn.Module, adj_t: ns.SparseTensor) -> float:
    """The share of test nodes that the model labels correctly."""
    model.eval()
    with torch.no_grad():
        right = model(x, adj_t).argmax(1) == labels
    return right[test_nodes].float().mean().item()


# %%
def train(adj_t: ns.SparseTensor, epochs: int = 100) -> tuple[GCN, list[float]]:
    """A model trained on a graph, and its accuracy after each epoch."""
    torch.manual_seed(0)
    model, history = GCN(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-3)
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        cross_entropy(model(x, adj_t)[train_nodes], labels[train_nodes]).backward()
        optimizer.step()
        history.append(accuracy(model, adj_t))
    return model, history


# %% [markdown]
# Does the graph help? On a graph without edges, each node has its self loop only, and the same network is an ordinary
# multilayer perceptron. The difference between the two curves is the contribution of the citations.

# %%
no_edges = ns.adj_t(torch.empty(2, 0, dtype=torch.long), size=len(x))
model, with_edges = train(A)
_, without_edges = train(no_edges)
print(f"test accuracy: {with_edges[-1]:.1%} with citations, {without_edges[-1]:.1%} without")

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(with_edges, label="with citations")
axes.plot(without_edges, label="without")
axes.set(xlabel="epoch", ylabel="test accuracy")
axes.legend()
plt.show()

# %% [markdown]
# ## Comparison with dense matrices
#
# A GCN is short enough to write with dense matrices. The normalised matrix is `(A + I)[i, j] / sqrt(d[i] * d[j])`, where `d`
# are the row sums of `A + I`. Outputs and gradients must agree up to rounding. Only this comparison needs the dense
# matrix; layers never make one.

# %%
dense = A.to_dense() + torch.eye(len(x))
degree = dense.sum(1)
dense = dense / (degree[:, None] * degree).sqrt()


def dense_gcn(x: torch.Tensor) -> torch.Tensor:
    """The same network with dense products."""
    hidden = linear(dense @ x, model.first.lin.weight, model.first.bias).relu()
    return linear(dense @ hidden, model.second.lin.weight, model.second.bias)


# %%
parameters = list(model.parameters())
ours, theirs = model(x, A), dense_gcn(x)
our_gradients = torch.autograd.grad(cross_entropy(ours, labels), parameters)
their_gradients = torch.autograd.grad(cross_entropy(theirs, labels), parameters)
pairs = zip(our_gradients, their_gradients, strict=True)
print("equal outputs:", torch.allclose(ours, theirs, atol=1e-5))
print("equal gradients:", all(torch.allclose(a, b, atol=1e-6) for a, b in pairs))

# %% [markdown]
# ## Mini-batches
#
# On a large graph, a step for all nodes takes too much memory. The output of a node depends only on the nodes within two steps,
# so a batch needs this neighbourhood. Normalise the whole matrix first: a node at the border of the neighbourhood has
# fewer edges there, and degrees counted in the batch would be wrong. The layers of the batch therefore have
# `normalize=False`.

# %%
normalised = gcn_norm(A)
batched = GCN(normalize=False).eval()
batched.load_state_dict(model.state_dict())


def neighbourhood(nodes: torch.Tensor, steps: int = 2) -> torch.Tensor:
    """The nodes within some steps, in order; each node is a neighbour of itself."""
    for _ in range(steps):
        nodes = normalised[nodes].indices()[1].unique()
    return nodes


# %%
targets = test_nodes[:4].sort().values
nodes = neighbourhood(targets)
part = normalised[nodes][:, nodes]
out = batched(x[nodes], part)[torch.searchsorted(nodes, targets)]
print(part)
print("equal to the full graph:", torch.allclose(out, ours[targets], atol=1e-5))

# %% [markdown]
# ## Save and load
#
# The weights are dense, so `torch.save` keeps them. `ns.save` writes the graph in compressed form. A new model with both
# files gives the same outputs, bit for bit.

# %%
torch.save(model.state_dict(), folder / "gcn.pt")
ns.save(A, folder / "graph.npz")

again = GCN().eval()
again.load_state_dict(torch.load(folder / "gcn.pt"))
print("equal outputs:", torch.equal(again(x, ns.load(folder / "graph.npz")), ours))

# %% [markdown]
# ## What you learned
#
# * `ns.adj_t(edge_index)` makes the matrix `A[target, source]` that graph layers take. Check one edge to be sure of the
#   direction.
# * Graph layers are modules of PyTorch: optimizers, `state_dict` and `torch.save` work as usual.
# * The sparse matrix takes memory for its edges only, and the outputs and gradients are those of dense matrices.
# * Rows and columns of the matrix are indexed like a tensor, and a mini-batch is such an index.
#
# ## Next
#
# * [Graphs](../guide/graphs.md): self loops, repeated edges, bipartite graphs, batches with a `DataLoader`, other libraries.
# * [Modules](../guide/modules.md): `SAGEConv`, `GATConv`, `GINConv` and the other layers.
# * [Formats](../concepts/formats.md): how `CSR` and other formats store entries.
# * [Graph analytics with semirings](semirings.py): paths, components and triangles of a graph.
