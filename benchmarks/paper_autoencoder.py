"""The sparse autoencoder of the paper's table 2: its sparse layer alone, and end to end beside the limit that the dense decoder sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import torch
from torch.nn import functional

import numscorch as ns
from numscorch.sparsify import block_magnitude, magnitude

from .data import dense
from .paper_runs import Run
from .paper_tables import DEEP, DEEP_BATCH, DENSE, REST, SPARSE, TABLE_2

BLOCK = (16, 1)
Layer = Callable[[torch.Tensor], torch.Tensor]
PAPER_ZEROS = (90, 95, 99)  # shares of zeros, in percent, for which the limit is a bar


def autoencoder(run: Run) -> None:
    """Every input size, weights with zeros anywhere and in blocks."""
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
    made = run.compare("autoencoder", f"{case}, model", whole.pop("ours"), whole, beside=rest, **facts)
    ratios = {own["peer"]: own["ratio"] for own in made}
    run.tell(f"  {'':44} Amdahl's limit against torch.sparse {ratios[SPARSE] / ratios[REST]:.2f}x, of which this is {ratios[REST]:.0%}")


@torch.no_grad()
def _measure_deep(run: Run, name: str, zeros: int) -> None:
    """The reference's own benchmark: four layers, pruned together by magnitude, all of them sparse."""
    torch.manual_seed(0)
    dense_layers = [torch.nn.Linear(inner, outer) for inner, outer in pairwise(DEEP[name])]
    bound = torch.cat([own.weight.abs().flatten() for own in dense_layers]).kthvalue(
        zeros * sum(own.weight.numel() for own in dense_layers) // 100
    )
    ours = [ns.nn.SparseLinear.from_dense(own, lambda weight: weight.abs() > bound.values) for own in dense_layers]
    full = [own.to_dense() for own in ours]
    in_torch = [_in_torch(own) for own in full]
    x = dense(DEEP_BATCH, DEEP[name][0]).abs()
    models: dict[str, Sequence[Layer]] = {DENSE: full, **{way: [layer[way] for layer in in_torch] for way in in_torch[0]}}
    peers = {peer: (lambda layers=layers: _through(layers, x)) for peer, layers in models.items()}
    run.compare("deep", f"{name}, {zeros} % zeros, 4 layers", lambda: _through(ours, x), peers, zeros=zeros, model=name)


def _through(layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
    """Layers with relu between them, and sigmoid after the last one."""
    for layer in layers[:-1]:
        x = torch.relu(layer(x))
    return torch.sigmoid(layers[-1](x))


def _in_torch(full: torch.nn.Linear) -> dict[str, Layer]:
    """The layer with torch's CSR weight, in the ways that torch computes it."""
    weight, bias = full.weight.detach().to_sparse_csr(), full.bias
    weight = torch.sparse_csr_tensor(
        weight.crow_indices().int(), weight.col_indices().int(), weight.values(), weight.shape, check_invariants=False
    )
    return {
        f"{SPARSE}: F.linear": lambda x: functional.linear(x, weight, bias),
        f"{SPARSE}: C @ x.t()": lambda x: (weight @ x.t()).t() + bias,
        f"{SPARSE}: addmm": lambda x: torch.addmm(bias[:, None], weight, x.t()).t(),
    }
