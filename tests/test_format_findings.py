"""What reviews found wrong in formats of parts, narrow coordinates and levels that store nothing; each is kept by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import numscorch as ns
from numscorch.ir.format import Format
from numscorch.ir.levels import Dense
from numscorch.ir.padded import Fixed
from numscorch.ir.parts import Part
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import validate

UNEVEN = ns.from_torch(torch.ones(5, 5), ns.BCSR(2, 2))
REPEATED = sp.dia_array(np.ones((3, 3)))
REPEATED.offsets, REPEATED.data = np.array([1, 1]), np.ones((2, 3))


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


def test_values_over_the_edge_of_blocks_take_no_part(plain: None) -> None:
    full = UNEVEN.with_values(torch.ones(UNEVEN.pattern.nnz))
    assert ns.einsum("ij->", full).item() == 25
    assert ns.sum(full, 1).tolist() == [5.0] * 5
    assert ns.einsum("ij,jk->", full, full).item() == 125
    assert torch.equal((full @ full.T).to_dense(), torch.full((5, 5), 5.0))


def test_runs_in_no_order_are_sorted_first(plain: None) -> None:
    fmt = Format("(i, j) -> (i: compressed(unique=False, ordered=False), j: singleton)")
    arrays = ((torch.tensor([0, 4]), torch.tensor([2, 0, 2, 1])), (torch.tensor([1, 0, 0, 2]),))
    A = ns.SparseTensor(Pattern(fmt, (3, 3), arrays), torch.tensor([1.0, 2.0, 4.0, 8.0]))
    assert ns.einsum("ij,j->i", A, torch.ones(3), format="dense").tolist() == [2.0, 8.0, 5.0]
    assert ns.einsum("ij->", A).item() == 15


def test_places_without_entries_hold_zeros(plain: None) -> None:
    A = ns.from_coo([[0, 3], [1, 3]], [1.0, 2.0], (64, 64), "(i, j) -> (i: dense, j: band(3, 3))")
    assert (A * 2).values.sum().item() == 6


@pytest.mark.parametrize(
    "text", ["j: bitmap", "j: hash", "j: compressed", "BCSR(2, 2)", "DIA", "j: causal", "i % 2: dense, j: hash", "i % 2: bitmap, j: dense"]
)
def test_the_number_of_entries_is_that_of_their_coordinates(text: str) -> None:
    """Positions that hold none, or lie over the edge, are no entries."""
    rows = "i // 2" if "%" in text else "i"
    A = ns.from_torch(torch.eye(5), text if text.isupper() else f"(i, j) -> ({rows}: dense, {text})")
    assert A.nnz == A.indices().shape[1] >= 5
    assert A.density == A.nnz / 25
    assert f"nnz={A.nnz}, density={A.density:.3g}," in repr(A)
    assert A.values.shape == (A.pattern.nnz,)
    if text in ("j: bitmap", "j: hash"):
        assert A.nnz == 5 < A.pattern.nnz


def test_the_mean_of_many_places() -> None:
    A = ns.from_coo([[0, 5], [1, 7]], torch.ones(2), (2**35, 2**35), format=ns.DCSR)
    assert ns.mean(A).item() == pytest.approx(2 / 2**70)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an extent": (lambda: Format("(i, j) -> (i: dense(2), j: compressed)"), ns.FormatError, "write dense"),
    "a large block": (lambda: Format(f"(i) -> (i // {10**30}: dense, i % {10**30}: dense)"), ns.FormatError, "blocks have at most"),
    "a wide band": (lambda: Format(f"(i, j) -> (i: dense, j: band({10**20}, 1))"), ns.FormatError, "can't make the level"),
    "a format without its order": (lambda: ns.from_torch(torch.ones(2, 2), ns.COO), ns.FormatError, "as COO(2)"),
    "repeated diagonals": (lambda: ns.from_scipy(REPEATED), ns.FormatError, "repeats the coordinate"),
    "a short diagonal": (
        lambda: validate(Pattern(Format("(i, j) -> (i: dense, j: identity)"), (3000, 2), ((), ()))),
        ns.FormatError,
        "has no coordinate for each of the 3000 above",
    ),
    "a schedule that is no text": (
        lambda: ns.einsum("ij,j->i", UNEVEN, torch.ones(5), schedule=5),
        ns.ScheduleError,
        "schedule=5: write it as text",
    ),
    "a tile too large": (
        lambda: ns.einsum("ij,jk->ik", UNEVEN, torch.ones(5, 8), schedule=f"tile(k, {10**20})"),
        ns.ScheduleError,
        "the number of coordinates per tile",
    ),
    "a number for a format": (
        lambda: Format(5),
        ns.FormatError,
        "5 is not a level: use level objects, as in Format((Dense(), Compressed()))",
    ),
    "numbers for levels": (lambda: Format([1, 2]), ns.FormatError, "1 is not a level"),
    "a fraction for a dimension": (lambda: Format("ds", (0.5, 1)), ns.FormatError, "mode_order=(0.5, 1) doesn't name dimensions"),
    "names for dimensions": (lambda: Format("ds", ["j", "i"]), ns.FormatError, "write their numbers, as mode_order=(1, 0)"),
    "a fraction of a block": (
        lambda: ns.BCSR(2.5, 2),
        ns.FormatError,
        "BCSR(2.5, 2) is not a format: its parameters are whole numbers from 1",
    ),
    "a text for a block": (lambda: ns.NM("2", 4), ns.FormatError, "NM('2', 4, 1) is not a format"),
    "a float for a block": (lambda: ns.NM(2.0, 4), ns.FormatError, "NM(2.0, 4, 1) is not a format"),
    "a fraction for an order": (lambda: ns.COO(2.5), ns.FormatError, "COO(2.5) is not a format: its parameters are whole numbers from 0"),
    "a fraction of a part": (
        lambda: Format("dsd", [Part(0, 2.5), Part(1), Part(0, 1, 2.5)]),
        ns.FormatError,
        "blocks have a whole number of coordinates",
    ),
    "a fraction of a width": (
        lambda: Format((Dense(), Fixed(2.5))),
        ns.FormatError,
        "fixed(2.5) is not a level: its width is 2.5, but parameters are whole numbers",
    ),
    "a level that is none": (lambda: ns.register_level(3), ns.FormatError, "takes a level"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    request, kind, text = REFUSED[name]
    with pytest.raises(ns.NumscorchError) as caught:
        request()
    assert type(caught.value) is kind
    assert text in str(caught.value)


def test_long_diagonals_warn() -> None:
    with pytest.warns(UserWarning, match=r"range stores \d+ values for 2 entries, because it stores whole diagonals"):
        ns.from_coo([[0, 900], [1, 3]], [1.0, 2.0], (1000, 1000), ns.DIA)


@pytest.mark.parametrize("statement", ["A[i,j] * B[i,j] + A[i,j]", "A[i,j] + A[i,j]", "relu(A[i,j]) * A[i,j]"])
@pytest.mark.parametrize(
    "fmt", ["(i, j) -> (j // 2: dense, i // 2: compressed, j % 2: dense, i % 2: dense)", ns.DIA, ns.BCSR(2, 2), ns.CSC], ids=str
)
def test_a_tensor_that_is_there_twice_is_one_operand(statement: str, fmt: ns.Format | str, plain: pytest.MonkeyPatch) -> None:
    """Its pattern is kept; two operands that look alike are united instead, which took the order of the blocks for another."""
    D = torch.arange(24.0).reshape(4, 6) * (torch.arange(24).reshape(4, 6) % 3 > 0)
    A, B = ns.from_torch(D, fmt), torch.arange(24.0).reshape(4, 6)
    given = {"A": A, "B": B} if "B" in statement else {"A": A}
    expected = {"A[i,j] * B[i,j] + A[i,j]": D * B + D, "A[i,j] + A[i,j]": 2 * D, "relu(A[i,j]) * A[i,j]": D * D}[statement]
    for wanted in (None, ns.CSR, ns.CSC, ns.DCSR, ns.COO(2), "dense"):
        found = ns.evaluate(f"C[i,j] = {statement}", format=wanted, **given)
        assert torch.equal(found.to_dense() if isinstance(found, ns.SparseTensor) else found, expected)
    assert ns.evaluate(f"C[i,j] = {statement}", **given).pattern is A.pattern
