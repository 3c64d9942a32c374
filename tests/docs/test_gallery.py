"""The gallery has a picture, a drawing function and an explanation of every example."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from gallery import DRAWINGS, EXAMPLES, FOLDER, HELPERS, LARGEST, compact, draw

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in HELPERS)


def test_every_example_has_a_drawing_function() -> None:
    assert [drawing.__name__ for drawing in DRAWINGS] == NAMES


def test_every_picture_is_of_an_example() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_has_no_background(name: str) -> None:
    text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(text.encode()) <= LARGEST
    figure = re.search(r'<g id="patch_1">\s*<path d="[^"]*" style="fill: none"/>', text)
    assert figure


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_has_a_title_an_explanation_and_a_command(name: str) -> None:
    title, blank, *rest = (ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))) or "").splitlines()
    assert 10 < len(title) <= 70
    assert not title.endswith(".")
    assert blank == ""
    explanation = " ".join(rest).partition("    ")[0]
    assert explanation.count(". ") >= 2
    assert f"examples/{name}.py" in "\n".join(rest)


def test_a_second_run_draws_the_same_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    (drawing,) = (drawing for drawing in DRAWINGS if drawing.__name__ == "triangles_and_cores")
    first = draw(drawing, tmp_path).read_bytes()
    assert draw(drawing, tmp_path).read_bytes() == first


def test_a_compact_file_keeps_scales_and_rounds_coordinates() -> None:
    text = '<g>\n  <!-- title -->\n  <path d="M 1.2345 2 \nL 3 4 \n" transform="scale(0.015625)" style="fill: #ffffff"/>\n</g>\n'
    assert compact(text) == '<g>\n<path d="M1.2 2L3 4" transform="scale(0.015625)" fill="#ffffff"/>\n</g>\n'
