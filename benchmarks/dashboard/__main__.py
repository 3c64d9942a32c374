"""python -m benchmarks.dashboard: write the site from what was recorded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..history import HISTORY, damaged_kernels, name_of, read_history
from ..records import Run, RunError, read_run
from .site import SiteError, write_site

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the site, and tell where and what was skipped; 2 where it can't be written."""
    asked = _parser().parse_args(arguments)
    runs, skipped = collect(asked.history, asked.results)
    for name, why in skipped.items():
        print(f"skipped {name}: {why}", file=sys.stderr)
    try:
        index = write_site(runs, asked.output, skipped=skipped, repository=asked.repository)
    except (SiteError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = sum(path.stat().st_size for path in asked.output.rglob("*") if path.is_file())
    print(f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {size / 1e6:.1f} MB: {index}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description="Recorded benchmarks as a static site.")
    told = "results files, or folders of them (default: what make bench and make bench-quick wrote)"
    parser.add_argument("results", nargs="*", type=Path, default=[ROOT / ".benchmarks"], help=told)
    parser.add_argument("--history", type=Path, default=HISTORY, help="the recorded runs (default: benchmarks/history)")
    parser.add_argument("--output", type=Path, default=ROOT / ".benchmarks/site", help="the folder (default: .benchmarks/site)")
    parser.add_argument("--repository", metavar="URL", help="where commits can be looked at: links lead to URL/commit/ID")
    return parser


def collect(history: Path, results: Sequence[Path]) -> tuple[list[Run], dict[str, str]]:
    """Runs of a history and of further files, each once, and which files hold none, and why."""
    runs, foreign = read_history(history)
    skipped = {path.name: why for path, why in [*foreign, *damaged_kernels(history)]}
    known = {name_of(run) for run in runs}
    for path in _files(results):
        try:
            run = read_run(path)
        except RunError as error:
            skipped[path.name] = str(error)
            continue
        if name_of(run) not in known:  # else it was recorded, or is named twice
            known.add(name_of(run))
            runs.append(run)
    skipped |= {run.path.name: why for run in runs if (why := _amiss(run))}
    return [run for run in runs if not _amiss(run)], skipped


def _amiss(run: Run) -> str:
    """What pages can't be made of."""
    for record in run.records:
        if not isinstance(record.get("seconds"), int | float):
            return f"a record of {record['kernel']} has no time in seconds; make bench writes one in each"
        sides = [own for part in ("peers", "beside") for own in (record.get(part) or {}).values()]
        if not all(isinstance(own.get("seconds"), int | float) for own in sides):
            return f"a record of {record['kernel']} has no time of a peer in seconds; make bench writes one for each"
    return ""


def _files(places: Sequence[Path]) -> Iterator[Path]:
    """Files, and the results in folders; a folder that isn't there holds none."""
    for place in places:
        yield from sorted(place.glob("*.json")) if place.is_dir() else [place] if place.suffix or place.exists() else []


if __name__ == "__main__":
    sys.exit(main())
