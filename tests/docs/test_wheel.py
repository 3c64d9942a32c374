"""The wheel contains the package and nothing else. ``make wheel`` also installs it into an empty environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from numscorch.__main__ import main

ROOT = Path(__file__).parents[2]
NEEDED = 77  # the oldest setuptools that pyproject.toml allows
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
USE = "import numscorch as ns; print(ns.__file__, ns.explain('ij,j->i', ns.CSR, 'dense').title)"

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this source tree, built with the installed setuptools."""
    try:
        installed = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        pytest.skip("setuptools, which builds wheels, is not installed")
    if int(installed.partition(".")[0]) < NEEDED:
        pytest.skip(f"setuptools {installed} is older than {NEEDED}, which pyproject.toml asks for")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("numscorch", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "golden", "history"))
    finished = subprocess.run([sys.executable, "-c", BUILD, "out"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    (path,) = (folder / "out").glob("*.whl")
    return path


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_the_wheel_has_the_files_of_the_package_only(wheel: Path) -> None:
    files = [path for path in (ROOT / "numscorch").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    package = {path.relative_to(ROOT).as_posix() for path in files}
    package_files = {name for name in names_in(wheel) if ".dist-info/" not in name}
    assert package_files == package
    assert "numscorch/py.typed" in package_files, "type checkers read the types of a package with this mark"
    assert {"numscorch/explanation/style.css", "numscorch/explanation/page.html"} <= package_files


def test_the_metadata_of_the_wheel(wheel: Path) -> None:
    description = metadata_of(wheel)
    assert wheel.name == f"numscorch-{description['Version']}-py3-none-any.whl"
    assert (description["Name"], description["Requires-Python"], description["License-Expression"]) == ("numscorch", ">=3.11", "MIT")
    assert "Typing :: Typed" in description.get_all("Classifier", [])
    required = {line.split(">=")[0] for line in description.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert required == {"torch", "numba", "llvmlite", "numpy", "tbb"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names_in(wheel))
    assert str(description.get_payload()).startswith("# "), "the README is its description"


def test_the_wheel_installs_a_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        entry = EntryPoint("numscorch", archive.read(name).decode().partition("= ")[2].strip(), "console_scripts")
    assert entry.load() is main


def test_the_package_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n{USE}"
    environment = {"NUMSCORCH_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    run = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(tmp_path / "site" / "numscorch" / "__init__.py"), "einsum", "ij,j->i"]
