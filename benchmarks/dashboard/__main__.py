"""python -m benchmarks.dashboard: write the site from what was recorded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..records import Run, RunError, read_run
from .site import SiteError, write_site

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the site, and tell where and what was skipped; 2 where it can't be written."""
    asked = _parser().parse_args(arguments)
    runs, skipped = collect(asked.recorded or [ROOT / "benchmarks/history/runs", ROOT / ".benchmarks"])
    for name, why in skipped.items():
        print(f"skipped {name}: {why}", file=sys.stderr)
    try:
        index = write_site(runs, asked.output, skipped=skipped, repository=asked.repository)
    except (SiteError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = sum(path.stat().st_size for path in asked.output.rglob("*") if path.is_file())
    print(f"{index}: {len(runs)} run{'' if len(runs) == 1 else 's'}, {size / 1e6:.1f} MB")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description="Recorded benchmarks as a static site.")
    told = "results files, or folders of them (default: the history, and what make bench and make bench-quick wrote)"
    parser.add_argument("recorded", nargs="*", type=Path, help=told)
    parser.add_argument("--output", type=Path, default=ROOT / ".benchmarks/site", help="the folder (default: .benchmarks/site)")
    parser.add_argument("--repository", metavar="URL", help="where commits can be looked at: links lead to URL/commit/ID")
    return parser


def collect(places: Iterable[Path]) -> tuple[list[Run], dict[str, str]]:
    """Runs in files and folders, and which files hold none, and why."""
    runs, skipped = [], {}
    for path in (file for place in places for file in (sorted(place.glob("*.json")) if place.is_dir() else [place])):
        if not path.exists() and path.name in ("runs", ".benchmarks"):
            continue
        try:
            runs.append(read_run(path))
        except RunError as error:
            skipped[path.name] = str(error)
    return runs, skipped


if __name__ == "__main__":
    sys.exit(main())
