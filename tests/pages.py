"""Pages of text whose examples are run."""

from __future__ import annotations

import doctest
from pathlib import Path

ROOT = Path(__file__).parents[1]


def check_page(path: str, least: int) -> None:
    """That what a page shows is what happens, in more than so many lines."""
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(ROOT / path), module_relative=False, optionflags=flags)
    assert found.attempted > least
    assert found.failed == 0
