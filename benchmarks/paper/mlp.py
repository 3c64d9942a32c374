"""Training step of a 784-1024-10 network with 90 % sparse weights, against masked dense weights and torch sparse weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise

import torch

import numscorch as ns
from numscorch.measuring.turns import Function

from ..cases.bench_training import SIZES, Masked, network, step_of
from .runs import Run
from .tables import MASKED, SPARSE

ZEROS = 90  # percent
STEPS = 3  # training steps with compared losses
Put = Callable[[torch.Tensor], torch.Tensor]


class InTorch(torch.nn.Module):
    """A layer that trains the stored values and builds a torch sparse tensor from them at each call."""

    def __init__(self, layer: ns.nn.SparseLinear, make: Callable[[torch.Tensor], Put]):
        super().__init__()
        full = layer.to_dense()
        stored = full.weight.detach().to_sparse_csr()
        self.weight = torch.nn.Parameter(stored.values().clone())
        self.bias, self.put = full.bias, make(stored)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return (self.put(self.weight) @ input.t()).t() + self.bias


def in_csr(stored: torch.Tensor) -> Put:
    """Function that builds a CSR tensor from values, with the pattern of ``stored``."""
    pos, crd = stored.crow_indices(), stored.col_indices()
    return lambda values: torch.sparse_csr_tensor(pos, crd, values, stored.shape, check_invariants=False)


def in_coo(stored: torch.Tensor) -> Put:
    """Function that builds a COO tensor from values, with the pattern of ``stored``."""
    places = stored.to_sparse_coo().indices()
    return lambda values: torch.sparse_coo_tensor(places, values, stored.shape, is_coalesced=True, check_invariants=False)


def mlp(run: Run) -> None:
    """Measure training steps with Adam on batches of 64."""
    run.attempt(_measure)


def _measure(run: Run) -> None:
    torch.manual_seed(0)
    layers = [ns.nn.SparseLinear(inner, outer, density=1 - ZEROS / 100) for inner, outer in pairwise(SIZES)]
    models = {
        "ours": network(layers),
        MASKED: network([Masked(layer) for layer in layers]),
        f"{SPARSE}: CSR": network([InTorch(layer, in_csr) for layer in layers]),
        f"{SPARSE}: COO": network([InTorch(layer, in_coo) for layer in layers]),
    }
    checked = {name: _losses(model) for name, model in models.items()}
    steps = {name: step_of(model) for name, model in models.items()}
    run.compare("mlp", f"{'-'.join(map(str, SIZES))}, {ZEROS} % zeros", steps.pop("ours"), steps, checked=checked)


def _losses(model: torch.nn.Module) -> Function:
    def run() -> torch.Tensor:
        step = step_of(deepcopy(model))
        return torch.stack([step() for _ in range(STEPS)])

    return run
