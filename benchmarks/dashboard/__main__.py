"""Write the dashboard of recorded runs: ``python -m benchmarks.dashboard``."""

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
    """Write the site and report its path and the skipped files; return 2 if it cannot be written."""
    options = _parser().parse_args(arguments)
    runs, skipped = collect(options.history, options.results)
    for name, why in skipped.items():
        print(f"skipped {name}: {why}", file=sys.stderr)
    try:
        index = write_site(runs, options.output, skipped=skipped, repository=options.repository)
    except (SiteError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = sum(path.stat().st_size for path in options.output.rglob("*") if path.is_file())
    print(f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {size / 1e6:.1f} MB: {index}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description="Recorded benchmarks as a static site.")
    help_text = "results files, or folders of them (default: what make bench and make bench-quick wrote)"
    parser.add_argument("results", nargs="*", type=Path, default=[ROOT / ".benchmarks"], help=help_text)
    parser.add_argument("--history", type=Path, default=HISTORY, help="the recorded runs (default: benchmarks/history)")
    parser.add_argument("--output", type=Path, default=ROOT / ".benchmarks/site", help="the folder (default: .benchmarks/site)")
    parser.add_argument("--repository", metavar="URL", help="where commits can be looked at: links lead to URL/commit/ID")
    return parser


def collect(history: Path, results: Sequence[Path]) -> tuple[list[Run], dict[str, str]]:
    """Distinct runs of a history and of further files; and the files without a valid run, with the reason."""
    runs, foreign = read_history(history)
    skipped = {path.name: why for path, why in [*foreign, *damaged_kernels(history)]}
    names = {name_of(run) for run in runs}
    for path in _files(results):
        try:
            run = read_run(path)
        except RunError as error:
            skipped[path.name] = str(error)
            continue
        if name_of(run) not in names:  # otherwise the run is in the history, or given twice
            names.add(name_of(run))
            runs.append(run)
    skipped |= {run.path.name: why for run in runs if (why := _amiss(run))}
    return [run for run in runs if not _amiss(run)], skipped


def _amiss(run: Run) -> str:
    """Why the pages cannot show a run, or an empty string."""
    for record in run.records:
        if not isinstance(record.get("seconds"), int | float):
            return f"a record of {record['kernel']} has no time in seconds; make bench writes one in each"
        sides = [side for part in ("peers", "beside") for side in (record.get(part) or {}).values()]
        if not all(isinstance(side.get("seconds"), int | float) for side in sides):
            return f"a record of {record['kernel']} has no time of a peer in seconds; make bench writes one for each"
    return ""


def _files(places: Sequence[Path]) -> Iterator[Path]:
    """Files, and the results in folders; missing folders are skipped."""
    for place in places:
        yield from sorted(place.glob("*.json")) if place.is_dir() else [place] if place.suffix or place.exists() else []


if __name__ == "__main__":
    sys.exit(main())
