"""A program with softmax under torch.compile."""

from __future__ import annotations

import torch

import numscorch as ns


def test_a_program_with_softmax_compiles(interpreted: None) -> None:
    A, x = ns.from_torch(torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -4.0]]), ns.CSR), torch.ones(3, 2)
    program = torch.compile(lambda A, x: torch.matmul(torch.softmax(A, 1), x), backend="eager")
    torch.testing.assert_close(program(A, x), torch.matmul(torch.softmax(A, 1), x))
