"""Tables of a recorded run, compared with the bars of the project (``bars.py``).

    python -m benchmarks.report .benchmarks/results.json

prints the tables of docs/performance.md for the output of ``make bench``, with the bars. ``--each`` also prints every ratio, lowest first.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from .bars import LARGE, ROWS, Row
from .records import Record
from .wording import worded

LONGEST = 32  # characters of a case name in a table
RATIOS = frozenset(row.kernel for row in ROWS)
SHARES, TYPES = "share", "types"  # kernels of records with separate tables


def tables(records: Sequence[Record], bars: bool = True) -> str:
    """All tables as Markdown: ratios of kernels, shares of limits, other data types, and times of calls.

    Args:
        records: the records of a run.
        bars: whether to include the bar of each row, and whether it is met.
    """
    shown = table if bars else _without_bars
    parts = [
        shown(RATIO_HEAD, _worded(ratio_rows(records))),
        _captioned(SHARE_CAPTION, shown(SHARE_HEAD, _worded(share_rows(records)))),
        _captioned(TYPE_CAPTION, shown(TYPE_HEAD, _worded(type_rows(records)))),
        _captioned(TIME_CAPTION, shown(TIME_HEAD, _worded(time_rows(records)))),
    ]
    return "\n\n".join(part for part in parts if part)


def _worded(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [tuple(map(worded, row)) for row in rows]


def _without_bars(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    columns = [at for at, name in enumerate(head) if name not in (BAR, MET)]
    return table(tuple(head[at] for at in columns), [tuple(row[at] for at in columns) for row in rows])


BAR, MET = "bar", "met"
SHARE_CAPTION = (
    "Bandwidth, arithmetic throughput and parallel efficiency, as shares of the limits that the machine reaches in the same run, "
    "and the memory that a call needs beyond its operands and its result:"
)
TYPE_CAPTION = (
    "Time and bytes read with other data types, relative to float32 values with int32 indices. "
    "Above 1x, the other type is slower, or larger:"
)
TIME_CAPTION = (
    "Fixed costs, as median times. The calls take turns with other measurements, so caches are cold; "
    "the same call in a loop takes less time:"
)


def _captioned(caption_text: str, rows: str) -> str:
    return f"{caption_text}\n\n{rows}" if rows else ""


RATIO_HEAD = ("operation", "threads", "cases", "geometric mean", BAR, f"lowest (nnz >= {LARGE:,})", BAR, MET)
SHARE_HEAD = ("measure", "threads", "cases", "mean", "worst case", BAR, MET)
TYPE_HEAD = ("kernel", "data type", "threads", "cases", "time", "bytes")
TIME_HEAD = ("call", "time", "peer", BAR, MET)


def ratio_rows(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    """One row per bar and thread count."""
    together = list(records)
    for row in ROWS:
        selected = sorted(filter(row.takes, together), key=_threads)
        for threads, group in groupby(selected, _threads):
            yield _ratio_row(row, threads, list(group))


def _threads(record: Record) -> int:
    return int(record["threads"])


def _ratio_row(row: Row, threads: int, group: list[Record]) -> tuple[str, ...]:
    mean = geometric_mean(map(row.ratio, group))
    worst = min((r for r in group if r["nnz"] >= LARGE), key=row.ratio, default=None)
    reached = [(mean, row.mean), (row.ratio(worst) if worst else None, row.worst)]
    verdicts = [value >= bar for value, bar in reached if value is not None and bar is not None]
    return (
        row.title,
        str(threads),
        str(len(group)),
        f"{mean:.2f}x",
        _bar(row.mean),
        f"{row.ratio(worst):.2f}x {_short(worst['matrix'])}" if worst else "",
        _bar(row.worst),
        _met(all(verdicts)) if verdicts else "",
    )


def _bar(bar: float | None) -> str:
    return "" if bar is None else f"{bar:g}x"


def _met(met: bool) -> str:
    return "yes" if met else "**no**"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 3] + "..."


def each(records: Iterable[Record]) -> str:
    """One line per record: ratios of medians and minima, the measured case, and all peers."""
    ratios = sorted((r for r in records if r["kernel"] in RATIOS and "ratio" in r), key=lambda r: (r["kernel"], float(r["ratio"])))
    return "\n".join(
        f"{r['kernel']:<9} {r['ratio']:6.2f}x {r['ratio_of_minima']:6.2f}x  {_seconds(r['seconds']):>9}  threads={r['threads']} "
        f"nnz={r['nnz']:<8} {r['matrix']:<{LONGEST}}  {_variant(r)}  {_others(r)}"
        for r in ratios
    )


def _variant(record: Record) -> str:
    """The keys that identify a record within its kernel."""
    return " ".join(f"{name}={record[name]}" for name in record.get("variant", ()))


def _others(record: Record) -> str:
    peers = [f"{name} {peer['ratio']:.2f}x" for name, peer in record["peers"].items()]
    return ", ".join(peers + [f"beside: {name} {peer['ratio']:.2f}x" for name, peer in record["beside"].items()])


def share_rows(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    """One row per limit and thread count: the share of the limit reached, or the memory used beyond the minimum."""

    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        if record["kernel"] == SHARES:
            groups.setdefault((record["what"], record["threads"]), []).append(record)
    for (what, threads), group in groups.items():
        bar, sign = group[0]["bar"], -1 if "at_most" in group[0]["bar"] else 1
        worst = min(group, key=lambda r: sign * float(r["share"]))
        limit = next(iter(bar.values()), None)
        yield (
            what,
            str(threads),
            str(len(group)),
            f"{statistics.mean(r['share'] for r in group):.2f}",
            f"{worst['share']:.2f} {_short(worst['matrix'])}",
            "" if limit is None else f"{next(iter(bar)).replace('_', ' ')} {limit:g}",
            "" if limit is None else _met(sign * worst["share"] >= sign * limit),
        )


def type_rows(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    """Time and traffic of each data type, relative to float32 with int32 indices."""

    def key(record: Record) -> tuple[str, str, int]:
        return record["what"], record["as"], record["threads"]

    for (what, kind, threads), records_of in groupby(sorted((r for r in records if r["kernel"] == TYPES), key=key), key):
        group = list(records_of)
        times, sizes = (geometric_mean(r[name] for r in group) for name in ("time", "moved"))
        yield what, kind, str(threads), str(len(group)), f"{times:.2f}x", f"{sizes:.2f}x"


def time_rows(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    """One row per call that is judged by its time instead of a ratio."""
    for record in records:
        if record["kernel"] in RATIOS | {SHARES, TYPES}:
            continue
        ours, theirs, bar = record["seconds"], record.get("peer_seconds"), record["bar"]
        limit = bar.get("at_most") or theirs + bar["above_peer"]
        shown = f"at most {_seconds(limit)}" if "at_most" in bar else _above(bar["above_peer"])
        peer = f"{_seconds(theirs)} ({record['peer']})" if theirs is not None else ""
        yield record["what"], _seconds(ours), peer, shown, _met(ours <= limit)


def _above(seconds: float) -> str:
    return f"at most {_seconds(seconds)} above torch" if seconds else "no slower than torch"


def _seconds(seconds: float) -> str:
    """Format a time in a suitable unit.

    >>> _seconds(9e-6), _seconds(1.25)
    ('9.0 µs', '1.25 s')
    """
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table, or an empty string if there are no rows."""
    if not rows:
        return ""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def caption(machine: Mapping[str, Any]) -> str:
    """Description of the machine and the library versions."""
    cpu = machine.get("cpu", {}).get("brand_raw", machine.get("processor", ""))
    versions = "".join(f", {name} {version}" for name, version in machine.get("libraries", {}).items())
    return f"{machine.get('cores', '?')} cores, {cpu}, Python {machine['python_version']}{versions}"


def main(arguments: Sequence[str]) -> int:
    """Print the tables of a results file; return 2 if no file is given."""
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
