"""Runs for tests of the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import synthetic_runs as synthetic

from benchmarks.records import Run

REPOSITORY = "https://git.example/numscorch"


def as_run(results: dict[str, Any]) -> Run:
    records = tuple(benchmark["extra_info"] for benchmark in results["benchmarks"])
    return Run(Path("run.json"), results["commit_info"]["id"], results["datetime"], False, results["numscorch"], records)


def some_runs(commits: int, cases: int, **how: Any) -> list[Run]:
    return [as_run(results) for results in synthetic.history(commits, cases, **how)]
