"""CPU seconds of first steps beyond Numba's start-up: with an empty kernel cache, and in a second process that uses the filled cache.

    python -m benchmarks.cold_start                                  # the working tree
    python -m benchmarks.cold_start --base 573de4c --rounds 2        # a commit and the working tree, in turns
    python -m benchmarks.cold_start --steps "GCN,A @ A"

Each step runs in a separate process (``first_steps.py``). The floor is the CPU time of ``import numba`` and of compiling one empty
function in such a process. With several rounds, the minimum counts, because other programs can only increase CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from .first_steps import FLOOR, SIZE, STEPS, THREADS
from .worktrees import ROOT, TOLD, WorktreeError, commit_of, tree_of

ROUNDS = 1
FLOORS = 3  # processes per round that measure the floor
CACHED = 0.05  # limit of seconds above the floor for a step with cached kernels
BARS = {
    "GCN": 0.30,
    "SAGE": 0.30,
    "GIN": 0.30,
    "GAT": 0.25,
    "SparseAttention": 0.12,
    "A @ A": 0.40,
    "A + A.t()": 0.40,
    "SpMM": 0.55,
}  # limits of a step's seconds above the floor, relative to the base


@dataclass(frozen=True)
class Start:
    """CPU seconds of a step that compiles and of the same step with cached kernels, and the number of kernels in the cache."""

    compiling: float
    cached: float
    kernels: int

    def least(self, other: Start) -> Start:
        """The minimum seconds of two measurements.

        >>> Start(2.0, 0.5, 3).least(Start(1.5, 0.6, 3))
        Start(compiling=1.5, cached=0.5, kernels=3)
        """
        return Start(min(self.compiling, other.compiling), min(self.cached, other.cached), self.kernels)


@dataclass(frozen=True)
class Table:
    """The floor, and the starts of each side (base, head) by step."""

    floor: float
    sides: Mapping[str, Mapping[str, Start]]

    def ratio(self, step: str) -> float | None:
        """The ratio of head's seconds above the floor to the base's; None without a base.

        >>> Table(0.5, {"base": {"GCN": Start(2.5, 0.5, 3)}, "head": {"GCN": Start(1.0, 0.5, 3)}}).ratio("GCN")
        0.25
        """
        if "base" not in self.sides:
            return None
        base, head = (self.sides[side][step].compiling - self.floor for side in ("base", "head"))
        return head / base if base > 0 else None

    def lines(self) -> Iterator[str]:
        """The table as text: seconds above the floor, one line per step."""
        yield f"CPU seconds above the floor of {self.floor:.2f} s"
        titles = [f"{side} {what}" for side in self.sides for what in ("new", "cached", "kernels")]
        yield _row("", [*titles, *(["ratio", "bar"] if "base" in self.sides else [])])
        for step in self.sides["head"]:
            yield _row(step, [*self._cells(step), *self._verdict(step)])

    def _cells(self, step: str) -> Iterator[str]:
        for starts in self.sides.values():
            start = starts[step]
            yield from (f"{start.compiling - self.floor:.2f}", f"{start.cached - self.floor:.2f}", str(start.kernels))

    def _verdict(self, step: str) -> Iterator[str]:
        ratio = self.ratio(step)
        if "base" in self.sides:
            yield from ("" if ratio is None else f"{ratio:.2f}", f"{BARS[step]:.2f}")


def _row(title: str, cells: Sequence[str]) -> str:
    return f"{title:16}" + "".join(f"{cell:>14}" for cell in cells)


def start_of(step: str, tree: Path, size: int = SIZE) -> Start:
    """Run a step in two processes that share an initially empty cache.

    Raises:
        WorktreeError: the step fails.
    """
    with tempfile.TemporaryDirectory(prefix="numscorch-cold-") as folder:
        compiling, cached = seconds_of(step, tree, Path(folder), size), seconds_of(step, tree, Path(folder), size)
        return Start(compiling, cached, len(list(Path(folder).glob("kernel_*.py"))))


def seconds_of(step: str, tree: Path, cache: Path, size: int = SIZE) -> float:
    """CPU seconds of a step in a fresh process that uses this cache."""
    text = run_module(tree, {"NUMSCORCH_CACHE_DIR": str(cache)}, "benchmarks.first_steps", step, str(size))
    seconds: float = json.loads(text)["cpu"]
    return seconds


def floor_of(tree: Path, size: int = SIZE) -> float:
    """CPU seconds of Numba's start-up: the minimum of several processes, because the first one reads libraries from disk."""
    with tempfile.TemporaryDirectory(prefix="numscorch-cold-") as cache:
        return min(seconds_of(FLOOR, tree, Path(cache), size) for _ in range(FLOORS))


def run_module(tree: Path, settings: Mapping[str, str], *arguments: str) -> str:
    """Run a module in a fresh process with the package of a tree and two threads, and return its standard output.

    Raises:
        WorktreeError: the module fails; the message has the last lines of its output.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "NUMSCORCH_", "PYTEST_"))}
    # idle threads must sleep: spinning would count as CPU time
    defaults = {"NUMBA_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-W", "ignore", "-m", *arguments]
    process = subprocess.run(command, cwd=tree, env={**environment, **defaults, **settings}, capture_output=True, text=True, check=False)
    if process.returncode:
        last = "\n".join((process.stdout + process.stderr).splitlines()[-TOLD:])
        raise WorktreeError(f"{' '.join(arguments)} doesn't run in {tree} (exit code {process.returncode}):\n{last}")
    return process.stdout


def measure(steps: Sequence[str], base: str | None = None, rounds: int = ROUNDS, size: int = SIZE, root: Path = ROOT) -> Table:
    """Measure steps of the working tree, in turns with a base commit if one is given.

    Raises:
        WorktreeError: the commit does not exist, or a step fails.
    """
    with tree_of(commit_of(base, root), root) if base else nullcontext(None) as older:
        trees = {side: tree for side, tree in (("base", older), ("head", root)) if tree is not None}
        for tree in trees.values():
            run_module(tree, {}, "compileall", "-q", "numscorch", "benchmarks")  # so that steps find compiled bytecode
        floor, sides = float("inf"), {side: dict[str, Start]() for side in trees}
        for turn in range(rounds):
            floor = min(floor, floor_of(root, size))
            for step in steps:
                for side, tree in trees.items():
                    print(f"round {turn + 1} of {rounds}: {step}, {side}", file=sys.stderr, flush=True)
                    start = start_of(step, tree, size)
                    sides[side][step] = start.least(sides[side].get(step, start))
    return Table(floor, sides)


def main(arguments: Sequence[str]) -> int:
    """Measure the steps and print the table."""
    options = _parser().parse_args(arguments)
    try:
        print(*measure(options.steps, options.base, options.rounds, options.size).lines(), sep="\n")
    except WorktreeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start", description="What do first steps take?")
    parser.add_argument("--base", help="a commit, measured in turns with the present files")
    parser.add_argument("--rounds", type=_positive, default=ROUNDS, help=f"how often each step is measured (default: {ROUNDS})")
    parser.add_argument("--steps", type=_steps, default=tuple(STEPS), help=f"some of: {', '.join(STEPS)}")
    parser.add_argument("--size", type=_positive, default=SIZE, help=f"rows of matrices, nodes of graphs (default: {SIZE})")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _steps(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in names if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(STEPS)}")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
