"""What the tutorials show is what happens, and the README has all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pages import ROOT, check_page

from numscorch.ir.format_text import LEVELS
from numscorch.sparsifiers import names
from numscorch.sparsify import layers

TUTORIALS = {"build": 25, "convert": 20, "extend": 30}


@pytest.fixture(autouse=True)
def registered_as_before(plain: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page registers is forgotten after it; kernels run as Python."""
    known = (LEVELS, names.REGISTERED, layers.VERSIONS)
    before = [dict(own) for own in known]  # type: ignore[call-overload]
    yield
    for own, was in zip(known, before, strict=True):
        own.clear()
        own.update(was)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_does_what_it_shows(name: str) -> None:
    check_page(f"docs/tutorials/{name}.md", TUTORIALS[name])


def test_the_readme_has_all_of_them() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md"))
    assert pages == sorted(TUTORIALS)
    assert all(f"docs/tutorials/{name}.md" in text for name in pages)
