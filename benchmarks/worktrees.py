"""Running the suite for two commits in turns: each in a tree of its own, with the same benchmarks, in a process of its own."""

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
TOLD = 15  # last lines of a run that failed


class WorktreeError(Exception):
    """There is no such commit, or the suite doesn't run on it."""


def commit_of(revision: str, root: Path = ROOT) -> str:
    """The full name of a commit.

    Raises:
        WorktreeError: there is none.
    """
    done = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if done.returncode:
        raise WorktreeError(f"there is no commit {revision!r} here; a branch, a tag or the start of a hash names one     git log --oneline")
    return done.stdout.strip()


def is_dirty(root: Path = ROOT) -> bool:
    """Whether files differ from what is committed."""
    return bool(_git(root, "status", "--porcelain", "--untracked-files=no").stdout.strip())


@contextmanager
def tree_of(commit: str, root: Path = ROOT) -> Iterator[Path]:
    """A folder with a commit's files and the present benchmarks, gone in the end: both sides are measured by the same code."""
    with tempfile.TemporaryDirectory(prefix="numscorch-base-") as folder:
        tree = Path(folder) / "tree"
        _git(root, "worktree", "prune")  # what an earlier run left that was killed
        made = _git(root, "worktree", "add", "--detach", "--force", str(tree), commit)
        if made.returncode:
            raise WorktreeError(f"git can't lay out {commit}: {made.stderr.strip()}")
        try:
            shutil.rmtree(tree / "benchmarks", ignore_errors=True)
            shutil.copytree(root / "benchmarks", tree / "benchmarks", ignore=shutil.ignore_patterns("history", "__pycache__"))
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def run_suite(tree: Path, results: Path, arguments: Sequence[str]) -> Run:
    """Run the benchmarks of a tree on its package.

    Raises:
        WorktreeError: they don't run there; its message has the last lines.
    """
    command = [sys.executable, "-m", "pytest", "benchmarks", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "--benchmark-disable-gc"]
    command += ["--benchmark-quiet", f"--benchmark-json={results}", *arguments]
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # in a worker, nothing is timed
    environment = {**inherited, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    last = "\n".join((done.stdout + done.stderr).splitlines()[-TOLD:])
    if done.returncode:
        raise WorktreeError(f"the benchmarks don't run in {tree.name} (exit code {done.returncode}):\n{last}")
    try:
        return read_run(results)
    except RunError as error:
        raise WorktreeError(f"{error}\n{last}") from error


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
