"""Paths, modules and tags that a document names exist."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pages import ROOT

from numscorch.ir.notation import TAGS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("numscorch", "tests", "benchmarks", "docs", "packaging", "examples")
PACKAGES = sorted(path.parent.name for path in (ROOT / "numscorch").glob("*/__init__.py"))
PATH = re.compile(rf"(?<![\w./~-])(?:{'|'.join(FOLDERS)})/(?:[\w./-]*\w)?")
IN_PACKAGE = re.compile(rf"(?<![\w./~-])(?:{'|'.join(PACKAGES)})/(?:[\w/]+\.py\b)?(?!\w)")  # codegen/kernel.py, operators/
FILE = re.compile(r"`([a-z_]\w*\.py)`")  # a file whose folder the sentence names
MODULE = re.compile(r"\bbenchmarks\.([a-z_]+)")  # python -m benchmarks.gate
NAME = re.compile(rf"`((?:{'|'.join(set(PACKAGES) - {'nn'})})(?:\.\w+)+)`")  # schedule.Step
TAG = re.compile(r"\b\w+_forall\b")
SPELLINGS = {match[0] for pattern, _ in TAGS if (match := re.match(r"\w+", pattern))}


@cache
def names_of_files() -> frozenset[str]:
    return frozenset(path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def is_name(name: str) -> bool:
    """Whether a dotted name is a module of the package or a name of one."""
    try:
        pkgutil.resolve_name(f"numscorch.{name}")
    except (ImportError, AttributeError):
        return False
    return True


def absent(text: str) -> Iterator[str]:
    """What a text names and the repository lacks."""
    yield from (path for path in PATH.findall(text) if not (ROOT / path).exists())
    yield from (path for path in IN_PACKAGE.findall(text) if not (ROOT / "numscorch" / path).exists() and not (ROOT / path).exists())
    yield from (name for name in FILE.findall(text) if name not in names_of_files())
    yield from (name for name in MODULE.findall(text) if not any((ROOT / "benchmarks" / file).exists() for file in (name, f"{name}.py")))
    yield from (name for name in NAME.findall(text) if not name.endswith(".py") and not is_name(name))
    yield from (tag for tag in TAG.findall(text) if tag not in SPELLINGS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_what_exists(page: Path) -> None:
    assert list(absent(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`numscorch/gone.py`", ["numscorch/gone.py"]),
        ("in `codegen/gone.py`", ["codegen/gone.py"]),
        ("see `gone.py`", ["gone.py"]),
        ("`python -m benchmarks.gone`", ["gone"]),
        ("`schedule.Gone`", ["schedule.Gone"]),
        ("`gone_forall<4>(i, ...)`", ["gone_forall"]),
        (
            "`tests/docs/test_paths.py`, `codegen/kernel.py`, `kernel.py`, `benchmarks.gate`, `schedule.Step`, `tile_forall<16>`",
            [],
        ),
    ],
)
def test_what_is_gone_is_named(text: str, expected: list[str]) -> None:
    assert list(absent(text)) == expected


def test_the_layers_are_those_of_the_linter() -> None:
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    listed = (
        (ROOT / "docs" / "ARCHITECTURE.md")
        .read_text(encoding="utf-8")
        .partition("## Layers")[2]
        .partition("```text\n")[2]
        .partition("```")[0]
    )
    layers = [line[:30].strip().split(", ") for line in listed.splitlines()]
    assert layers == [layer.split(" | ") for layer in contract["layers"]]
