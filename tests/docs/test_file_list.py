"""The list of files in ARCHITECTURE.md is the package's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_list_of_files_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    from file_list import files

    listed = re.search(r"<!-- begin files -->\n```text\n(.*?)\n```\n<!-- end -->", (ROOT / "docs/ARCHITECTURE.md").read_text(), re.DOTALL)
    assert listed is not None and listed[1] == files(), "run: python docs/refresh.py files"
