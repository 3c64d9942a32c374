"""History of recorded runs in the repository, read by the gate and the dashboard.

    python -m benchmarks.history add .benchmarks/results.json     # after make bench, at a commit
    python -m benchmarks.history                                  # list the runs

A run is stored as ``history/runs/<UTC time>-<commit>-<fingerprint>-<suite>.json``: its results file without the times of turns, one line
per benchmark. Kernel sources are stored as ``history/kernels/<name>.json``. The name of a kernel is the hash of its source, so that runs
share the file. Runs are compared by ratios to a peer of the same run, never by times, and only between machines of the same kind, which
have the same fingerprint.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numscorch.measuring.turns import DISTURBED

from .compat import replacing
from .records import KERNELS, RUNS, UNKNOWN, Run, RunError, case_of, read_run, text_of, texts_of

HISTORY = Path(__file__).parent / "history"
SHORT = 10  # characters of a commit hash in file names
DIGITS = 6  # significant digits of stored numbers
Skipped = tuple[Path, str]


class HistoryError(RunError):
    """A run cannot be added to the history."""


def read_history(folder: Path = HISTORY, fingerprint: str | None = None) -> tuple[list[Run], list[Skipped]]:
    """The runs of a history from the oldest to the newest, and unreadable files with the reason.

    Args:
        folder: the history.
        fingerprint: return only runs on this kind of machine.

    >>> read_history(Path("nowhere"))
    ([], [])
    """
    runs, skipped = [], []
    for file in sorted(file for file in (folder / RUNS).glob("*") if not file.name.startswith(".")):
        try:
            runs.append(read_run(file))
        except RunError as error:
            skipped.append((file, str(error)))
    selected_runs = [run for run in runs if fingerprint in (None, run.fingerprint)]
    return sorted(selected_runs, key=lambda run: (utc(run.time), run.path.name)), skipped


def damaged_kernels(folder: Path = HISTORY) -> list[Skipped]:
    """Unreadable kernel files of a history, with the reason.

    >>> damaged_kernels(Path("nowhere"))
    []
    """
    damaged = []
    for file in sorted((folder / KERNELS).glob("*.json")):
        try:
            texts_of(file)
        except RunError as error:
            damaged.append((file, str(error)))
    return damaged


def add(results: Path, folder: Path = HISTORY, *, dirty: bool = False) -> Path:
    """Store a run and return its file.

    Args:
        results: the results file of ``make bench``.
        folder: the history.
        dirty: accept runs with uncommitted changes.

    Raises:
        RunError: the file is not a results file of this suite.
        HistoryError: the results file is missing or empty, its commit is unknown, it has uncommitted changes, or it is already stored.
    """
    if not results.exists():
        raise HistoryError(
            f"there is no {results}: make bench writes .benchmarks/results.json, make bench-quick .benchmarks/quick.json (RESULTS=)"
        )
    run = read_run(results)
    if not run.records:
        raise HistoryError(f"{results.name} holds no measurements; make bench writes some")
    if run.commit == UNKNOWN:
        raise HistoryError(f"{results.name} doesn't say of which commit it is; run the suite within its repository")
    if run.dirty and not dirty:
        raise HistoryError(
            f"{results.name} is of {run.commit[:SHORT]} and changes that aren't committed; commit them and run again, or say --dirty"
        )
    file = folder / RUNS / name_of(run)
    if file.exists():
        raise HistoryError(f"{results.name} is in the history already, as {file.name}")
    _store(json.loads(text_of(results)), folder, file)
    return file


def name_of(run: Run) -> str:
    """The file name of a run."""
    return f"{utc(run.time):%Y%m%dT%H%M%SZ}-{run.commit[:SHORT]}-{run.fingerprint}-{run.suite}.json"


def utc(time: str) -> datetime:
    """Parse a time of pytest-benchmark as UTC; times without a time zone are UTC.

    >>> utc("2026-01-02T03:04:05").isoformat(), utc("2026-01-02T03:04:05+01:00").isoformat()
    ('2026-01-02T03:04:05+00:00', '2026-01-02T02:04:05+00:00')
    """
    moment = datetime.fromisoformat(time)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _store(results: dict[str, Any], folder: Path, file: Path) -> None:
    """Store kernels and run; the run is written last, so that its kernels always exist."""
    kernels = results["numscorch"].get("kernels") or {}
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    (folder / KERNELS).mkdir(exist_ok=True)
    for name, texts in kernels.items() if isinstance(kernels, Mapping) else ():
        path = folder / KERNELS / f"{Path(name).name}.json"
        if not path.exists():
            _write(path, json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    _write(file, slim(results))


def _write(path: Path, text: str) -> None:
    """Write the file atomically, because existing kernel files are never rewritten."""
    with replacing(path) as file:
        file.write(text.encode())


def slim(results: Mapping[str, Any]) -> str:
    """A results file in stored form: rounded, with one line per benchmark and without unused keys."""
    head = {name: value for name, value in results.items() if name != "benchmarks"}
    head["numscorch"] = {**results["numscorch"], "kernels": sorted(results["numscorch"].get("kernels") or ())}
    if "cpu" in (head.get("machine_info") or {}):
        head["machine_info"] = {**head["machine_info"], "cpu": {"brand_raw": head["machine_info"]["cpu"].get("brand_raw", "")}}
    lines = ",\n".join(_line(benchmark) for benchmark in results["benchmarks"])
    return json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "benchmarks": [\n{lines}\n ]\n}}\n'


def _line(benchmark: Mapping[str, Any]) -> str:
    content = {**benchmark, "stats": {name: value for name, value in (benchmark.get("stats") or {}).items() if name != "data"}}
    return json.dumps(_rounded(content), ensure_ascii=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {name: _rounded(part) for name, part in value.items()}
        case list():
            return [_rounded(part) for part in value]
        case _:
            return value


def main(arguments: Sequence[str]) -> int:
    """Add runs to the history or list its runs; returns exit code 2 if a file is rejected."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description="The recorded runs of the suite.")
    parser.add_argument("--folder", type=Path, default=HISTORY, help="the history (default: benchmarks/history)")
    add_parser = parser.add_subparsers(dest="do").add_parser("add", help="store results that make bench wrote")
    add_parser.add_argument("results", type=Path, nargs="+")
    add_parser.add_argument("--dirty", action="store_true", help="also add runs of a working tree with uncommitted changes")
    options = parser.parse_args(arguments)
    if options.do != "add":
        return _listed(options.folder)
    try:
        for results in options.results:
            file = add(results, options.folder, dirty=options.dirty)
            print(f"stored as {file}")
            _warn_of_disturbance(file)
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _warn_of_disturbance(file: Path) -> None:
    """Print the number of disturbed cases, where medians differ from the fastest calls by more than ``DISTURBED``."""
    compared = [record for record in read_run(file).records if record.get("ratio") and record.get("ratio_of_minima")]
    odd = [case_of(record) for record in compared if not 1 / DISTURBED < record["ratio"] / record["ratio_of_minima"] < DISTURBED]
    if odd:
        print(
            f"{len(odd)} of {len(compared)} cases were disturbed, as {odd[0]}: run the suite again while nothing else runs", file=sys.stderr
        )


def _listed(folder: Path) -> int:
    runs, skipped = read_history(folder)
    for run in runs:
        commit = f"{run.commit[:SHORT]}{' and changes' if run.dirty else ''}"
        print(f"{utc(run.time):%Y-%m-%d %H:%M}  {commit}  {run.fingerprint}  {run.suite}  {len(run.records)} cases")
    for file, why in [*skipped, *damaged_kernels(folder)]:
        print(f"skipped {file.name}: {why}")
    if not runs:
        print("no runs yet: make bench, then make bench-record")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
