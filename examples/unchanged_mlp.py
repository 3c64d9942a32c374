"""A pruned network for dense tensors, with two changed lines

Nine tenths of the weights of the first layer are 0 and stay 0. The classes are Gaussian clusters. The example shows that a program written
for torch trains sparse weights after two changes: the import, and the conversion of the weight. Run ``python examples/unchanged_mlp.py``,
or add ``--dense`` for the same program without numscorch; both print the same losses.
"""

from __future__ import annotations

import sys

if "--dense" in sys.argv:
    import torch
else:
    import numscorch as torch

INPUTS, HIDDEN, CLASSES, STEPS = 256, 512, 10, 200


class MLP(torch.nn.Module):
    """A pruned layer and a dense layer."""

    def __init__(self):
        super().__init__()
        kept = torch.rand(HIDDEN, INPUTS) < 0.1
        weight = torch.where(kept, torch.randn(HIDDEN, INPUTS) * 0.2, 0.0)
        if "--dense" not in sys.argv:
            weight = torch.from_torch(weight)
        self.weight = torch.nn.Parameter(weight)
        self.bias = torch.nn.Parameter(torch.zeros(HIDDEN))
        self.last = torch.nn.Linear(HIDDEN, CLASSES)
        if "--dense" in sys.argv:
            self.weight.register_hook(lambda gradient: gradient * kept)

    def forward(self, inputs):
        hidden = torch.nn.functional.linear(inputs, self.weight, self.bias)
        return self.last(torch.relu(hidden))


torch.manual_seed(0)
centres = torch.randn(CLASSES, INPUTS) * 0.3
model = MLP()
print(sum(parameter.numel() for parameter in model.parameters()), "parameters")
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for step in range(1, STEPS + 1):
    labels = torch.randint(0, CLASSES, (64,))
    inputs = centres[labels] + torch.randn(64, INPUTS)
    optimizer.zero_grad()
    scores = model(inputs)
    loss = torch.nn.functional.cross_entropy(scores, labels)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}   loss {loss.item():.3f}   accuracy {(scores.argmax(1) == labels).float().mean():.1%}")
