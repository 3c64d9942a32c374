"""Formats, levels and schedules that are refused, and one that warns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import numscorch as ns
from numscorch.ir.format import Format
from numscorch.ir.level import Level
from numscorch.ir.levels import Dense
from numscorch.ir.padded import Fixed
from numscorch.ir.parts import Part
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import validate

UNEVEN = ns.from_torch(torch.ones(5, 5), ns.BCSR(2, 2))
REPEATED = sp.dia_array(np.ones((3, 3)))
REPEATED.offsets, REPEATED.data = np.array([1, 1]), np.ones((2, 3))
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an extent": (lambda: Format("(i, j) -> (i: dense(2), j: compressed)"), ns.FormatError, "write dense"),
    "a large block": (lambda: Format(f"(i) -> (i // {10**30}: dense, i % {10**30}: dense)"), ns.FormatError, "blocks have at most"),
    "a wide band": (lambda: Format(f"(i, j) -> (i: dense, j: band({10**20}, 1))"), ns.FormatError, "can't make the level"),
    "a format without its order": (lambda: ns.from_torch(torch.ones(2, 2), ns.COO), ns.FormatError, "as in COO(2)"),
    "the word dense": (lambda: ns.zeros(2, 3, format="dense"), ns.FormatError, "or as in 'dd'; valid formats are CSR"),
    "a permutation that repeats a dimension": (lambda: ns.CSR.permuted((0, 0)), ns.RangeError, "name each of them once, counted from 0"),
    "a permutation that lacks a dimension": (lambda: ns.CSR.permuted((0,)), ns.RangeError, "CSR.permuted((0,)) of 2 dimensions"),
    "sizes of another order": (lambda: ns.CSR.sizes((3,)), ns.FormatError, "CSR.sizes((3,)): the format has 2 dimensions"),
    "repeated diagonals": (lambda: ns.from_scipy(REPEATED), ns.FormatError, "repeats the coordinate"),
    "a short diagonal": (
        lambda: validate(Pattern(Format("(i, j) -> (i: dense, j: identity)"), (3000, 2), ((), ()))),
        ns.FormatError,
        "has fewer coordinates than the level above, 3000",
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


def test_a_level_without_its_methods_is_refused() -> None:
    class Nothing(Level):
        spelling = "nothing"

    with pytest.raises(ns.FormatError, match="NotImplementedError: Nothing has no method pack: a class derived from Level must define it"):
        ns.register_level(Nothing())


@pytest.mark.parametrize("name", REFUSED)
def test_requests_are_refused(name: str) -> None:
    request, kind, text = REFUSED[name]
    with pytest.raises(ns.NumscorchError) as caught:
        request()
    assert type(caught.value) is kind
    assert text in str(caught.value)


def test_long_diagonals_warn() -> None:
    with pytest.warns(UserWarning, match=r"range stores \d+ values for 2 entries, because it stores whole diagonals"):
        ns.from_coo([[0, 900], [1, 3]], [1.0, 2.0], (1000, 1000), ns.DIA)
