"""The parts of the documentation site that are generated: pages of the API, and the check of the built site."""

from __future__ import annotations

import ast
import doctest
import sys
from pathlib import Path

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from website import api, drawings, gallery, levels, public
from website.check import problems


@pytest.mark.parametrize("module", [api, public])
def test_examples(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_each_public_name_is_on_one_page() -> None:
    text = "\n".join(api.pages().values())
    shown = [line.removeprefix("::: ") for line in text.splitlines() if line.startswith("::: ")]
    assert sorted(shown) == sorted([*public.public_names(), *api.EXTENSION])


@pytest.mark.parametrize("path", api.sources())
def test_sources_define_the_names_and_parse(path: str) -> None:
    module = path.removesuffix("/__init__.py").replace("/", ".")
    nodes = ast.parse(api.sources()[path]).body
    defined = {getattr(node, "name", None) or ast.unparse(getattr(node, "target", node)) for node in nodes}
    assert {short for home, _, short in (name.rpartition(".") for name in public.public_names()) if home == module} <= defined


def test_each_example_has_a_page_in_the_gallery() -> None:
    assert {f"gallery/{path.stem}.md" for path in gallery.examples()} < set(gallery.pages())


def test_drawings_are_those_of_the_scripts() -> None:
    assets = {"logo.svg": drawings.logo("#9aa5b1"), "pipeline.svg": drawings.pipeline()}
    for name, text in assets.items():
        assert (drawings.ASSETS / name).read_text(encoding="utf-8") == text, "run docs/website/drawings.py"
    for name, format in levels.FORMATS.items():
        assert (levels.TARGET / f"{name}.svg").read_text(encoding="utf-8") == levels.drawing(format), "run docs/website/levels.py"


def test_broken_references_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other.html#here">fine</a><a href="other.html#gone">anchor</a><a href="gone.html">page</a><a href="/root.html">root</a>'
        '<script src="https://example.org/x.js"></script><a href="https://example.org">elsewhere</a>'
    )
    assert problems(tmp_path) == [
        "index.html: other.html#gone: has no such anchor",
        "index.html: gone.html: does not exist",
        "index.html: /root.html: is absolute, so that it does not work from files",
        "index.html: https://example.org/x.js: is loaded from another host",
    ]
