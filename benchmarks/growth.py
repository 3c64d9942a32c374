"""Scaling of times with nonzeros and threads: ``python -m benchmarks.growth`` writes docs/growth.md and its plots.

Matrices are uniform with ten nonzeros per row, so that only the size changes. Times are medians of our calls; no peers are measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch

import numscorch as ns

from .compat import Pattern
from .generated import uniform

ROOT = Path(__file__).parent.parent / "docs"
IN_ROW, WIDTH = 10, 64
SIZES = tuple(10**power for power in range(2, 8))
SECONDS = 0.3  # per size and thread count, with at least 3 and at most 50 calls
RISE = 2.0  # factor of time per nonzero between decades that counts as a cliff, if both fit the same caches

Make = Callable[[ns.SparseTensor], Callable[[], object]]


@dataclass(frozen=True)
class Kernel:
    """A function that prepares the call, its largest number of nonzeros, and the bytes that it accesses per matrix row."""

    make: Make
    most: int
    in_row: int


def _dense(A: ns.SparseTensor) -> torch.Tensor:
    return torch.ones(A.shape[1], WIDTH)


def _spmv(A: ns.SparseTensor) -> Callable[[], object]:
    x = torch.ones(A.shape[1])
    return lambda: ns.einsum("ij,j->i", A, x)


def _spmm(A: ns.SparseTensor) -> Callable[[], object]:
    B = _dense(A)
    return lambda: ns.einsum("ij,jk->ik", A, B)


def _sddmm(A: ns.SparseTensor) -> Callable[[], object]:
    B = _dense(A)
    return lambda: ns.einsum("ij,ik,jk->ij", A, B, B)


def _spgemm(A: ns.SparseTensor) -> Callable[[], object]:
    return lambda: ns.einsum("ij,jk->ik", A, A)


def _sum(A: ns.SparseTensor) -> Callable[[], object]:
    B = ns.SparseTensor(
        Pattern(A.format, A.shape, (A.pattern.arrays[0], (A.pattern.arrays[1][0], A.pattern.arrays[1][1].clone()))), A.values
    )
    return lambda: A + B


def _to_csc(A: ns.SparseTensor) -> Callable[[], object]:
    return lambda: ns.SparseTensor.trusted(Pattern(A.format, A.shape, A.pattern.arrays), A.values).to(ns.CSC)


def _softmax(A: ns.SparseTensor) -> Callable[[], object]:
    return lambda: ns.softmax(A, 1)


def _mttkrp(A: ns.SparseTensor) -> Callable[[], object]:
    rows, columns = A.indices()
    T = ns.from_coo(torch.stack([rows, columns // 100, columns % 100]), A.values, (A.shape[0], A.shape[1] // 100 + 1, 100), ns.CSF(3))
    B, C = torch.ones(T.shape[1], 16), torch.ones(100, 16)
    return lambda: ns.einsum("ijk,jl,kl->il", T, B, C)


PAIR, VECTOR, ROW = 8 * IN_ROW, 4, 4 * WIDTH  # bytes: coordinates and values of a sparse row, a scalar, a dense row
KERNELS = {
    "SpMV": Kernel(_spmv, SIZES[-1], PAIR + 2 * VECTOR),
    "SpMM, k = 64": Kernel(_spmm, SIZES[-1], PAIR + 2 * ROW),
    "SDDMM, k = 64": Kernel(_sddmm, SIZES[-1], 2 * PAIR + 2 * ROW),
    "SpGEMM, A A": Kernel(_spgemm, 10**6, (2 + IN_ROW) * PAIR),
    "sum of two": Kernel(_sum, SIZES[-1], 3 * PAIR),
    "CSR to CSC": Kernel(_to_csc, SIZES[-1], 2 * PAIR),
    "row softmax": Kernel(_softmax, SIZES[-1], 2 * PAIR),
    "MTTKRP, k = 16": Kernel(_mttkrp, 10**6, PAIR + 4 * 16),
}


@dataclass(frozen=True)
class Point:
    """Seconds of a call with these nonzeros and threads, and the bytes that it accesses."""

    nnz: int
    threads: int
    seconds: float
    touched: int


@cache
def matrix(nnz: int) -> ns.SparseTensor:
    """A square matrix with about ``nnz`` nonzeros."""
    rows = max(nnz // IN_ROW, IN_ROW)
    return uniform(rows, rows, IN_ROW)


def measured(kernel: Kernel, threads: Sequence[int], sizes: Sequence[int]) -> Iterator[Point]:
    """Times of a kernel for each number of nonzeros up to its largest one; thread counts take turns."""
    for size in (size for size in sizes if size <= kernel.most):
        A = matrix(size)
        call = kernel.make(A)
        for count in threads:
            torch.set_num_threads(count)
            call()
            call()
        times: dict[int, list[float]] = {count: [] for count in threads}
        stop = time.perf_counter() + SECONDS * len(threads)
        while min(map(len, times.values())) < 3 or (time.perf_counter() < stop and len(times[threads[0]]) < 50):
            for count in threads:
                torch.set_num_threads(count)
                start = time.perf_counter()
                call()
                times[count].append(time.perf_counter() - start)
        for count in threads:
            yield Point(A.nnz, count, statistics.median(times[count]), A.shape[0] * kernel.in_row)


def cliffs(points: Sequence[Point], caches: Sequence[int]) -> list[str]:
    """Decades where the time per nonzero grows by more than ``RISE``, although the accessed bytes fit the same caches."""
    messages = []
    for before, after in pairwise(points):
        rise = (after.seconds / after.nnz) / (before.seconds / before.nnz)
        levels = [sum(point.touched > size for size in caches) for point in (before, after)]
        if rise > RISE and levels[0] == levels[1]:
            messages.append(f"{before.nnz:,} to {after.nnz:,}: {rise:.1f}")
    return messages


def plot(name: str, points: Sequence[Point], path: Path) -> None:
    """Plot nanoseconds per nonzero against nonzeros on logarithmic axes, with one line per thread count."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = name
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.2))
    for threads, style in zip(sorted({point.threads for point in points}), ("o-", "s--", "^:", "d-."), strict=False):
        line = [point for point in points if point.threads == threads]
        axes.loglog([p.nnz for p in line], [1e9 * p.seconds / p.nnz for p in line], style, label=f"{threads} thread{'s' * (threads > 1)}")
    axes.set(xlabel="nonzeros", ylabel="ns per nonzero", title=name)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


HEAD = """# Scaling with size

How the time of a kernel grows with the number of nonzeros, and how much a second thread gains. The matrices have {in_row} nonzeros per
row at random columns. Times are medians in nanoseconds per nonzero; calls with different thread counts take turns. `python -m
benchmarks.growth` writes this page; it needs the extra `bench`.

* **Up to a few thousand nonzeros**, the overhead of the call dominates. It is a few microseconds if the result is dense or has the
  pattern of an operand, and tens to hundreds of microseconds if the result has a new pattern.
* **Larger operands** exceed the private caches ({own} KiB per core), and then the shared cache ({shared} MiB). From there on, memory
  bandwidth limits the speed. These are the caches of the machine that wrote this page.

A *cliff* is an increase of the time per nonzero by more than a factor of two between two sizes, one decade apart, whose operands fit
the same cache. An increase where the operands start to exceed a cache is expected, and is not a cliff. The column "speedup" divides the
time with one thread by the time with all threads.
"""


def table(points: Sequence[Point]) -> str:
    """A Markdown table with one row per size."""
    threads = sorted({point.threads for point in points})
    lines = [
        "| nonzeros | " + " | ".join(f"{count} thread{'s' * (count > 1)}" for count in threads) + " | speedup |",
        "|" + "---|" * (len(threads) + 2),
    ]
    for nnz in sorted({point.nnz for point in points}):
        seconds = {point.threads: point.seconds for point in points if point.nnz == nnz}
        cells = " | ".join(f"{1e9 * seconds[count] / nnz:.2f}" for count in threads)
        lines.append(f"| {nnz:,} | {cells} | {seconds[threads[0]] / seconds[threads[-1]]:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all kernels, and write the page and its plots."""
    from .compat import host

    threads = [1, torch.get_num_threads()] if torch.get_num_threads() > 1 else [1]
    caches = (host().own_cache, host().cache)
    parts = [HEAD.format(in_row=IN_ROW, own=caches[0] >> 10, shared=caches[1] >> 20)]
    (ROOT / "plots").mkdir(exist_ok=True)
    for name, kernel in KERNELS.items():
        points = list(measured(kernel, threads, SIZES))
        file = "".join(c for c in name.lower().replace(" ", "-") if c.isalnum() or c == "-") + ".svg"
        plot(name, points, ROOT / "plots" / file)
        messages = [
            f"{count} thread{'s' * (count > 1)}, {text}"
            for count in threads
            for text in cliffs([p for p in points if p.threads == count], caches)
        ]
        summary = "Cliffs: " + "; ".join(messages) + "." if messages else "No cliffs."
        parts.append(f"## {name}\n\n![{name}](plots/{file})\n\n{table(points)}\n\n{summary}\n")
        print(parts[-1], file=sys.stderr)
    (ROOT / "growth.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
