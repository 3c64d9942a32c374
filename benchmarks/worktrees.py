"""Run the suite for two commits in turn: each in a separate worktree and process, with the same benchmarks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .records import Run, RunError, read_run

ROOT = Path(__file__).parent.parent
TOLD = 15  # lines shown of the output of a failed run


class WorktreeError(Exception):
    """A commit does not exist, or the suite does not run on it."""


def commit_of(revision: str, root: Path = ROOT) -> str:
    """Full hash of a revision.

    Raises:
        WorktreeError: the revision does not exist.
    """
    result = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if result.returncode:
        raise WorktreeError(f"there is no commit {revision!r} here; a branch, a tag or the start of a hash names one     git log --oneline")
    return result.stdout.strip()


def is_dirty(root: Path = ROOT) -> bool:
    """Whether tracked files have uncommitted changes."""
    return bool(_git(root, "status", "--porcelain", "--untracked-files=no").stdout.strip())


@contextmanager
def tree_of(commit: str, root: Path = ROOT) -> Iterator[Path]:
    """Temporary worktree of a commit with the current benchmarks, so that the same code measures both commits."""
    with tempfile.TemporaryDirectory(prefix="numscorch-base-") as folder:
        tree = Path(folder) / "tree"
        _git(root, "worktree", "prune")  # remove worktrees of killed runs
        result = _git(root, "worktree", "add", "--detach", "--force", str(tree), commit)
        if result.returncode:
            raise WorktreeError(f"git can't lay out {commit}: {result.stderr.strip()}")
        try:
            shutil.rmtree(tree / "benchmarks", ignore_errors=True)
            shutil.copytree(root / "benchmarks", tree / "benchmarks", ignore=shutil.ignore_patterns("history", "__pycache__"))
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def run_suite(tree: Path, results: Path, arguments: Sequence[str]) -> Run:
    """Run the benchmarks of a worktree on its package.

    Raises:
        WorktreeError: the benchmarks fail; the message has the last lines of output.
    """
    command = [sys.executable, "-m", "pytest", "benchmarks", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "--benchmark-disable-gc"]
    command += ["--override-ini=addopts="]  # no doctests: an older commit may lack modules that files of the benchmarks import
    command += ["--benchmark-quiet", f"--benchmark-json={results}", *arguments]
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # xdist workers do not time
    environment = {**inherited, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    last = "\n".join((result.stdout + result.stderr).splitlines()[-TOLD:])
    if result.returncode:
        raise WorktreeError(f"the benchmarks don't run in {tree.name} (exit code {result.returncode}):\n{last}")
    try:
        return read_run(results)
    except RunError as error:
        raise WorktreeError(f"{error}\n{last}") from error


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
