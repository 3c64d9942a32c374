"""Tables of measurements are generated from the newest recorded run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import highlights, tables
from benchmarks.history import HistoryError, read_history
from benchmarks.records import Run

ROOT = Path(__file__).parents[2]


def block(file: str, name: str) -> str:
    """The text between the marks of a block."""
    match = re.search(rf"<!-- begin {name} -->\n(.*?)\n<!-- end -->", (ROOT / file).read_text(encoding="utf-8"), re.DOTALL)
    assert match, f"{file} has no block {name}"
    return match[1]


def test_tables_show_the_newest_recorded_run() -> None:
    assert block("docs/performance.md", "measurements") == tables.measurements(), "python docs/refresh.py measurements rewrites it"


def test_figures_of_the_readme_show_the_newest_recorded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = highlights.PLOT.read_text(encoding="utf-8")
    monkeypatch.setattr(highlights, "PLOT", tmp_path / "plot.svg")
    assert block("README.md", "highlights") == highlights.highlights(), "python docs/refresh.py highlights rewrites it"
    assert block("README.md", "compiling") == highlights.compiling(), "python docs/refresh.py compiling rewrites it"
    labels = [re.findall(r"<text[^>]*>([^<]*)", text) for text in (plot, highlights.PLOT.read_text(encoding="utf-8"))]
    assert labels[0] == labels[1]


def test_pages_for_users_have_no_bars() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    header = re.compile(r"\|\s*(bar|met)\s*\|")
    assert not [page.name for page in pages if header.search(page.read_text(encoding="utf-8"))]


def test_history_in_the_repository_can_be_read() -> None:
    runs, skipped = read_history()
    assert runs and not skipped and not any(run.dirty for run in runs)


def test_the_newest_full_run_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = tables.recorded()

    def run(suite: str, time: str) -> Run:
        return replace(newest, time=time, own={**newest.own, "suite": suite})

    runs = [run("full", "2026-01-01T00:00:00"), run("full", "2026-01-02T00:00:00"), run("quick", "2026-01-03T00:00:00")]
    for available, expected in ((runs, runs[1]), (runs[2:], runs[2])):
        monkeypatch.setattr(tables, "read_history", lambda _, available=available: (available, []))
        assert tables.recorded() is expected
    monkeypatch.setattr(tables, "read_history", lambda _: ([], []))
    with pytest.raises(HistoryError, match="make bench, then make bench-record"):
        tables.recorded()


def test_the_page_lists_all_peers_and_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = tables.recorded()
    record = {
        "kernel": "spmm", "matrix": "m", "threads": 2, "variant": ["k"], "k": 8, "compile_seconds": 0.25,
        "peers": {"fast": {"ratio": 2.0, "low": 1.9, "high": 2.1}, "slow": {"ratio": 8.0, "low": 7.0, "high": 9.0}},
        "beside": {"dense": {"ratio": 20.0}}, "labels": {"dense": "does more"},
    }  # fmt: skip
    roofs = {"2": {"bytes_per_second": 2e10, "flops_per_second": 1e11}}
    run = replace(newest, records=(record,), own={**newest.own, "missing": ["GraphBLAS"], "roofs": roofs})
    monkeypatch.setattr(tables, "recorded", lambda: run)
    page = re.sub(" +", " ", tables.measurements())
    assert "Not installed there: GraphBLAS." in page and "| 2 | 20.0 | 100.0 |" in page
    assert "| fast | 2 | 1 | 2.00x | 2.00x [1.90, 2.10] m, k=8 | 2.00x [1.90, 2.10] m, k=8 |" in page
    assert "| slow | 2 | 1 | 8.00x |" in page and "| baseline: dense (does more) | 2 | 1 | 20.00x |" in page
    assert "Medians: compile time 0.25 s." in page


def test_the_summary_lists_slow_cases_and_leaves_out_overhead() -> None:
    def record(kernel: str, matrix: str, threads: int, ratio: float, high: float) -> dict[str, object]:
        return {"kernel": kernel, "matrix": matrix, "threads": threads, "nnz": 10, "ratio": ratio, "high": high, "peer": "torch"}

    records = [
        *(record("spmv", "slow", 1, 0.5, 0.6), record("spmv", "slow", 2, 2.0, 2.1)),
        *(record("spmv", "uncertain", 1, 0.8, 1.1), record("spmv", "close", 1, 0.95, 0.96)),
        record("overhead", "tiny", 1, 0.1, 0.1),
    ]
    text = re.sub(" +", " ", "\n".join(tables.summary(records)))
    assert "over 4 cases. Cases that measure" in text and "faster in 1 cases and slower in 3; in 2 of these" in text
    assert "| spmv | slow | 10 | torch | 0.50x | 2.00x |" in text
    assert not any(name in text for name in ("uncertain", "close", "tiny"))
