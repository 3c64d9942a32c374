"""The overhead of warm calls on small operands, beside torch's CSR: ``python -m benchmarks.calls [ROW ...] [--rounds N]``.

Rows of ``72 matrices`` call one expression on matrices of different sizes in turn, the others repeat a call on one 62 x 62 matrix. Ours
and the peer's calls alternate in short turns; times are the fastest turn's. Results are compared first. A peer of a row without one
of its own is torch's product of the same matrices with a vector, the scale of such calls on a machine.

    ours, peer    microseconds per call
    ratio         ours over the peer's
    bar           the largest ratio that is good enough
"""

from __future__ import annotations

import argparse
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch

import numscorch as ns

SIZES = range(24, 96)
SIZE, DENSITY, BATCH = 62, 0.1, 8
ROUNDS, CALLS = 200, 72  # turns of each side, and calls in a turn
Call = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """Functions with the operands of their calls, which are used in turn; the bar is a ratio."""

    name: str
    bar: float
    ours: Call
    operands: Sequence[tuple[Any, ...]]
    peer: Call
    of_peer: Sequence[tuple[Any, ...]]
    is_same: bool = True  # whether both sides compute the same


def dense_matrix(size: int) -> torch.Tensor:
    """A random square matrix with zeros."""
    generator = torch.Generator().manual_seed(size)
    return torch.rand(size, size, generator=generator) * (torch.rand(size, size, generator=generator) < DENSITY)


def run_of(plan: Any, *operands: Any) -> Any:
    """Call a plan."""
    return plan(*operands)


def layer(A: Any, X: Any, W: Any, b: Any) -> Any:
    """A layer of a graph network."""
    return torch.relu(A @ (X @ W) + b)


def attention(A: Any, Q: Any, K: Any) -> Any:
    """Attention along the edges of a graph."""
    return torch.softmax(A * (Q @ K.t()), 1) @ K


def rows() -> Iterator[Row]:
    """All rows."""
    dense = [dense_matrix(size) for size in SIZES]
    ours, theirs = [ns.from_torch(D, ns.CSR) for D in dense], [D.to_sparse_csr() for D in dense]
    vectors, batches = [torch.rand(size) for size in SIZES], [torch.rand(BATCH, size) for size in SIZES]
    of_torch = list(zip(theirs, vectors, strict=True))
    pairs = list(zip(ours, vectors, strict=True))
    yield Row("72 matrices: einsum", 1.3, ns.einsum, [("ij,j->i", *pair) for pair in pairs], operator.matmul, of_torch)
    yield Row("72 matrices: A @ x", 1.3, operator.matmul, pairs, operator.matmul, of_torch)
    linear, of_linear = list(zip(batches, ours, strict=True)), list(zip(batches, theirs, strict=True))
    yield Row("72 matrices: x @ W.t()", 0.8, lambda x, W: x @ W.t(), linear, lambda x, W: x @ W.t(), of_linear)
    plans = [(ns.plan("ij,j->i", *pair), *pair) for pair in pairs]
    yield Row("72 matrices: plan", 1.05, run_of, plans, operator.matmul, of_torch)
    D, x, out = dense_matrix(SIZE), torch.rand(SIZE), torch.empty(SIZE)
    A, S, B = ns.from_torch(D, ns.CSR), D.to_sparse_csr(), ns.from_torch(D.t().contiguous(), ns.CSR)
    scale = operator.matmul, [(S, x)]
    yield Row("SpMV", 6 / 7.6, operator.matmul, [(A, x)], *scale)
    yield Row("einsum with out=", 7 / 7.6, lambda A, x: ns.einsum("ij,j->i", A, x, out=out), [(A, x)], *scale)
    yield Row("mv with out=", 7 / 7.6, lambda A, x: torch.mv(A, x, out=out), [(A, x)], *scale)
    yield Row("sum", 5 / 7.6, torch.sum, [(A,)], *scale, is_same=False)
    yield Row("A + B", 20 / 7.6, operator.add, [(A, B)], *scale, is_same=False)
    yield Row("A @ A.t()", 35 / 7.6, lambda A: A @ A.t(), [(A,)], *scale, is_same=False)
    features, weight, bias = torch.rand(SIZE, 8), torch.rand(8, 4), torch.rand(4)
    layers = [(A, features, weight, bias)]
    yield Row("fuse of a layer", 1.0, ns.fuse(layer), layers, layer, layers)
    edges = [(A, torch.rand(SIZE, 8), torch.rand(SIZE, 8))]
    yield Row("fuse of attention", 1.0, ns.fuse(attention), edges, attention, edges)


def microseconds(call: Call, operands: Sequence[tuple[Any, ...]]) -> float:
    """The time of a call in a turn."""
    given = list(islice(cycle(operands), CALLS))
    started = time.perf_counter()
    for each in given:
        call(*each)
    return (time.perf_counter() - started) / len(given) * 1e6


def measured(row: Row, rounds: int) -> tuple[float, float]:
    """Microseconds of a call of ours and of the peer's: the fastest of alternating turns.

    Raises:
        AssertionError: the results differ.
    """
    for _ in range(3):  # a call may compile, and the following ones may remember
        for ours, theirs in zip(row.operands, row.of_peer, strict=True):
            result, expected = row.ours(*ours), row.peer(*theirs)
            if row.is_same:
                torch.testing.assert_close(result, expected)
    turns = [(microseconds(row.ours, row.operands), microseconds(row.peer, row.of_peer)) for _ in range(rounds)]
    first, second = zip(*turns, strict=True)
    return min(first), min(second)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", help="parts of names; all rows by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each side (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(default: %(default)s)")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    warnings.filterwarnings("ignore", "Sparse CSR tensor support")
    print(f"{'row':28}{'ours':>8}{'peer':>8}{'ratio':>8}{'bar':>8}")
    for row in rows():
        if not chosen.rows or any(name in row.name for name in chosen.rows):
            ours, peer = measured(row, chosen.rounds)
            print(f"{row.name:28}{ours:8.1f}{peer:8.1f}{ours / peer:8.2f}{row.bar:8.2f}")


if __name__ == "__main__":
    main()
