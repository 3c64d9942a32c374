"""Linear layers with n:m sparsity, shared by 16 outputs or in groups (n:m:g), against the dense layer."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.nn.functional import linear

import numscorch as ns
from numscorch.sparsify import n_m, n_m_g, sparsify

from ..conftest import Compare
from ..data import Case, dense
from ..peers import DENSE_LAYER, OUR_CSR
from ..selection import few

BERT = ((768, 768), (3072, 768), (768, 3072))
BATCHES, LONG = (24, 512), 4096  # numbers of tokens; ``LONG`` is measured for one shape only
TOKENS = [(shape, batch) for shape in BERT for batch in BATCHES] + [(BERT[0], LONG)]
GROUPS = 16  # columns of each pattern in a chunk of n:m:g
NM16 = ((2, 4), (1, 4), (1, 10))
NMG = ((2, 4), (3, 6), (1, 4), (1, 8), (1, 10))
sized = pytest.mark.parametrize(
    ("shape", "batch"),
    few(TOKENS, 1),
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)


@sized
@pytest.mark.parametrize(("n", "m"), few(NM16))
def test_n_m_of_16_outputs(n: int, m: int, shape: tuple[int, int], batch: int, threads: int, compare: Compare) -> None:
    """y[b,o] = x[b,i] * W[o,i]; 16 neighbouring outputs read the same n of every m inputs."""
    _layer("n:m, 16 rows", n_m(n, m, rows=16), n, m, shape, batch, threads, compare)


@sized
@pytest.mark.parametrize(("n", "m"), few(NMG, 1))
def test_n_m_g(n: int, m: int, shape: tuple[int, int], batch: int, threads: int, compare: Compare) -> None:
    """y[b,o] = x[b,i] * W[o,i]; n of every m outputs read each input, and inputs with the same pattern are grouped."""
    _layer("n:m:g", n_m_g(n, m, GROUPS), n, m, shape, batch, threads, compare)


def _layer(kernel: str, keep: object, n: int, m: int, shape: tuple[int, int], batch: int, threads: int, compare: Compare) -> None:
    """Compare the layer with a dense layer of the same weights, and report our CSR layer too."""
    case, full, in_csr = _weight(keep, shape)
    W, x = case.tensor, dense(batch, shape[1])
    compare(
        kernel,
        lambda: x @ W.t(),
        {DENSE_LAYER: lambda: linear(x, full)},
        beside={OUR_CSR: lambda: x @ in_csr.t()},
        case=case,
        threads=threads,
        n=n,
        m=m,
        zeros=round(100 * (1 - n / m)),
        batch=batch,
    )


@cache
def _weight(keep: object, shape: tuple[int, int]) -> tuple[Case, torch.Tensor, ns.SparseTensor]:
    weight = sparsify(dense(*shape, seed=1), keep)  # type: ignore[arg-type]  # a sparsifier
    return Case(f"{shape[0]}x{shape[1]}, {keep!r}", weight), weight.to_dense(), weight.to(ns.CSR)
