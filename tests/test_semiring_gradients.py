"""Gradients of einsums whose terms are joined by a semiring: each goes to the shortest path, and is shared out between equal ones."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
import torch

import numscorch as ns

FORMATS = (None, ns.CSR, ns.CSC, ns.COO(2))
PAIRS = [pair for pair in product(FORMATS, repeat=2) if pair != (None, None)]


@pytest.fixture(autouse=True)
def unjitted(plain: pytest.MonkeyPatch) -> None:
    """Kernels run as Python here."""


class Leaf:
    """A tensor with explicit zeros and ties, stored in a format, dense for None; and the same one dense, with what is stored."""

    def __init__(self, rows: int, columns: int, format: ns.Format | None, made: torch.Generator):
        full = torch.randint(-2, 3, (rows, columns), generator=made).double()
        self.stored = torch.rand(rows, columns, generator=made) < (0.5 if format else 2)
        self.full, self.format = full.clone().requires_grad_(), format
        self.values = (full[self.stored] if format else full).clone().requires_grad_()
        listed = ns.from_coo(self.stored.nonzero().T, self.values, full.shape, ns.COO(2)) if format else self.values
        self.tensor = listed.to(format) if format else listed

    def gradients(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        theirs = self.full.grad
        return self.values.grad, theirs[self.stored] if self.format and theirs is not None else theirs


@pytest.mark.parametrize("reduce", ["min_plus", "max_plus"])
@pytest.mark.parametrize("formats", PAIRS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_against_torch(formats: tuple[ns.Format | None, ns.Format | None], reduce: str, seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    A, B = Leaf(4, 5, formats[0], made), Leaf(5, 3, formats[1], made)
    there = A.stored[:, :, None] & B.stored
    found = ns.einsum("ij,jk->ik", A.tensor, B.tensor, reduce=reduce)
    terms = torch.where(there, A.full[:, :, None] + B.full, inf if reduce == "min_plus" else -inf)
    expected = terms.amin(1) if reduce == "min_plus" else terms.amax(1)
    full = found.to_dense() if isinstance(found, ns.SparseTensor) else found
    weight = torch.randn(4, 3, generator=made, dtype=torch.float64)
    for result in (full, expected):
        torch.where(there.any(1), result * weight, 0.0).nan_to_num().sum().backward()
    for leaf in (A, B):
        ours, theirs = leaf.gradients()
        torch.testing.assert_close(ours, theirs)
