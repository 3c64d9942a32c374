"""Growth of entries with sparse activations, and with an optimizer that adapts step sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import numscorch as ns
from numscorch.sparsify import RigL, SparsityPlan, repattern, sparsify_model, threshold


def test_rigl_sees_sparse_activations() -> None:
    model = nn.Sequential(ns.nn.SparseLinear(8, 16, density=0.5), nn.ReLU(), ns.nn.SparseLinear(16, 4, density=0.5))
    sparsify_model(model, SparsityPlan().activation("1", threshold(0.1), format="csr"), report=None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rigl = RigL(model, optimizer, until=100, every=1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
        rigl.step()


def test_new_entries_grow_under_rprop() -> None:
    layer = ns.nn.SparseLinear(8, 8, density=0.5)
    optimizer = torch.optim.Rprop(layer.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        (layer(torch.ones(2, 8)) - 5).square().sum().backward()
        optimizer.step()

    step()
    old: Any = layer.weight.to_dense() != 0
    repattern(layer.weight, ~old, optimizer)
    step()
    step()
    assert float(layer.weight.values.detach().abs().min()) > 5e-3
