"""Build the wheel and the sdist, and test the wheel in an empty environment: ``python packaging/check_wheel.py [FOLDER]``.

pip downloads the dependencies; ``PIP_EXTRA_INDEX_URL`` can name an index with CPU builds of torch. The sdist must build the same wheel,
and both must pass ``twine check``. The script keeps them in the folder, by default ``dist``, and deletes the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMOKE = """
import pathlib, sys, torch, numscorch as ns
assert pathlib.Path(ns.__file__).is_relative_to(sys.prefix), ns.__file__
assert (pathlib.Path(ns.__file__).parent / "py.typed").exists()
A = ns.from_torch(torch.eye(300) * 2, ns.CSR)
assert torch.equal(ns.einsum("ij,jk->ik", A, torch.ones(300, 40)), torch.full((300, 40), 2.0))
page = pathlib.Path("spmv.html")
ns.explain("ij,j->i", ns.CSR, "dense").save(page)
assert "<style>" in page.read_text()
print("numscorch", ns.__version__, "from", ns.__file__)
"""


def main(folder: Path) -> int:
    """Build, compare, install and test; raises CalledProcessError for the first command that fails, ValueError if the wheels differ."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="numscorch-wheel-") as place:
        empty = Path(place)
        venv.create(empty / "env", with_pip=True)
        python = str(empty / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        wheel = build(python, folder, empty)
        print(f"{wheel}: {wheel.stat().st_size / 1e3:.0f} kB")
        run([python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel)], empty)
        run([python, "-m", "pip", "check"], empty)
        run([python, "-c", SMOKE], empty)
        run([python, "-m", "numscorch", "explain", "ij,j->i", "CSR", "dense"], empty, stdout=subprocess.DEVNULL)
        run([python, "-m", "numscorch", "cache"], empty)
        compare(python, folder, wheel, empty)  # last, since it installs the packages that it needs
    return 0


def build(python: str, folder: Path, empty: Path) -> Path:
    """Build the wheel from a copy of the tracked files, so that untracked files are excluded and the working tree stays clean."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    for name in filter(None, names):
        copy = empty / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    wheels = empty / "made"
    run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(empty / "source")], empty)
    (wheel,) = wheels.glob("*.whl")
    target = folder / wheel.name
    target.write_bytes(wheel.read_bytes())
    return target


def compare(python: str, folder: Path, wheel: Path, empty: Path) -> None:
    """Build the sdist, and from it a wheel that must have the same files; check the metadata of sdist and wheel."""
    run([python, "-m", "pip", "install", "--quiet", "build", "twine"], empty)
    run([python, "-m", "build", "--outdir", str(empty / "built"), str(empty / "source")], empty, stdout=subprocess.DEVNULL)
    (sdist,) = (empty / "built").glob("*.tar.gz")
    if different := contents(wheel) ^ contents(empty / "built" / wheel.name):
        raise ValueError(f"{sdist.name} builds another wheel than the source tree: {sorted(different)}")
    (folder / sdist.name).write_bytes(sdist.read_bytes())
    run([python, "-m", "twine", "check", "--strict", str(wheel), str(folder / sdist.name)], empty)
    print(f"{sdist.name} builds the same wheel")


def contents(wheel: Path) -> set[tuple[str, int]]:
    """Names and check sums of the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {(file.filename, file.CRC) for file in archive.infolist()}


def run(command: Sequence[str], folder: Path, stdout: int | None = None) -> None:
    """Run a command with a separate kernel cache and without the packages of this process."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"NUMSCORCH_CACHE_DIR": str(folder / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=stdout)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute()))
    except subprocess.CalledProcessError as failed:
        sys.exit(f"{' '.join(map(str, failed.cmd[:4]))} ... failed with status {failed.returncode}")
