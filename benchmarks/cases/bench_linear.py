"""A dense matrix times a sparse one: the linear layers of pruned networks."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.nn.functional import linear

import numscorch as ns
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Case, Matrix, dense, matrix
from ..generated import blocks_of_16
from ..peers import DENSE_LAYER, SCIPY_LAYER, TRANSPOSED, of_torch
from ..selection import cases, few, fits_dense, skip_long

PREPARED = "(CSR of A.t() @ x.t()).t().contiguous()"
BATCHES = (1, 32, 256)
BLOCK_BATCHES = (32, 1, 256)
BERT = ((768, 768), (3072, 768), (768, 3072))
RESNET = ((512, 2048), (2048, 512), (1000, 2048))


@pytest.mark.parametrize(("name", "batch"), cases((), BATCHES))
def test_dense_times_csr(name: str, batch: int, threads: int, compare: Compare) -> None:
    """y[b,j] = x[b,i] * A[i,j]. numscorch caches the columns of A; torch's x @ CSR computes them in every call.

    The peers therefore include torch with a transpose that is computed before the timing.
    """
    case = matrix(name)
    columns = Matrix(name, case.tensor.t().to(ns.CSR))
    skip_long(case, batch)
    A, in_scipy, x = case.tensor, case.tensor.to_scipy(), dense(batch, case.shape[0])
    as_array = x.numpy()
    compare(
        "linear",
        lambda: x @ A,
        {name.replace("CSR", "x @ CSR"): peer for name, peer in of_torch(lambda A: x @ A, case).items()}
        | {name.replace("CSR", PREPARED): peer for name, peer in of_torch(lambda C: (C @ x.t()).t().contiguous(), columns).items()},
        beside={SCIPY_LAYER: lambda: as_array @ in_scipy, **_dense_layer(case, x, transposed=True)},
        case=case,
        threads=threads,
        form="x @ A",
        batch=batch,
    )


@pytest.mark.parametrize(("name", "batch"), cases((), BATCHES))
def test_dense_times_csr_transposed(name: str, batch: int, threads: int, compare: Compare) -> None:
    """y[b,o] = x[b,i] * W[o,i]. torch is fastest with transposed x and y; its y is made contiguous for the next layer."""
    case = matrix(name)
    skip_long(case, batch)
    W, in_torch, x = case.tensor, case.in_torch, dense(batch, case.shape[1])
    wide = case.in_torch_as(torch.int64)
    compare(
        "linear",
        lambda: x @ W.t(),
        {
            "torch F.linear(x, CSR int64)": lambda: linear(x, wide),
            "torch F.linear(x, CSR)": lambda: linear(x, in_torch),
            "torch x @ CSR.t()": lambda: x @ in_torch.t(),
            "torch (CSR @ x.t()).t().contiguous()": lambda: (in_torch @ x.t()).t().contiguous(),
        },
        beside={TRANSPOSED: lambda: (in_torch @ x.t()).t(), **_dense_layer(case, x, transposed=False)},
        case=case,
        threads=threads,
        form="x @ A.t()",
        batch=batch,
    )


def _dense_layer(case: Case, x: torch.Tensor, transposed: bool) -> dict[str, Function]:
    """The dense layer, if its weight fits in memory."""
    if not fits_dense(case):
        return {}
    weight = case.tensor.to_dense()
    weight = weight.t() if transposed else weight
    return {DENSE_LAYER: lambda: linear(x, weight)}


@pytest.mark.parametrize("batch", few(BLOCK_BATCHES, 1))
@pytest.mark.parametrize("zeros", few([50, 75, 90]))
@pytest.mark.parametrize("shape", few(BERT + RESNET, 1), ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_blocks(shape: tuple[int, int], zeros: int, batch: int, threads: int, compare: Compare) -> None:
    """y[b,o] = x[b,i] * W[o,i] with a weight whose zeros form blocks of 16 x 1, against the dense layer."""
    case, weight = _weight(shape, zeros)
    W, x = case.tensor, dense(batch, shape[1])
    compare(
        "blocks",
        lambda: x @ W.t(),
        {DENSE_LAYER: lambda: linear(x, weight)},
        case=case,
        threads=threads,
        zeros=zeros,
        batch=batch,
    )


@cache
def _weight(shape: tuple[int, int], zeros: int) -> tuple[Case, torch.Tensor]:
    weight = blocks_of_16(*shape, zeros / 100)
    return Case(f"{shape[0]}x{shape[1]}, {zeros} %", ns.from_torch(weight, ns.BCSR(16, 1))), weight
