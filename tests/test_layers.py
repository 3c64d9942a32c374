"""The layers of the package: import-linter detects violations, and no files import each other in a cycle."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "numscorch"
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PACKAGE.rglob("*.py")}
LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(LINT), "--no-cache", "--config", str(folder / "pyproject.toml")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(folder), "PATH": ""})


@pytest.mark.process
@pytest.mark.parametrize("violation", ["from numscorch.interface.api import einsum", "def f():\n    from ..nn import linear"])
def test_an_upward_import_is_detected(tmp_path: Path, violation: str) -> None:
    pytest.importorskip("importlinter", reason="import-linter is a development dependency")
    shutil.copytree(PACKAGE, tmp_path / "numscorch", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert lint(tmp_path).returncode == 0
    with (tmp_path / "numscorch" / "schedule" / "cost.py").open("a") as file:
        file.write(f"\n\n{violation}\n")
    finished = lint(tmp_path)
    assert finished.returncode == 1
    assert "numscorch.schedule" in finished.stdout and "BROKEN" in finished.stdout


def imported(name: str, text: str, is_package: bool) -> Iterator[str]:
    """The files that a file imports, also in functions and for type checkers."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            parents = name.split(".") if is_package else name.split(".")[:-1]
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                if (submodule := f"{module}.{alias.name}") in FILES:
                    yield submodule
                elif module in FILES:
                    yield module


def test_imports_have_no_cycles() -> None:
    graph = {
        name: set(imported(name, path.read_text(), path.name == "__init__.py")) - {name}
        for name, path in FILES.items()
        if not name.startswith("numscorch.commands") and name != "numscorch.__main__"
    }
    assert sum(map(len, graph.values())) > 1000
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_no_file_but_commands_imports_the_root() -> None:
    for name, path in FILES.items():
        is_command = name.startswith("numscorch.commands") or name == "numscorch.__main__"
        assert is_command or "numscorch" not in imported(name, path.read_text(), path.name == "__init__.py"), name
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_an_import_inside_a_function_says_why(tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text("def f():\n    from .roofs import rates  # deferred: it imports Numba\n    from .plans import plan\n")
    command = [sys.executable, str(ROOT / "packaging" / "check_imports.py"), str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert f"{file}:3" in finished.stderr and f"{file}:2" not in finished.stderr
