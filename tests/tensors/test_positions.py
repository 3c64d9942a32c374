"""Positions of values: narrow coordinates, positions outside the shape, unordered runs, positions without entries, counts."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.ir.format import Format
from numscorch.tensors.pattern import Pattern

UNEVEN = ns.from_torch(torch.ones(5, 5), ns.BCSR(2, 2))


def test_narrow_coordinates_are_widened_before_they_are_multiplied() -> None:
    A = ns.from_coo([[1000]], [1.0], (1024,), "(i) -> (i // 4: compressed(bits=8), i % 4: dense)")
    assert A.to_dense().nonzero().tolist() == [[1000]]
    B = ns.from_coo([[2**32 - 1]], [1.0], (2**32,), "(i) -> (i // 16: compressed, i % 16: compressed)")
    assert B.to("s").indices().tolist() == [[2**32 - 1]]


@pytest.mark.parametrize(
    "text",
    [
        "(i, j) -> (i: compressed(bits=8), j: band(1, 1))",
        "(i, j) -> (i: compressed(bits=8), j: causal)",
        "(i, j) -> (j - i: compressed(bits=16), i: range, j: offset)",
    ],
)
def test_pattern_levels_below_narrow_coordinates(text: str) -> None:
    A = ns.from_coo([[1, 3], [0, 3]], [1.0, 2.0], (5, 5), text)
    assert A.to_dense().nonzero().tolist() == [[1, 0], [3, 3]]


def test_values_outside_the_shape_are_ignored(interpreted: None) -> None:
    full = UNEVEN.with_values(torch.ones(UNEVEN.pattern.nnz))
    assert ns.einsum("ij->", full).item() == 25
    assert ns.sum(full, 1).tolist() == [5.0] * 5
    assert ns.einsum("ij,jk->", full, full).item() == 125
    assert torch.equal((full @ full.T).to_dense(), torch.full((5, 5), 5.0))


def test_unordered_runs_are_sorted_first(interpreted: None) -> None:
    fmt = Format("(i, j) -> (i: compressed(unique=False, ordered=False), j: singleton)")
    arrays = ((torch.tensor([0, 4]), torch.tensor([2, 0, 2, 1])), (torch.tensor([1, 0, 0, 2]),))
    A = ns.SparseTensor(Pattern(fmt, (3, 3), arrays), torch.tensor([1.0, 2.0, 4.0, 8.0]))
    assert ns.einsum("ij,j->i", A, torch.ones(3), format="dense").tolist() == [2.0, 8.0, 5.0]
    assert ns.einsum("ij->", A).item() == 15


def test_positions_without_entries_hold_zeros(interpreted: None) -> None:
    A = ns.from_coo([[0, 3], [1, 3]], [1.0, 2.0], (64, 64), "(i, j) -> (i: dense, j: band(3, 3))")
    assert (A * 2).values.sum().item() == 6


@pytest.mark.parametrize(
    "text", ["j: bitmap", "j: hash", "j: compressed", "BCSR(2, 2)", "DIA", "j: causal", "i % 2: dense, j: hash", "i % 2: bitmap, j: dense"]
)
def test_the_number_of_entries_is_that_of_their_coordinates(text: str) -> None:
    """Empty positions and positions outside the shape do not count."""
    rows = "i // 2" if "%" in text else "i"
    A = ns.from_torch(torch.eye(5), text if text.isupper() else f"(i, j) -> ({rows}: dense, {text})")
    assert A.nnz == A.indices().shape[1] >= 5
    assert A.density == A.nnz / 25
    assert f"nnz={A.nnz}, density={A.density:.3g}," in repr(A)
    assert A.values.shape == (A.pattern.nnz,)
    if text in ("j: bitmap", "j: hash"):
        assert A.nnz == 5 < A.pattern.nnz


def test_the_mean_of_a_huge_shape() -> None:
    A = ns.from_coo([[0, 5], [1, 7]], torch.ones(2), (2**35, 2**35), format=ns.DCSR)
    assert ns.mean(A).item() == pytest.approx(2 / 2**70)
