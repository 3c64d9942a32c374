"""What was measured, against what the project asks for.

    python -m benchmarks.report .benchmarks/results.json

prints the tables of the README from what ``make bench`` wrote; with ``--each``, also every ratio, the worst first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from .harness import geometric_mean

Record = Mapping[str, Any]  # the extra_info of one benchmark

LONGEST = 32  # letters of a matrix's name in a table
LARGE = 10_000  # nonzeros from which the worst matrix counts
KERNELS = {"spmm": "SpMM, CSR x dense", "spmv": "SpMV, nnz >= 10^5", "sddmm": "SDDMM, CSR pattern"}


@dataclass(frozen=True, slots=True)
class Bar:
    """What a kernel should reach on all matrices together, and on the worst of the large ones."""

    mean: float
    worst: float | None = None


BARS = {"spmm": Bar(2.0, 1.2), "spmv": Bar(1.0), "sddmm": Bar(1.7)}


def tables(records: Sequence[Record]) -> str:
    """Both tables as Markdown: ratios of kernels, and times of calls."""
    parts = [_table(RATIO_HEAD, list(ratio_rows(records))), _table(TIME_HEAD, list(time_rows(records)))]
    return "\n\n".join(part for part in parts if part)


RATIO_HEAD = ("kernel", "k", "threads", "matrices", "geometric mean", "bar", f"worst (nnz >= {LARGE:,})", "bar", "met")
TIME_HEAD = ("call", "time", "torch", "bar", "met")


def ratio_rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    """One row for each kernel, width and thread count, and one for all widths."""

    def key(record: Record) -> tuple[int, int, int]:
        return list(KERNELS).index(record["kernel"]), record["threads"], record["k"] or 0

    ratios = sorted((r for r in records if r["kernel"] in KERNELS), key=key)
    for _, of_threads in groupby(ratios, lambda record: key(record)[:2]):
        together = list(of_threads)
        widths = [list(group) for _, group in groupby(together, key)]
        yield from (_ratio_row(group, str(group[0]["k"] or "")) for group in widths)
        if len(widths) > 1:
            yield _ratio_row(together, "all")


def _ratio_row(group: list[Record], k: str) -> tuple[str, ...]:
    kernel, threads = group[0]["kernel"], group[0]["threads"]
    bar, mean = BARS[kernel], geometric_mean(r["ratio"] for r in group)
    worst = min((r for r in group if r["nnz"] >= LARGE), key=lambda r: float(r["ratio"]), default=None)
    met = mean >= bar.mean and (bar.worst is None or worst is None or worst["ratio"] >= bar.worst)
    return (
        KERNELS[kernel],
        k,
        str(threads),
        str(len({r["matrix"] for r in group})),
        f"{mean:.2f}x",
        f"{bar.mean:.1f}x",
        f"{worst['ratio']:.2f}x {_short(worst['matrix'])}" if worst else "",
        f"{bar.worst:.1f}x" if bar.worst else "",
        "yes" if met else "**no**",
    )


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 3] + "..."


def each(records: Iterable[Record]) -> str:
    """Every ratio: of the medians, of the minima, and what was multiplied."""
    ratios = sorted((r for r in records if r["kernel"] in KERNELS), key=lambda r: (r["kernel"], float(r["ratio"])))
    return "\n".join(
        f"{r['kernel']:<6} {r['ratio']:6.2f}x {r['ratio_of_minima']:6.2f}x  {_seconds(r['seconds']):>9}  "
        f"k={r['k'] or 1:<4} threads={r['threads']} nnz={r['nnz']:<8} {r['matrix']}"
        for r in ratios
    )


def time_rows(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    """One row for each call whose time counts rather than its ratio."""
    for record in records:
        if record["kernel"] in KERNELS:
            continue
        ours, theirs, bar = record["seconds"], record.get("peer_seconds"), record["bar"]
        limit = bar.get("at_most") or theirs + bar["above_peer"]
        shown = f"at most {_seconds(limit)}" if "at_most" in bar else _above(bar["above_peer"])
        peer = f"{_seconds(theirs)} ({record['peer']})" if theirs is not None else ""
        yield record["what"], _seconds(ours), peer, shown, "yes" if ours <= limit else "**no**"


def _above(seconds: float) -> str:
    return f"at most {_seconds(seconds)} above torch" if seconds else "no slower than torch"


def _seconds(seconds: float) -> str:
    """A time in a unit that suits it.

    >>> _seconds(9e-6), _seconds(1.25)
    ('9.0 µs', '1.25 s')
    """
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def caption(machine: Mapping[str, Any]) -> str:
    """What it was measured on."""
    cpu = machine.get("cpu", {}).get("brand_raw", machine.get("processor", ""))
    versions = "".join(f", {name} {machine[name]}" for name in ("torch", "numba") if name in machine)
    return f"{machine.get('cores', '?')} cores, {cpu}, Python {machine['python_version']}{versions}"


def main(arguments: Sequence[str]) -> int:
    """Print the tables of a results file; 2 where there is none."""
    files = [argument for argument in arguments if argument != "--each"]
    if len(files) != 1:
        print("usage: python -m benchmarks.report RESULTS.json [--each]", file=sys.stderr)
        return 2
    results = json.loads(Path(files[0]).read_text())
    records = [b["extra_info"] for b in results["benchmarks"] if "kernel" in b["extra_info"]]
    print(tables(records))
    print(f"\n{caption(results['machine_info'])}.")
    if "--each" in arguments:
        print(f"\n{each(records)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
