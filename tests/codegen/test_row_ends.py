"""Loops over rows of a workspace load whole registers beyond the end of a row, so that no remainder loop is needed."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.nn.functional import program

ATTENTION = program(0).replace("* c", "* 0.5")
LENGTHS = [[33, 17, 16, 0], [40], [16] * 4, [31, 15, 0, 33], [64, 0, 0, 1]]


def of_lengths(lengths: list[int], columns: int = 64) -> ns.SparseTensor:
    """A matrix whose rows have the given numbers of entries, in their last columns."""
    full = torch.zeros(len(lengths), columns)
    for row, length in enumerate(lengths):
        full[row, columns - length :] = 1.0
    return ns.from_torch(full, ns.CSR)


def heads(rows: int, columns: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {name: torch.randn(size, 4, generator=generator) for name, size in (("Q", rows), ("K", columns), ("V", columns))}


def test_there_is_no_remainder_loop() -> None:
    A = of_lengths(LENGTHS[0])
    source = ns.explain(ATTENTION, A=A, **heads(len(LENGTHS[0]))).source.split('"""')[2]
    assert "while pA2 < pA2_end - " in source and ", pA2_end - pA2)" in source
    assert "A_entries" not in source and " exp(" not in source


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_rows_of_any_length_stay_within_their_workspaces(lengths: list[int]) -> None:
    """Kernels run as Python, which checks each access."""
    A, dense = of_lengths(lengths), heads(len(lengths))
    scores = (dense["Q"] @ dense["K"].T * 0.5).masked_fill(A.to_dense() == 0, -torch.inf)
    expected = scores.softmax(1).nan_to_num() @ dense["V"]
    torch.testing.assert_close(ns.evaluate(ATTENTION, A=A, **dense), expected)


@pytest.mark.usefixtures("plain")
def test_a_pattern_that_becomes_empty_has_room_for_one_register() -> None:
    """The plan of a tensor with long rows also runs for a tensor without entries."""
    dense = heads(4)
    for lengths in (LENGTHS[0], [0, 0, 0, 0]):
        result = ns.evaluate(ATTENTION, A=of_lengths(lengths), **dense)
    assert not result.any()
