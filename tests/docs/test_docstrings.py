"""Docstrings of public names have all parts, and their examples run."""

from __future__ import annotations

import doctest
import inspect
import sys
from typing import Any

import pytest
import torch
from pages import ROOT

import numscorch as ns

sys.path.insert(0, str(ROOT / "docs"))
from website.public import lacks, lacks_of_member, methods, public_names

NAMES = public_names()
CLASSES = {name: value for name, value in NAMES.items() if inspect.isclass(value)}
MEMBERS = {f"{name}.{member}": method for name, value in CLASSES.items() for member, method in methods(value).items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_has_all_parts(name: str) -> None:
    assert list(lacks(NAMES[name])) == []


@pytest.mark.parametrize("name", MEMBERS)
def test_a_docstring_of_a_member_has_all_parts(name: str) -> None:
    assert list(lacks_of_member(MEMBERS[name])) == []


@pytest.mark.parametrize(
    "name", [name for name, value in NAMES.items() if inspect.isfunction(value) and value.__module__ == "numscorch.operators"]
)
def test_examples_of_operators_run(name: str) -> None:
    """Examples of functions that are made in a loop, which doctest does not find in modules."""
    globs: dict[str, Any] = {"torch": torch, "ns": ns}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(NAMES[name]) or "", globs, name, None, None)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0


def f(a: int, b: int) -> int:
    """Add.

    Args:
        a: a number
    """
    return a + b


def test_missing_parts_are_found() -> None:
    assert list(lacks(f)) == ["Args: b", "an example", "Returns", "Raises"]
