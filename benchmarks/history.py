"""The history: recorded runs that stay in the repository, which the gate and the dashboard read.

    python -m benchmarks.history add .benchmarks/results.json     # after make bench, at a commit
    python -m benchmarks.history                                  # what is there

A run is ``history/runs/<UTC time>-<commit>-<fingerprint>-<suite>.json``: its results file without the time of each
turn, one line for each benchmark. The texts of kernels, which stay the same from run to run, are in
``history/kernels/<name>.json``: a kernel's name is the hash of its source, so each is stored once.
What is compared between runs are ratios to a peer that was measured in the same run; times of different
machines never are, and ratios only among machines of a kind, which share a fingerprint.
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
SHORT = 10  # letters of a commit in a file's name
DIGITS = 6  # of a number that was measured
Skipped = tuple[Path, str]


class HistoryError(RunError):
    """A run doesn't belong into the history."""


def read_history(folder: Path = HISTORY, fingerprint: str | None = None) -> tuple[list[Run], list[Skipped]]:
    """The runs of a history from the oldest to the newest, and the files that are none, with the reason.

    Args:
        folder: the history.
        fingerprint: only runs on this kind of machine.

    >>> read_history(Path("nowhere"))
    ([], [])
    """
    runs, skipped = [], []
    for file in sorted(file for file in (folder / RUNS).glob("*") if not file.name.startswith(".")):
        try:
            runs.append(read_run(file))
        except RunError as error:
            skipped.append((file, str(error)))
    kept = [run for run in runs if fingerprint in (None, run.fingerprint)]
    return sorted(kept, key=lambda run: (utc(run.time), run.path.name)), skipped


def damaged_kernels(folder: Path = HISTORY) -> list[Skipped]:
    """The texts of kernels in a history that can't be read, with the reason.

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
    """Store a run, and return its file.

    Args:
        results: what ``make bench`` wrote.
        folder: the history.
        dirty: also take a run of files that no commit holds.

    Raises:
        RunError: the file is no run of this suite.
        HistoryError: it was made of files that aren't committed, or it is in the history already.
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
    """The name of a run's file."""
    return f"{utc(run.time):%Y%m%dT%H%M%SZ}-{run.commit[:SHORT]}-{run.fingerprint}-{run.suite}.json"


def utc(time: str) -> datetime:
    """A time of pytest-benchmark, which writes UTC, with or without saying so.

    >>> utc("2026-01-02T03:04:05").isoformat(), utc("2026-01-02T03:04:05+01:00").isoformat()
    ('2026-01-02T03:04:05+00:00', '2026-01-02T02:04:05+00:00')
    """
    read = datetime.fromisoformat(time)
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


def _store(results: dict[str, Any], folder: Path, file: Path) -> None:
    """Write the run last, so that it is there only if its kernels are."""
    kernels = results["numscorch"].get("kernels") or {}
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    (folder / KERNELS).mkdir(exist_ok=True)
    for name, texts in kernels.items() if isinstance(kernels, Mapping) else ():
        kept = folder / KERNELS / f"{Path(name).name}.json"
        if not kept.exists():
            _write(kept, json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    _write(file, slim(results))


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a kernel that is there is never written again."""
    with replacing(path) as file:
        file.write(text.encode())


def slim(results: Mapping[str, Any]) -> str:
    """A results file as it is stored: rounded, a line for each benchmark, without what nothing reads."""
    head = {name: value for name, value in results.items() if name != "benchmarks"}
    head["numscorch"] = {**results["numscorch"], "kernels": sorted(results["numscorch"].get("kernels") or ())}
    if "cpu" in (head.get("machine_info") or {}):
        head["machine_info"] = {**head["machine_info"], "cpu": {"brand_raw": head["machine_info"]["cpu"].get("brand_raw", "")}}
    lines = ",\n".join(_line(benchmark) for benchmark in results["benchmarks"])
    return json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "benchmarks": [\n{lines}\n ]\n}}\n'


def _line(benchmark: Mapping[str, Any]) -> str:
    kept = {**benchmark, "stats": {name: value for name, value in (benchmark.get("stats") or {}).items() if name != "data"}}
    return json.dumps(_rounded(kept), ensure_ascii=False, separators=(",", ":"))


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
    """Add runs to the history, or list it; 2 where a file isn't taken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description="The recorded runs of the suite.")
    parser.add_argument("--folder", type=Path, default=HISTORY, help="the history (default: benchmarks/history)")
    adding = parser.add_subparsers(dest="do").add_parser("add", help="store results that make bench wrote")
    adding.add_argument("results", type=Path, nargs="+")
    adding.add_argument("--dirty", action="store_true", help="also those of files that no commit holds")
    asked = parser.parse_args(arguments)
    if asked.do != "add":
        return _listed(asked.folder)
    try:
        for results in asked.results:
            stored = add(results, asked.folder, dirty=asked.dirty)
            print(f"stored as {stored}")
            _warn_of_disturbance(stored)
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _warn_of_disturbance(file: Path) -> None:
    """Tell in how many cases something else ran: medians then say another thing than the fastest calls."""
    compared = [record for record in read_run(file).records if record.get("ratio") and record.get("ratio_of_minima")]
    odd = [case_of(own) for own in compared if not 1 / DISTURBED < own["ratio"] / own["ratio_of_minima"] < DISTURBED]
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
