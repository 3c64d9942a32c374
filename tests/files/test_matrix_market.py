"""Matrix Market files."""

from __future__ import annotations

from pathlib import Path

import pytest

import numscorch as ns


def test_a_skew_symmetric_file_has_no_diagonal(tmp_path: Path, interpreted: None) -> None:
    path = tmp_path / "A.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 5\n3 3 1\n")
    with pytest.raises(ns.FormatError, match="entry 3 3"):
        ns.load(path)
