"""A skipped case for each unusable file of the data folder, with the reason."""

from __future__ import annotations

import pytest

from .. import data


@pytest.mark.parametrize("file", data.unreadable())
def test_file(file: str) -> None:
    """Skip the case with the reason why the file is unusable."""
    pytest.skip(f"{file}: {data.unreadable()[file]}")
