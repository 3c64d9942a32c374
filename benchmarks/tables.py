"""Tables of docs/performance.md for a recorded run; ``python docs/refresh.py`` writes them.

The run is the newest full run in the history, or else the newest quick run, or else the newest partial run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import geometric_mean, median

from .history import HISTORY, SHORT, HistoryError, read_history, utc
from .peers import LABELS
from .records import SUITES as SUITE_ORDER, Record, Run, case_of
from .report import table, tables
from .wording import OPERATIONS, worded

PEER_HEAD = ("peer", "threads", "cases", "geometric mean", "lowest", "highest")
DENSE = "F.linear, dense"  # the peer of pruned layers, which computes with all weights
OVERHEAD = "overhead"  # fixed costs of calls on tiny matrices, which the summary leaves out
SLOW = 0.9  # ratio below which the summary lists a case
SUITES = {"full": "the whole suite", "quick": "the quick suite"}
RATE_HEAD = ("threads", "GB/s", "Gflop/s")


def recorded() -> Run:
    """The run to report.

    Raises:
        HistoryError: the history is empty.
    """
    runs, _ = read_history(HISTORY)
    if not runs:
        raise HistoryError(f"{HISTORY} holds no run; make bench, then make bench-record")
    return min(reversed(runs), key=lambda run: SUITE_ORDER.index(run.suite))  # min returns the first minimum, the newest run


def measurements() -> str:
    """A summary, the machine, a table of all operations, and a table of peers per kernel."""
    run = recorded()
    details = (f"## All operations, against the fastest peer\n\n{tables(run.records, bars=False)}", "## Each peer", *_kernels(run.records))
    return "\n\n".join(part for part in (origin(run), *summary(run.records), _machine(run), *details) if part)


def summary(records: Sequence[Record]) -> Iterator[str]:
    """The geometric mean of all ratios, a table with one row per kernel, and the cases in which numscorch is slowest."""
    compared = [record for record in records if "ratio" in record and record["kernel"] != OVERHEAD]
    if not compared:
        return
    ratios = [float(record["ratio"]) for record in compared]
    faster = sum(ratio > 1 for ratio in ratios)
    below = sum(float(record["high"]) < 1 for record in compared)
    yield "## Results"
    yield (
        f"The geometric mean of the ratios to the fastest peer is {geometric_mean(ratios):.2f}x over {len(ratios)} cases. "
        "Cases that measure the overhead of calls are not included. "
        f"numscorch is faster in {faster} cases and slower in {len(ratios) - faster}; in {below} of these, "
        "the whole interval is below 1x. A case is an operation on one matrix with one thread count."
    )
    if others := [float(record["ratio"]) for record in compared if DENSE not in str(record["peer"])]:
        yield (
            f"The peer of {len(ratios) - len(others)} of these cases, pruned linear layers, is the dense layer, which does more work. "
            f"Without them, the geometric mean is {geometric_mean(others):.2f}x."
        )
    threads = sorted({int(record["threads"]) for record in compared})
    head = ("operation", "cases", *(f"{count} thread{'s' * (count > 1)}" for count in threads), "slower in")
    yield table(head, [_operation(text, members, threads) for text, members in _by_operation(compared)])
    yield "## Where numscorch is slower"
    yield (
        f"The cases with a ratio below {SLOW:g}x whose whole interval is below 1x for at least one thread count. "
        "Most of them are of three kinds: small operands, where the overhead of the call dominates; "
        "matrices with a few very long rows; and conversions."
    )
    yield table(("section", "case", "nonzeros", "fastest peer", *head[2:-1]), list(_slow(compared, threads)))


def _by_operation(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    for kernel, text in OPERATIONS.items():
        if members := [record for record in records if record["kernel"] == kernel]:
            yield text, members


def _operation(text: str, records: Sequence[Record], threads: Sequence[int]) -> tuple[str, ...]:
    means = ([float(record["ratio"]) for record in records if record["threads"] == count] for count in threads)
    slower = sum(float(record["ratio"]) < 1 for record in records)
    return text, str(len(records)), *(f"{geometric_mean(ratios):.2f}x" if ratios else "" for ratios in means), str(slower or "")


def _slow(records: Sequence[Record], threads: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """One row per case with a significantly low ratio, lowest first; its fastest peer is that of the lowest ratio."""
    cases: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        cases.setdefault((str(record["kernel"]), _without_threads(record)), []).append(record)
    low = {name: group for name, group in cases.items() if any(float(r["ratio"]) < SLOW and float(r["high"]) < 1 for r in group)}
    for (kernel, case), group in sorted(low.items(), key=lambda item: min(float(r["ratio"]) for r in item[1])):
        worst = min(group, key=lambda record: float(record["ratio"]))
        ratios = ({int(record["threads"]): f"{record['ratio']:.2f}x" for record in group}.get(count, "") for count in threads)
        yield tuple(map(worded, (kernel, case, f"{worst['nnz']:,}", str(worst["peer"]), *ratios)))


def _without_threads(record: Record) -> str:
    return case_of(record).removesuffix(f", {record['threads']} threads").removesuffix(", 1 thread")


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
    return f"## The machine\n\nBandwidth and arithmetic throughput, measured in the same run:\n\n{table(RATE_HEAD, rows)}" if rows else ""


def _kernels(records: Sequence[Record]) -> Iterator[str]:
    """One section per kernel, ordered by name."""
    compared = sorted((record for record in records if record.get("peers")), key=lambda record: str(record["kernel"]))
    for kernel, group in groupby(compared, lambda record: str(record["kernel"])):
        members = list(group)
        yield f"### {kernel}"
        yield f"{OPERATIONS[kernel]}." if kernel in OPERATIONS else ""
        yield table(PEER_HEAD, [tuple(map(worded, row)) for row in _peers(members)])
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
        return f"{ratio(record):.2f}x{interval} {_without_threads(record)}"

    label = next((record["labels"][name] for record in records if name in (record.get("labels") or ())), "no peer")
    title = name if kind == "peers" else f"baseline: {name} ({LABELS.get(name, label)})"
    mean = geometric_mean(map(ratio, records))
    return title, str(threads), str(len(records)), f"{mean:.2f}x", edge(min(records, key=ratio)), edge(max(records, key=ratio))


def _costs(records: Sequence[Record]) -> str:
    """Medians of compile time, load time and overhead, if recorded."""
    parts = [
        f"{cost} {median(values) * scale:.{digits}f} {unit}"
        for name, cost, scale, digits, unit in COSTS
        if (values := [float(record[name]) for record in records if record.get(name) is not None])
    ]
    return f"Medians: {', '.join(parts)}." if parts else ""


COSTS = (
    ("compile_seconds", "compile time", 1, 2, "s"),
    ("load_seconds", "load time from the cache", 1e3, 1, "ms"),
    ("overhead_seconds", "overhead of a call outside its kernels", 1e6, 1, "µs"),
)
