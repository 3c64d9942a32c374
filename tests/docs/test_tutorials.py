"""Examples of the tutorials run as shown, and the README lists all tutorials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pages import ROOT, check_page

from numscorch.ir.format_text import LEVELS
from numscorch.sparsifiers import base
from numscorch.sparsify import layers

TUTORIALS = {"build": 25, "convert": 20, "extend": 30}


@pytest.fixture(autouse=True)
def restored_registries(plain: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove entries that a page registers, and run kernels as Python."""
    known = (LEVELS, base.REGISTERED, layers.VERSIONS)
    before = [dict(registry) for registry in known]  # type: ignore[call-overload]
    yield
    for registry, entries in zip(known, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorials_run_as_shown(name: str) -> None:
    check_page(f"docs/tutorials/{name}.md", TUTORIALS[name])


def test_the_readme_lists_all_tutorials() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md"))
    assert pages == sorted(TUTORIALS)
    assert all(f"docs/tutorials/{name}.md" in text for name in pages)
