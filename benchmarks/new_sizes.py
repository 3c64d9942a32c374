"""The cost of sizes not seen before, once kernels are compiled: ``python -m benchmarks.new_sizes [OPERATOR ...] [--base COMMIT]``.

Each row compares a fresh tensor of a size not seen with a fresh tensor of a seen size, in turns, for the operators of
``docs/coverage.md``, for layers and for other common calls. No tensor is used for two calls that are compared. Calls that compile
a kernel, or load one from the cache, are counted apart. The columns:

    seen, unseen      median CPU milliseconds of a call on one thread; for unseen sizes also the 90th percentile
    ratio             median of unseen sizes over that of seen ones
    pattern           nanoseconds per entry that the first call with a fresh pattern takes above the second one
    compiling         calls that compiled or loaded a kernel, of the unseen sizes

With ``--base``, a fresh process repeats each row on the package of a commit. The last two columns are then its median of unseen
sizes, and its cost of a new size (unseen minus seen) over the present one, where it exceeds 1 ms.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F

import numscorch as ns
from numscorch.machine.compile_log import counts

from .cold_start import run_module
from .worktrees import ROOT, WorktreeError, commit_of, tree_of

sys.path.extend(str(ROOT / folder) for folder in ("tests/support", "tests"))  # the rows of an older commit are in tests
from coverage_rows import ROWS, STORED, Given

CALLS = 30
COSTLY = 1.0  # milliseconds of a new size at the base, above which the gain is computed
WARM = 3  # every third size is seen before the measured ones
ENTRIES = 10_000
ROWS_OF = range(360, 440)  # sizes of matrices: two rounded extents
WIDTHS = range(32, 440)  # sizes of dense operands
HEAD = f"{'':42}{'seen':>11}{'unseen':>10}{'90 %':>10}{'ratio':>8}{'pattern':>10}{'compiling':>11}"
Call = Callable[[], Any]
Maker = Callable[[int], Call]  # from a size to a call with fresh tensors; only the call is timed
BY_SIZE: dict[str, Callable[[Given], Any]] = {  # rows of the table whose arguments fit a 4 x 6 matrix only
    "matrix_power": lambda g: torch.matrix_power(g.S[:, : g.S.shape[0]], 3),
    "kron(S, S)": lambda g: torch.kron(g.S[:2], 2 * g.S[:2]),
    "kron(S, D)": lambda g: torch.kron(g.S[:40], g.u[:100]),
    "F.l1_loss(S, S)": lambda g: F.l1_loss(g.S, torch.roll(g.S, -1, 0)),
    "reshape(2, 12)": lambda g: g.S.reshape(g.S.shape[1], g.S.shape[0]),
    "expand": lambda g: g.S.unsqueeze(0).expand(3, *g.S.shape),
    "S[mask]": lambda g: g.S[g.u > 0],
    "split": lambda g: torch.split(g.S, [1, g.S.shape[1] - 2, 1], 1)[1],
    "unflatten": lambda g: torch.unflatten(g.S, 1, (2, -1)),
    "broadcast_to": lambda g: torch.broadcast_to(g.S, (2, *g.S.shape)),
    "repeat_interleave": lambda g: torch.repeat_interleave(g.S, torch.arange(g.S.shape[0]) % 3, 0),
}
OPERATORS = ROWS | STORED | BY_SIZE


@dataclass(frozen=True)
class Row:
    """The measurements of one operator, in milliseconds."""

    seen: list[float]
    unseen: list[float]
    again: list[float]
    compiling: int

    @property
    def overhead(self) -> float:
        """What a new size costs above a seen one, in milliseconds."""
        return median(self.unseen) - median(self.seen)

    def text(self, name: str) -> str:
        """A line of the table.

        >>> Row([1.0, 1.0], [4.0, 4.0], [0.5, 0.5], 3).text("S @ D")
        'S @ D                                            1.00      4.00      4.00     4.0      50.0          3'
        """
        last = quantiles(self.unseen, n=10)[-1] if len(self.unseen) > 1 else self.unseen[0]
        seen, unseen = median(self.seen), median(self.unseen)
        pattern = max(seen - median(self.again), 0.0) * 1e6 / ENTRIES
        return f"{name:42}{seen:11.2f}{unseen:10.2f}{last:10.2f}{unseen / seen:8.1f}{pattern:10.1f}{self.compiling:11}"


def matrix(rows: int) -> ns.SparseTensor:
    """A random CSR matrix of an even number of columns, and about ``ENTRIES`` entries.

    >>> matrix(400).shape
    torch.Size([400, 600])
    """
    columns, per_row = rows // 4 * 6, ENTRIES // rows
    chosen = torch.rand(rows, columns).topk(per_row, 1).indices.sort(1).values
    starts = torch.arange(0, rows * per_row + 1, per_row)
    return ns.from_csr(starts.int(), chosen.flatten().int(), torch.randn(rows * per_row), (rows, columns))


def square(rows: int) -> ns.SparseTensor:
    """A random square CSR matrix, such as the adjacency matrix of a graph."""
    return matrix(rows)[:, :rows].contiguous()


def operator(row: Callable[[Given], Any]) -> Maker:
    """Calls of an operator of the table on matrices of new sizes."""

    def maker(rows: int) -> Call:
        S = matrix(rows)
        columns = S.shape[1]
        given = Given(S, torch.randn(rows, columns), torch.randn(columns, 8), torch.randn(columns), torch.randn(rows))
        return lambda: row(given)

    return maker


def widths(A: ns.SparseTensor) -> Maker:
    """SpMM with new numbers of columns."""

    def maker(width: int) -> Call:
        X = torch.randn(A.shape[1], width)
        return lambda: ns.einsum("ij,jk->ik", A, X)

    return maker


def batches(layer: torch.nn.Module) -> Maker:
    """Forward and backward pass of a sparse linear layer with new numbers of rows."""

    def maker(rows: int) -> Call:
        x = torch.randn(rows, 400, requires_grad=True)
        return lambda: layer(x).sum().backward()

    return maker


def graphs(layer: torch.nn.Module) -> Maker:
    """Forward and backward pass of a graph layer on new graphs."""

    def maker(nodes: int) -> Call:
        edges, x = torch.randint(nodes, (2, ENTRIES)), torch.randn(nodes, 32, requires_grad=True)
        return lambda: layer(x, edges).sum().backward()

    return maker


def others() -> dict[str, tuple[Maker, Sequence[int]]]:
    """Calls that the table of operators lacks, with their sizes."""
    return {
        "einsum ij,jk->ik, new widths": (widths(matrix(400)), WIDTHS),
        "SparseLinear, forward and backward": (batches(ns.nn.SparseLinear(400, 400, density=ENTRIES / 160_000)), WIDTHS),
        "GCNConv, forward and backward": (graphs(ns.nn.GCNConv(32, 16)), ROWS_OF),
    }


def cases() -> dict[str, tuple[Maker, Sequence[int]]]:
    """All rows of the benchmark."""
    return others() | {name: (operator(row), ROWS_OF) for name, row in OPERATORS.items()}


def timed(call: Call) -> float:
    """CPU milliseconds of a call; one thread runs, so that other programs on the machine do not count."""
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1e3


def measure(maker: Maker, sizes: Sequence[int], calls: int = CALLS) -> Row:
    """Compare calls with sizes not seen and with seen ones, in turns."""
    order = list(sizes)
    random.Random(0).shuffle(order)
    known, order = order[: len(order) // WARM], order[len(order) // WARM :]
    for size in known:
        maker(size)()
    seen, unseen, again, compiling = [], [], [], 0
    gc.collect()
    gc.disable()
    for at, size in enumerate(order[:calls]):
        ready, call = counts.ready, maker(size)
        taken = timed(call)
        if counts.ready == ready:
            unseen.append(taken)
        compiling += counts.ready != ready
        call = maker(known[at % len(known)])
        ready, taken = counts.ready, timed(call)
        if counts.ready == ready:
            seen.append(taken)
            again.append(timed(call))
    gc.enable()
    return Row(seen, unseen, again, compiling)


def rows(names: Sequence[str], calls: int) -> Iterator[tuple[str, Row]]:
    """Measure the rows whose names contain one of the given texts, or all rows."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, (maker, sizes) in cases().items():
        if not names or any(part in name for part in names):
            row = measure(maker, sizes, calls)
            if row.unseen and row.seen:
                yield name, row
            else:
                print(f"{name}: every call compiles", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Print a line per row."""
    options = _parser().parse_args(arguments)
    if options.json is not None:
        Path(options.json).write_text(json.dumps({name: vars(row) for name, row in rows(options.operators, options.calls)}))
        return 0
    with ExitStack() as stack:
        try:
            before = _at(stack.enter_context(tree_of(commit_of(options.base))), options) if options.base else {}
        except WorktreeError as error:
            print(error, file=sys.stderr)
            return 2
    print(HEAD + ("   before     times" if before else ""))
    gains = []
    for name, row in rows(options.operators, options.calls):
        line = row.text(name)
        if name in before:
            line += f"{median(before[name].unseen):9.2f}"
            if before[name].overhead > COSTLY:
                gains.append(before[name].overhead / max(row.overhead, 1e-3))
                line += f"{gains[-1]:10.1f}"
        print(line, flush=True)
    if gains:
        print(f"cost of a new size before over now, {len(gains)} rows: median {median(gains):.1f}, lowest {min(gains):.1f}")
    return 0


def _at(tree: Path, options: argparse.Namespace) -> dict[str, Row]:
    """The rows of another working tree."""
    results = tree / "new_sizes.json"
    run_module(tree, {}, "benchmarks.new_sizes", *options.operators, "--calls", str(options.calls), "--json", str(results))
    return {name: Row(**row) for name, row in json.loads(results.read_text()).items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.new_sizes", description="What does a size not seen before cost?")
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="only rows whose names contain one of these texts")
    parser.add_argument("--base", help="a commit to measure as well")
    parser.add_argument("--calls", type=int, default=CALLS, help="sizes not seen per row")
    parser.add_argument("--json", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
