"""Examples of the README and the guide run as shown."""

from __future__ import annotations

import re

import pytest
from pages import ROOT, check_page

GUIDE = {
    "configuration": 8,
    "distributed": 10,
    "explain": 10,
    "expressions": 10,
    "formats": 10,
    "fusion": 5,
    "graphs": 20,
    "modules": 8,
    "pruning": 15,
    "scipy": 15,
    "torch": 15,
    "training": 20,
}
TEXT_ALONE = ("cache",)  # pages without Python examples
VARIABLE = re.compile(r"\bNUM(?:SCORCH|BA)_[A-Z_]+")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_examples_of_the_readme() -> None:
    check_page("README.md", 9)


@pytest.mark.parametrize("name", GUIDE)
def test_examples_of_the_guide(name: str) -> None:
    check_page(f"docs/guide/{name}.md", GUIDE[name])


def test_the_readme_links_to_all_of_the_guide() -> None:
    pages = sorted(path.stem for path in (ROOT / "docs" / "guide").glob("*.md"))
    assert pages == sorted([*GUIDE, *TEXT_ALONE])
    assert all(f"docs/guide/{name}.md" in (ROOT / "README.md").read_text(encoding="utf-8") for name in pages)


def test_the_configuration_page_lists_all_variables() -> None:
    sources = [path for folder in ("numscorch", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in sources for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    listed = set(VARIABLE.findall((ROOT / "docs" / "guide" / "configuration.md").read_text(encoding="utf-8")))
    assert listed == read


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_links_between_pages_are_valid() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
