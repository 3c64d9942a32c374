"""A graph network for dense tensors, with two changed lines

The network classifies the nodes of a planted partition by noisy features; averaging over neighbours reduces the noise. The example shows
that a program written for torch runs on sparse tensors after two changes: the import, and the conversion of the adjacency matrix. Run
``python examples/unchanged_gcn.py``, or add ``--dense`` for the same program without numscorch; both print the same losses.
"""

from __future__ import annotations

import sys

if "--dense" in sys.argv:
    import torch
else:
    import numscorch as torch

NODES, CLASSES, EPOCHS = 1200, 4, 60


def partition() -> tuple:
    """Normalised adjacency, features and labels of a random graph with dense connections within classes."""
    labels = torch.arange(NODES) % CLASSES
    likely = torch.where(labels[:, None] == labels, 0.03, 0.004)
    edges = (torch.rand(NODES, NODES) < likely).float()
    adjacency = torch.maximum(edges, edges.t()).fill_diagonal_(1.0)
    scale = adjacency.sum(1).rsqrt()
    features = torch.nn.functional.one_hot(labels, CLASSES) + 2.0 * torch.randn(NODES, CLASSES)
    return scale[:, None] * adjacency * scale, features, labels


class GCN(torch.nn.Module):
    """Two graph convolutions with the normalised adjacency."""

    def __init__(self, inputs: int, hidden: int, classes: int):
        super().__init__()
        self.first, self.second = torch.nn.Linear(inputs, hidden), torch.nn.Linear(hidden, classes)

    def forward(self, adjacency, features):
        hidden = torch.relu(adjacency @ self.first(features))
        return adjacency @ self.second(hidden)


torch.manual_seed(0)
adjacency, features, labels = partition()
if "--dense" not in sys.argv:
    adjacency = torch.from_torch(adjacency)
print(type(adjacency).__name__, tuple(adjacency.shape))
model = GCN(features.shape[1], 16, CLASSES)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
training = torch.arange(NODES) % 10 < 2
for epoch in range(1, EPOCHS + 1):
    optimizer.zero_grad()
    scores = model(adjacency, features)
    loss = torch.nn.functional.cross_entropy(scores[training], labels[training])
    loss.backward()
    optimizer.step()
    if epoch % 20 == 0:
        right = (scores.argmax(1) == labels)[~training].float().mean()
        print(f"epoch {epoch}   loss {loss.item():.3f}   accuracy {right:.1%}")
