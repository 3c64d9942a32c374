"""The files of releases and of the repository's host agree with each other and with the Makefile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import numscorch as ns

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_names_the_version_the_licence_and_the_address() -> None:
    citation = dict(re.findall(r"^([a-z-]+): \"?([^\"\n]+)\"?$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    assert citation["url"] == PROJECT["urls"]["Documentation"]
    assert ns.__version__ == PROJECT["version"]


def test_classifiers_name_the_oldest_python() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    versions = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+", text)]
    assert versions[0] == oldest


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_exist(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    text = workflow.read_text(encoding="utf-8")
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    assert "permissions:" in text  # each workflow gets the rights that it needs, and no others


def test_the_pages_that_a_host_shows_exist() -> None:
    names = ("SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "RELEASING.md", ".pre-commit-config.yaml")
    assert all((ROOT / name).read_text(encoding="utf-8").strip() for name in (*names, ".github/PULL_REQUEST_TEMPLATE.md"))
    assert [path.stem for path in WORKFLOWS] == ["docs", "nightly", "release", "test"]


@pytest.mark.parametrize("name", ["RELEASING.md", "SECURITY.md"])
def test_commands_and_links_of_pages_exist(name: str) -> None:
    text, targets = (ROOT / name).read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", targets, re.M) for target in re.findall(r"`make ([a-z-]+)", text))
    assert all((ROOT / link).exists() for link in re.findall(r"\]\(([^):]+)\)", text))
