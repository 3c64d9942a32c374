"""Doctests of text pages."""

from __future__ import annotations

import doctest
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check_page(path: str, least: int) -> None:
    """Check that the examples of a page pass, and that there are more than ``least``."""
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    results = doctest.testfile(str(ROOT / path), module_relative=False, optionflags=flags)
    assert results.attempted > least
    assert results.failed == 0
