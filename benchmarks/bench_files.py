"""The files of a data folder that can't be measured on: each a skipped case that says why."""

from __future__ import annotations

import pytest

from . import data


@pytest.mark.parametrize("file", data.unreadable())
def test_file(file: str) -> None:
    """Nothing is measured."""
    pytest.skip(f"{file}: {data.unreadable()[file]}")
