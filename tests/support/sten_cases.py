"""Formats, sparsifiers and a small layer for tests based on STen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_tensors import generator
from torch import nn

from numscorch.nn import SparseLinear
from numscorch.sparsify import block_magnitude, keep_all, magnitude, n_m, random, same_pattern, threshold, topk

FORMATS = ["CSR", "CSC", "DCSR", "DCSC", "COO(2)", "ELL(4)", "BCSR(2, 2)", "DIA", "(i, j) -> (i: dense, j: dense)"]
NARROW, BITMAP = "(i, j) -> (i: dense, j: compressed(bits=8))", "(i, j) -> (i: dense, j: bitmap)"
SPARSIFIERS: list[Any] = [
    *(keep_all(), magnitude(0.5), random(0.5, seed=0), threshold(0.1), topk(3), block_magnitude(2, 2, 0.5), n_m(2, 4)),
    same_pattern(torch.ones(4, 6).tril() > 0),
]
HALF = magnitude(0.5)
each_format = pytest.mark.parametrize("format", [*FORMATS, NARROW, BITMAP])
each_sparsifier = pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=repr)
OPTIMIZERS: dict[str, dict[str, Any]] = {"SGD": {"lr": 0.05, "momentum": 0.9}, "Adam": {"lr": 0.01}, "AdamW": {"lr": 0.01}}


W = torch.randn(4, 6, generator=generator())
X = torch.randn(3, 6, generator=generator(1))


def linear(sparsifier: Any = HALF, format: str | None = None) -> SparseLinear:
    """A sparsified linear layer."""
    dense = nn.Linear(6, 4)
    with torch.no_grad():
        dense.weight.copy_(W)
    return SparseLinear.from_dense(dense, sparsifier, format)


def steps(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, count: int) -> list[float]:
    """Take training steps and return their losses."""
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
