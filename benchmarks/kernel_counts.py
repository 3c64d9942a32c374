"""Count the kernels compiled for problems of random sizes: ``python -m benchmarks.kernel_counts [--base COMMIT]``.

Each family of problems runs in a fresh process with an empty cache. The script then counts the kernels in the cache:

    batches   60 batch sizes of a sparse linear layer, forward and backward
    widths    30 widths of the dense operand of SpMM
    graphs    30 graph sizes for a GCN layer, forward and backward
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

import numscorch as ns

from .cold_start import run_module
from .first_steps import matrix
from .worktrees import ROOT, WorktreeError, commit_of, tree_of

SEED = 0
COUNTS = {"batches": 60, "widths": 30, "graphs": 30}


def batches(sizes: random.Random, count: int) -> None:
    """Run a sparse linear layer on batches of up to 512 rows."""
    layer = ns.nn.SparseLinear(768, 512, density=0.1)
    for _ in range(count):
        x = torch.rand(sizes.randint(1, 512), 768, requires_grad=True)
        result = layer(x)
        result.backward(torch.ones_like(result))


def widths(sizes: random.Random, count: int) -> None:
    """Run SpMM with dense operands of up to 512 columns."""
    A = matrix(2048, 20)
    for _ in range(count):
        ns.einsum("ij,jk->ik", A, torch.rand(2048, sizes.randint(1, 512)))


def graphs(sizes: random.Random, count: int) -> None:
    """Run a GCN layer on graphs of 100 to 20,000 nodes, with 2 to 20 edges per node on average."""
    layer = ns.nn.GCNConv(32, 64)
    for _ in range(count):
        nodes = sizes.randint(100, 20_000)
        x, edges = torch.rand(nodes, 32, requires_grad=True), torch.randint(nodes, (2, nodes * sizes.randint(2, 20)))
        result = layer(x, edges)
        result.backward(torch.ones_like(result))


FAMILIES: dict[str, Callable[[random.Random, int], None]] = {"batches": batches, "widths": widths, "graphs": graphs}


def kernels_of(family: str, tree: Path = ROOT, count: int | None = None) -> int:
    """Number of kernels that a family compiles with the package of a working tree.

    Raises:
        WorktreeError: the family does not run with that package.
    """
    with tempfile.TemporaryDirectory(prefix="numscorch-counts-") as cache:
        run_module(tree, {"NUMSCORCH_CACHE_DIR": cache}, "benchmarks.kernel_counts", "--run", family, str(count or COUNTS[family]))
        return len(list(Path(cache).glob("kernel_*.py")))


def main(arguments: Sequence[str]) -> int:
    """Count the kernels and print one line per family."""
    options = _parser().parse_args(arguments)
    if options.run:
        torch.manual_seed(SEED)
        FAMILIES[options.run[0]](random.Random(SEED), int(options.run[1]))
        return 0
    try:
        with tree_of(commit_of(options.base)) if options.base else nullcontext(None) as older:
            for family, count in COUNTS.items():
                before = "" if older is None else f", {kernels_of(family, older)} at {options.base}"
                print(f"{count} {family}: {kernels_of(family)} kernels{before}", flush=True)
    except WorktreeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_counts", description="How many kernels do random sizes compile?")
    parser.add_argument("--base", help="a commit to count at as well")
    parser.add_argument("--run", nargs=2, metavar=("FAMILY", "COUNT"), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
