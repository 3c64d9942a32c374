"""A program with softmax under torch.compile."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.tensors import ledgers

D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -4.0]])


@pytest.fixture(autouse=True)
def unjitted(plain: pytest.MonkeyPatch) -> None:
    """Kernels run as Python here, and nothing was warned of."""
    plain.setattr(ledgers, "_warned", set())


def sparse(full: torch.Tensor = D) -> ns.SparseTensor:
    return ns.from_torch(full, ns.CSR)


def test_a_program_with_softmax_compiles() -> None:
    A, x = sparse(), torch.ones(3, 2)
    program = torch.compile(lambda A, x: torch.matmul(torch.softmax(A, 1), x), backend="eager")
    torch.testing.assert_close(program(A, x), torch.matmul(torch.softmax(A, 1), x))
