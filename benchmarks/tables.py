"""Tables of docs/performance.md for a recorded run; ``python docs/refresh.py`` writes them.

The run is the newest full run in the history, or else the newest quick run, or else the newest partial run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import geometric_mean, median

from .history import HISTORY, SHORT, HistoryError, read_history, utc
from .records import SUITES as SUITE_ORDER, Record, Run, case_of
from .report import table, tables

PEER_HEAD = ("against", "threads", "cases", "geometric mean", "lowest", "highest")
SUITES = {"full": "the whole suite", "quick": "the quick suite"}
RATE_HEAD = ("threads", "GB/s", "Gflop/s")


def recorded() -> Run:
    """The run to report.

    Raises:
        HistoryError: the history is empty.
    """
    runs, _ = read_history(HISTORY)
    if not runs:
        raise HistoryError(f"{HISTORY} holds no run to tell of; make bench, then make bench-record")
    return min(reversed(runs), key=lambda run: SUITE_ORDER.index(run.suite))  # min returns the first minimum, the newest run


def measurements() -> str:
    """The machine, a table of all kernels, and a table of peers per kernel."""
    run = recorded()
    return "\n\n".join(part for part in (origin(run), _machine(run), tables(run.records, bars=False), *_kernels(run.records)) if part)


def origin(run: Run) -> str:
    """Date, commit and machine of the run."""
    machine, versions = run.own["machine"], run.own.get("versions", {})
    count = sum(1 for record in run.records if record.get("peers"))
    on = f"{machine.get('cores', '?')} cores, {machine.get('processor', 'an unknown processor')}"
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "numscorch")
    missing = f" Not installed there: {', '.join(run.own['missing'])}." if run.own.get("missing") else ""
    return (
        f"Recorded on {utc(run.time):%d %B %Y} at commit `{run.commit[:SHORT]}`{' and changes' if run.dirty else ''}: "
        f"{SUITES.get(run.suite, 'a part of the suite')}, {count} cases that have peers; {on}; {libraries}.{missing}"
    )


def _machine(run: Run) -> str:
    rows: list[tuple[str, ...]] = [
        (threads, f"{roof['bytes_per_second'] / 1e9:.1f}", f"{roof['flops_per_second'] / 1e9:.1f}")
        for threads, roof in sorted((run.own.get("roofs") or {}).items())
    ]
    return f"What the machine reaches, measured in the same run:\n\n{table(RATE_HEAD, rows)}" if rows else ""


def _kernels(records: Sequence[Record]) -> Iterator[str]:
    """One section per kernel, ordered by name."""
    compared = sorted((record for record in records if record.get("peers")), key=lambda record: str(record["kernel"]))
    for kernel, group in groupby(compared, lambda record: str(record["kernel"])):
        members = list(group)
        yield f"## {kernel}"
        yield table(PEER_HEAD, list(_peers(members)))
        yield _costs(members)


def _peers(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    """One row per peer and thread count, then the baselines that are not peers."""
    for kind in ("peers", "beside"):
        pairs = sorted({(name, record["threads"]) for record in records for name in record.get(kind) or ()})
        for name, threads in pairs:
            matching = [record for record in records if record["threads"] == threads and name in (record.get(kind) or ())]
            yield _peer(name, threads, kind, matching)


def _peer(name: str, threads: int, kind: str, records: Sequence[Record]) -> tuple[str, ...]:
    def ratio(record: Record) -> float:
        return float(record[kind][name]["ratio"])

    def edge(record: Record) -> str:
        measured = record[kind][name]
        interval = f" [{measured['low']:.2f}, {measured['high']:.2f}]" if "low" in measured else ""
        return f"{ratio(record):.2f}x{interval} {case_of(record).removesuffix(f', {threads} threads').removesuffix(', 1 thread')}"

    label = next((record["labels"][name] for record in records if name in (record.get("labels") or ())), "no peer")
    title = name if kind == "peers" else f"beside: {name} ({label})"
    mean = geometric_mean(map(ratio, records))
    return title, str(threads), str(len(records)), f"{mean:.2f}x", edge(min(records, key=ratio)), edge(max(records, key=ratio))


def _costs(records: Sequence[Record]) -> str:
    """Medians of compile time, load time and overhead, if recorded."""
    parts = [
        f"{word} {median(values) * scale:.{digits}f} {unit}"
        for name, word, scale, digits, unit in COSTS
        if (values := [float(record[name]) for record in records if record.get(name) is not None])
    ]
    return f"Medians: {', '.join(parts)}." if parts else ""


COSTS = (
    ("compile_seconds", "compiled in", 1, 2, "s"),
    ("load_seconds", "loaded from the cache in", 1e3, 1, "ms"),
    ("overhead_seconds", "a call takes beside the kernel", 1e6, 1, "µs"),
)
