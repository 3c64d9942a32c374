"""The table of data types: its facts agree with torch's, and no other file reads them off names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import numscorch
from numscorch.frontend.datatypes import COMPILED, STORED, WIDENED
from numscorch.ir.dtype import DTYPES, DType

KINDS = {"floating": (True, False), "complex": (False, True), "integer": (False, False), "boolean": (False, False)}


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_facts_agree_with_torch(dtype: torch.dtype) -> None:
    known = STORED[dtype]
    assert (dtype.itemsize, dtype.is_floating_point, dtype.is_complex) == (known.itemsize, *KINDS[known.kind])
    assert (known.kind == "boolean") is (dtype is torch.bool)
    assert getattr(torch, known.copied).itemsize == known.itemsize


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_rows_name_data_types_that_hold_their_values(dtype: DType) -> None:
    computed = DTYPES[dtype.computed]
    assert computed.computed == computed.name and DTYPES[computed.accumulator].accumulator == computed.accumulator
    if dtype.itemsize:
        values, wide, sums = (getattr(torch, name) for name in (dtype.name, dtype.computed, dtype.accumulator))
        assert torch.promote_types(values, wide) is wide and torch.promote_types(wide, sums) is sums


def test_data_types_are_compiled_or_widened() -> None:
    assert COMPILED | WIDENED.keys() == STORED.keys() and not COMPILED & WIDENED.keys()
    assert set(WIDENED.values()) <= COMPILED


def test_no_file_parses_the_name_of_a_data_type() -> None:
    parsing = re.compile(r"dtype\)?\.(startswith|endswith)|isdigit, dtype|[\"']u?int[\"'] in dtype")
    files = Path(numscorch.__file__).parent.rglob("*.py")
    assert [str(file) for file in files if parsing.search(file.read_text())] == []
