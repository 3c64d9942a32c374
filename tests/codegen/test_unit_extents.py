"""Indices of extent 1 in a dense result have no loop, so that a batch of one costs what a vector does."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.ir.format import Format

FORMATS = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.ELL, ns.BCSR(4, 2), Format("sd"), Format("dd"))


def matrix(rows: int, columns: int, fmt: Format = ns.CSR, dtype: torch.dtype = torch.float32) -> tuple[ns.SparseTensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + columns)
    dense = torch.randint(-3, 4, (rows, columns), generator=generator) * (torch.rand(rows, columns, generator=generator) < 0.3)
    dense = dense.to(dtype)
    return ns.from_torch(dense, fmt), dense


def test_a_batch_of_one_has_no_loop() -> None:
    A, _ = matrix(300, 40)
    alone = [ns.explain("ij,jk->ik", A, torch.ones(40, 1)), ns.explain("akj,ij->aki", torch.ones(1, 1, 40), A)]
    assert not any(name in explained.source for explained in alone for name in ("for a", "for k", "_size"))
    assert "k_size" in ns.explain("ij,jk->ik", A, torch.ones(40, 3)).source


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_results_with_an_extent_of_1(fmt: Format, dtype: torch.dtype, plain: pytest.MonkeyPatch) -> None:
    for rows, columns in ((12, 9), (1, 8), (8, 1), (0, 5), (5, 0)):
        A, dense = matrix(rows, columns, fmt, dtype)
        x, y = torch.arange(columns, dtype=dtype)[None], torch.arange(rows, dtype=dtype)[None]
        assert torch.equal(ns.einsum("bj,ij->bi", x, A), x @ dense.T)
        assert torch.equal(ns.einsum("ij,jk->ik", A, x.T.contiguous()), dense @ x.T)
        assert torch.equal(ns.einsum("bi,ij->bj", y, A), y @ dense)
        assert torch.equal(ns.einsum("abj,ij->aib", x[None], A), (dense @ x.T)[None])
        assert torch.equal(ns.einsum("ij,bj->bij", A, x, format="dense"), (dense * x)[None])


def test_gradients_with_a_batch_of_one(plain: pytest.MonkeyPatch) -> None:
    A, dense = matrix(12, 9)
    x, values = torch.arange(9.0)[None].requires_grad_(), A.values.clone().requires_grad_()
    (ns.einsum("bj,ij->bi", x, A.with_values(values)) * torch.arange(12.0)).sum().backward()
    assert torch.equal(x.grad, torch.arange(12.0)[None] @ dense)
    expected = torch.outer(torch.arange(12.0), torch.arange(9.0))[dense != 0]
    assert torch.equal(values.grad, expected)
