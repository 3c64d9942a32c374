"""The sparse autoencoder of the paper's table 2: the sparse layer alone, and end to end beside Amdahl's limit for the dense decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import torch
from torch.nn import functional

import numscorch as ns
from numscorch.sparsify import block_magnitude, magnitude

from ..data import dense
from .runs import Run
from .tables import DEEP, DEEP_BATCH, DENSE, REST, SPARSE, TABLE_2

BLOCK = (16, 1)
Layer = Callable[[torch.Tensor], torch.Tensor]
PAPER_ZEROS = (90, 95, 99)  # percent of zeros at which a share of the limit is required


def autoencoder(run: Run) -> None:
    """Measure every input size, with unstructured zeros and with zeros in blocks."""
    for size in run.sizes.inputs:
        for zeros in run.sizes.zeros:
            run.attempt(_measure, size, zeros, False)
        for zeros in run.sizes.in_blocks:
            run.attempt(_measure, size, zeros, True)
    for name, zeros in product(run.sizes.deep, PAPER_ZEROS):
        run.attempt(_measure_deep, name, zeros)


@torch.no_grad()
def _measure(run: Run, size: int, zeros: int, blocks: bool) -> None:
    torch.manual_seed(0)
    latent, batch = run.sizes.latent, int(TABLE_2["batch size"])
    sparsifier = block_magnitude(*BLOCK, zeros / 100) if blocks else magnitude(zeros / 100)
    encoder = ns.nn.SparseLinear.from_dense(torch.nn.Linear(size, latent), sparsifier)
    decoder, full, x = torch.nn.Linear(latent, size), encoder.to_dense(), dense(batch, size).abs()
    layers: dict[str, Layer] = {"ours": encoder, DENSE: full, **_in_torch(full)}
    alone = {name: (lambda layer=layer: layer(x)) for name, layer in layers.items()}
    whole = {name: (lambda layer=layer: torch.sigmoid(decoder(torch.relu(layer(x))))) for name, layer in layers.items()}
    hidden = encoder(x)
    rest = {REST: lambda: torch.sigmoid(decoder(torch.relu(hidden)))}
    case = f"{size}-{latent}-{size}, {zeros} % zeros{' in blocks' * blocks}"
    facts: dict[str, Any] = {"blocks": blocks, "zeros": zeros, "size": size, "paper": zeros in PAPER_ZEROS}
    run.compare("encoder", f"{case}, layer", alone.pop("ours"), alone, **facts)
    records = run.compare("autoencoder", f"{case}, model", whole.pop("ours"), whole, beside=rest, **facts)
    ratios = {record["peer"]: record["ratio"] for record in records}
    run.tell(f"  {'':44} Amdahl's limit against torch.sparse {ratios[SPARSE] / ratios[REST]:.2f}x, of which this is {ratios[REST]:.0%}")


@torch.no_grad()
def _measure_deep(run: Run, name: str, zeros: int) -> None:
    """Measure the benchmark of the reference: four sparse layers, pruned together by magnitude."""
    torch.manual_seed(0)
    dense_layers = [torch.nn.Linear(inner, outer) for inner, outer in pairwise(DEEP[name])]
    bound = torch.cat([linear.weight.abs().flatten() for linear in dense_layers]).kthvalue(
        zeros * sum(linear.weight.numel() for linear in dense_layers) // 100
    )
    ours = [ns.nn.SparseLinear.from_dense(linear, lambda weight: weight.abs() > bound.values) for linear in dense_layers]
    full = [linear.to_dense() for linear in ours]
    in_torch = [_in_torch(linear) for linear in full]
    x = dense(DEEP_BATCH, DEEP[name][0]).abs()
    models: dict[str, Sequence[Layer]] = {DENSE: full, **{way: [layer[way] for layer in in_torch] for way in in_torch[0]}}
    peers = {peer: (lambda layers=layers: _through(layers, x)) for peer, layers in models.items()}
    run.compare("deep", f"{name}, {zeros} % zeros, 4 layers", lambda: _through(ours, x), peers, zeros=zeros, model=name)


def _through(layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
    """Apply the layers, with relu between them and sigmoid after the last one."""
    for layer in layers[:-1]:
        x = torch.relu(layer(x))
    return torch.sigmoid(layers[-1](x))


def _in_torch(full: torch.nn.Linear) -> dict[str, Layer]:
    """The layer with a torch CSR weight, for each way to compute it with torch."""
    weight, bias = full.weight.detach().to_sparse_csr(), full.bias
    weight = torch.sparse_csr_tensor(
        weight.crow_indices().int(), weight.col_indices().int(), weight.values(), weight.shape, check_invariants=False
    )
    return {
        f"{SPARSE}: F.linear": lambda x: functional.linear(x, weight, bias),
        f"{SPARSE}: C @ x.t()": lambda x: (weight @ x.t()).t() + bias,
        f"{SPARSE}: addmm": lambda x: torch.addmm(bias[:, None], weight, x.t()).t(),
    }
