"""Cache sizes of the machine, as the operating system reports them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from numscorch.machine.target import cache_sizes, host


def test_cache_sizes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for at, size in enumerate(("32K", "512K\n", "36M", "", "unknown")):
        (tmp_path / f"index{at}").mkdir()
        (tmp_path / f"index{at}" / "size").write_text(size)
    assert sorted(cache_sizes(tmp_path)) == [32 << 10, 512 << 10, 36 << 20]
    assert cache_sizes(tmp_path / "none") == []


def test_the_cache_is_a_power_of_two() -> None:
    assert host().cache.bit_count() == 1
    assert host() is host()
