"""Distances of broadcast tensors, and their gradients, compared with torch on dense tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")
FORMATS = {"CSR": ns.CSR, "COO": ns.COO(2), "CSC": ns.CSC, "BCSR": ns.BCSR(2, 2), "ELL": ns.ELL, "DCSR": ns.DCSR}
FULL = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]], dtype=torch.float64)
OTHERS = {
    "a row": torch.tensor([[1.0, -2.0, 0.5]]),
    "a column": torch.tensor([[1.5], [-2.0]]),
    "a vector": torch.tensor([1.0, 0.0, 3.0]),
    "a number's matrix": torch.tensor([[-2.0]]),
    "a batch": torch.arange(1.0, 13.0).reshape(2, 2, 3),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("flipped", [False, True])
def test_cosine_similarity_of_tensors_that_broadcast(name: str, dim: int, format: str, flipped: bool) -> None:
    A = ns.from_torch(FULL, FORMATS[format])
    values, full = A.values.clone().requires_grad_(), FULL.clone().requires_grad_()
    others = [OTHERS[name].double().requires_grad_() for _ in range(2)]

    def cosine(first: Any, second: torch.Tensor) -> torch.Tensor:
        return F.cosine_similarity(*((second, first) if flipped else (first, second)), dim=dim)

    result, expected = cosine(A.with_values(values), others[0]), cosine(full, others[1])
    torch.testing.assert_close(result, expected)
    weights = torch.arange(1.0, 1 + result.numel(), dtype=result.dtype).reshape(result.shape)
    (result * weights).sum().backward()
    (expected * weights).sum().backward()
    inside = A.with_values(torch.ones_like(A.values)).to_dense() != 0
    torch.testing.assert_close(A.with_values(values.grad).to_dense(), torch.where(inside, full.grad, 0))
    torch.testing.assert_close(others[0].grad, others[1].grad)


def test_two_sparse_tensors_that_broadcast() -> None:
    A, row = ns.from_torch(FULL), ns.from_torch(torch.tensor([[0.0, 2.0, 5.0]], dtype=torch.float64))
    torch.testing.assert_close(F.cosine_similarity(A, row, dim=0), F.cosine_similarity(FULL, row.to_dense(), dim=0))


@pytest.mark.parametrize(("other", "dim", "error"), [(torch.ones(3), 2, IndexError), (torch.ones(4), 1, RuntimeError)])
def test_errors_are_torchs(other: torch.Tensor, dim: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        F.cosine_similarity(FULL, other, dim=dim)
    with pytest.raises(error) as caught:
        F.cosine_similarity(ns.from_torch(FULL), other, dim=dim)
    assert isinstance(caught.value, ns.SizeError)


def test_normalize_by_the_number_of_entries_of_each_row() -> None:
    full = torch.tensor([[[0.0, 2.0], [0.0, 0.0]], [[3.0, 1.0], [5.0, 0.0]]])
    normalized = F.normalize(ns.from_torch(full, ns.CSF(3)), p=0.0, dim=-1)
    torch.testing.assert_close(normalized.to_dense(), F.normalize(full, p=0.0, dim=-1))
