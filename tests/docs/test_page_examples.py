"""Examples of the README and of all pages run as shown, and links between pages are valid."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT

from numscorch.ir.format_text import LEVELS
from numscorch.sparsifiers import base
from numscorch.sparsify import layers

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [page for page in PAGES if re.search(r"^ *>>> ", page.read_text(encoding="utf-8"), re.MULTILINE)]
PLAIN = ("build", "convert", "extend")  # pages with many small kernels: they run as Python
VARIABLE = re.compile(r"\bNUM(?:SCORCH|BA)_[A-Z_]+")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
GENERATED = re.compile(r"(?:assets|reference|gallery)/|changelog\.md|contributing\.md")  # by docs/website; `make docs` checks the links


@pytest.fixture(autouse=True)
def restored_registries() -> Iterator[None]:
    """Remove entries that a page registers."""
    known = (LEVELS, base.REGISTERED, layers.VERSIONS)
    before = [dict(registry) for registry in known]  # type: ignore[call-overload]
    yield
    for registry, entries in zip(known, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of torch.func.hessian, torch.jit.trace and torch_geometric
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_run_as_shown(page: Path, request: pytest.FixtureRequest) -> None:
    if page.stem in PLAIN:
        request.getfixturevalue("plain")
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testfile(str(page), module_relative=False, optionflags=flags, encoding="utf-8").failed == 0


def test_pages_of_the_guide_have_examples() -> None:
    named = {page for page in PAGES if page.parent.name in ("guide", "concepts")}
    assert {page.stem for page in named - set(EXAMPLES)} == {"configuration", "related-work"}


def test_the_configuration_page_lists_all_variables() -> None:
    sources = [path for folder in ("numscorch", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in sources for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    listed = set(VARIABLE.findall((ROOT / "docs" / "guide" / "configuration.md").read_text(encoding="utf-8")))
    assert listed == read


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_links_between_pages_are_valid() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists() and not is_page_of_the_site(page.parent / target)
    ]
    assert missing == []


def is_page_of_the_site(target: Path) -> bool:
    """Whether a link leads to a page that the site has and the repository lacks: a tutorial, or a page that docs/website generates."""
    path, docs = target.resolve(), ROOT / "docs"
    if not path.is_relative_to(docs):
        return False
    return path.with_suffix(".py").exists() or GENERATED.match(path.relative_to(docs).as_posix()) is not None
