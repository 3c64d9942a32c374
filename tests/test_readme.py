"""What the README and the guide show is what happens."""

from __future__ import annotations

import re

import pytest
from pages import ROOT, check_page

GUIDE = {"formats": 10, "expressions": 10, "training": 20}
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_examples_of_the_readme() -> None:
    check_page("README.md", 20)


@pytest.mark.parametrize("name", GUIDE)
def test_examples_of_the_guide(name: str) -> None:
    check_page(f"docs/guide/{name}.md", GUIDE[name])


def test_the_readme_links_to_all_of_the_guide() -> None:
    pages = sorted(path.stem for path in (ROOT / "docs" / "guide").glob("*.md"))
    assert pages == sorted(GUIDE)
    assert all(f"docs/guide/{name}.md" in (ROOT / "README.md").read_text(encoding="utf-8") for name in pages)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
