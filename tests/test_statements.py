"""The budget of statements: what ``packaging/check_statements.py`` counts, and what it refuses."""

from __future__ import annotations

import doctest
import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "packaging" / "check_statements.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_statements", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A package of five statements, and one beside it, within their limits."""
    for name, text in {
        "numscorch/__init__.py": '"""Text."""\n',
        "numscorch/ir/level.py": "# no statement\nx = 1; y = 2\n",
        "numscorch/ir/deep/array.py": "def f():\n    if True: return\n",
        "packaging/statements.toml": "numscorch = 1\nir = 5\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def limit(repository: Path, line: str) -> None:
    (repository / "packaging" / "statements.toml").write_text(f"numscorch = 1\n{line}\n")


def test_examples(script: ModuleType) -> None:
    assert doctest.testmod(script).attempted > 3 and not doctest.testmod(script).failed


def test_statements_are_counted_by_package(script: ModuleType, repository: Path) -> None:
    assert script.statements(repository / "numscorch") == {"numscorch": 1, "ir": 5}


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("ir = 5", 0, ""),
        ("ir = 15  # room for levels", 0, ""),
        ("ir = 16  # room for levels", 0, "ir has 5 statements: lower its limit of 16\n"),
        ("ir = 6", 1, "the limit of ir rose from 5 to 6: give the reason in its line\n"),
        ("ir = 4", 1, "ir has 5 statements, 1 more than its limit: make it smaller, or raise the limit and give the reason in its line\n"),
        ("", 1, "ir has no limit\n"),
        ("ir = 5\nnn = 3", 1, "nn has a limit but no statements\n"),
    ],
)
def test_limits(script: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str], line: str, code: int, message: str) -> None:
    limit(repository, line)
    assert script.main(repository) == code
    assert capsys.readouterr().err == message


def test_every_package_has_a_limit(script: ModuleType) -> None:
    root = SCRIPT.parents[1]
    limits = (root / script.LIMITS).read_text(encoding="utf-8")
    assert [text for text in script.problems(script.statements(root / "numscorch"), limits, "") if "statements," not in text] == []
