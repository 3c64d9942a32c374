"""Files of the dashboard for many runs, few runs, foreign files and missing data. ``browser/`` opens the pages."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlparse

import pytest
import synthetic_runs as synthetic
from dashboard_runs import REPOSITORY, as_run, some_runs
from scale import scaled

from benchmarks.dashboard.__main__ import collect, main
from benchmarks.dashboard.places import slug
from benchmarks.dashboard.ratios import Ratio, mean_change
from benchmarks.dashboard.site import HERE, SiteError, write_site
from benchmarks.dashboard.views import against, compared, views_of
from benchmarks.history import read_history
from benchmarks.records import Run

pytest.importorskip("matplotlib")
VOID = {"meta", "link", "input", "br"}
LARGE = 1000 if scaled(1000) == 1000 else 200  # cases of a long history
IMPLIED = {"td", "th", "tr", "tbody", "thead", "dt", "dd", "li", "html", "body"}  # elements whose end tag is optional


def texts(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text() for path in sorted(site.rglob("*.html"))}


class Page(HTMLParser):
    """Links, ids and unbalanced tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += [f"{tag} stays open" for tag in self.open if tag not in IMPLIED]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids += [attributes["id"]] if attributes.get("id") else []
        self.links += [str(value) for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in IMPLIED:
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 commits of 1,000 cases, or of 200 below full scale."""
    site = tmp_path_factory.mktemp("large") / "site"
    write_site(some_runs(200, LARGE), site, repository=REPOSITORY)
    return site


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two machines, a suite of two sizes, and a skipped file."""
    site = tmp_path_factory.mktemp("small") / "site"
    other = {**synthetic.MACHINE, "processor": "Another", "fingerprint": "0123456789"}
    runs = some_runs(3, 48) + some_runs(2, 24, suite="quick") + some_runs(1, 24, machine=other)
    write_site(runs, site, skipped={"foreign.json": "foreign.json is no run of this suite"})
    return site


def test_a_long_history_takes_less_than_five_megabytes(large: Path) -> None:
    files = [path for path in large.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000 + 4_000 * LARGE
    assert len(list((large / "cases").iterdir())) == LARGE
    assert max(path.stat().st_size for path in files) < 250_000


def test_pages_are_well_formed(small: Path) -> None:
    for name, text in texts(small).items():
        page = Page(text)
        assert not page.wrong, (name, page.wrong[:3])
        assert len(set(page.ids)) == len(page.ids), name


def test_links_within_the_site_are_valid(small: Path) -> None:
    for name, text in texts(small).items():
        page = Page(text)
        for link in page.links:
            if link.startswith("#"):
                assert link[1:] in page.ids, (name, link)
            elif link != "data:,":
                assert not urlparse(link).scheme, (name, link)
                assert ((small / name).parent / link).is_file(), (name, link)


def test_pages_load_nothing_from_other_sites(large: Path) -> None:
    for name in ("index.html", "compile.html", "memory.html", "machines.html"):
        external = {link for link in Page((large / name).read_text()).links if urlparse(link).scheme in ("http", "https")}
        assert all(link.startswith(f"{REPOSITORY}/commit/") for link in external), name
    assert "url(" not in (large / "style.css").read_text()
    assert "fetch(" not in (large / "site.js").read_text()


def test_commits_are_linked_if_the_repository_is_known(large: Path, small: Path) -> None:
    page = f"kernels/{slug('spmm')}.html"
    assert (large / page).read_text().count(f"{REPOSITORY}/commit/") > 20
    assert "/commit/" not in (small / page).read_text()
    links = re.findall(f'<a [^>]*"{REPOSITORY}[^>]*>', (large / page).read_text())
    assert all('target="_top"' in link for link in links)  # where another site embeds the page


def test_plots_of_a_kernel_have_a_label(small: Path) -> None:
    page = (small / "kernels" / f"{slug('spmm')}.html").read_text()
    labels = re.findall(r'<svg[^>]*aria-label="([^"]+)"', page)
    assert [text.split(" ")[0] for text in labels] == ["spmm", "Time", "Time", "Roofline"]
    assert "2 cases" in labels[3]


def test_plots_use_the_colours_of_the_page(small: Path) -> None:
    plots = re.findall(r"<svg.*?</svg>", (small / "kernels" / f"{slug('spmm')}.html").read_text(), re.DOTALL)
    for svg in plots:
        assert "var(--s0)" in svg
        assert not re.search(r"(?:fill|stroke):\s*#", svg)


def test_a_case_shows_its_numbers_and_its_kernels(small: Path) -> None:
    page = (small / "cases" / f"{slug('spmm', 'cora, k=2, 1 thread')}.html").read_text()
    for part in (
        "speedup over the best peer",
        "GB/s",
        "of the roof",
        "peak memory",
        "compile time",
        "torch CSR int64",
        "it computes what is not stored",
    ):
        assert part in page, part
    frame = re.search(r'<iframe src="\.\./(sources/[^"]+)"', page)
    assert frame
    source = (small / frame[1]).read_text()
    assert all(f"<h2>{title}</h2>" in source for title in ("Schedule", "Explained", "Source"))
    assert "<b>def</b> kernel" in source


def test_missing_peers_and_skipped_files_are_listed(small: Path) -> None:
    page = (small / "index.html").read_text()
    assert "PyG: not installed where this was measured" in page
    assert "foreign.json is no run of this suite" in page
    assert '<th scope="col">PyG' not in page


def test_other_machines_and_suites_have_separate_overviews(small: Path) -> None:
    page = (small / "index.html").read_text()
    assert "Other machines and suites (2)" in page
    others = re.findall(r'<li><a href="([^"]+/index.html)">', page)
    assert "quick suite" in (small / others[0]).read_text() or "quick suite" in (small / others[1]).read_text()
    assert {"Another, 2 cores", "AMD EPYC 9R14, 2 cores"} <= set(re.findall(r"<h2>([^<]+)</h2>", (small / "machines.html").read_text()))


def test_changes_are_marked_if_they_exceed_noise(large: Path) -> None:
    page = (large / "index.html").read_text()
    rows = page.split('<div class="heat"')[1].split("<tr>")
    changed = [(re.search(r">([^<]+)</a>", row)[1], mark) for row in rows for mark in "▲▼" if mark in row]  # type: ignore[index]
    assert sorted(changed) == [("rows", "▼"), ("spmm", "▲")]


def test_runs_of_one_commit_have_no_clear_change() -> None:
    runs = [as_run(results) for results in synthetic.history(3, 240, seed=5)][:2]  # the last run differs by construction
    view = views_of(runs)[0]
    changes = [change for cases in view.kernels.values() if (change := compared(view, cases, "best peer")[2]) and change.is_clear]  # type: ignore[index]
    assert len(changes) <= 1, changes  # one family in a hundred runs is faster by construction


def test_changes_of_few_cases_are_uncertain_if_the_cases_differ() -> None:
    similar, scattered = [Ratio(0.9, 0.001)] * 4, [Ratio(value, 0.001) for value in (0.7, 1.1, 0.8, 1.05)]
    assert mean_change(similar).is_clear
    assert not mean_change(scattered).is_clear


def test_cases_of_different_kernels_may_share_a_name() -> None:
    view = views_of(some_runs(1, 48))[0]
    comparison = compared(view, view.latest.cases.values(), "best peer")
    assert comparison is not None
    assert comparison[1] == 48


@pytest.mark.full
def test_two_hundred_runs_as_recorded_take_less_than_ten_kilobytes_for_each_case(tmp_path: Path) -> None:
    recorded, _ = read_history()
    newest = {run.suite: run for run in recorded}  # the oldest come first
    runs = [repeated_run(newest[suite], at) for suite in ("full", "quick") for at in range(100)]
    write_site(runs, tmp_path / "site", repository=REPOSITORY)
    assert sum(path.stat().st_size for path in (tmp_path / "site").rglob("*") if path.is_file()) < 10_000 * len(newest["full"].records)


def repeated_run(run: Run, at: int) -> Run:
    """The run as of another commit on another day, somewhat slower or faster."""
    records = []
    for record in run.records:
        scale = 1 + 0.05 * math.sin(at * at + len(records))
        scaled = {name: record[name] * scale for name in ("ratio", "low", "high") if name in record}
        records.append({**record, **scaled})
    day = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=at)
    return replace(run, commit=f"{at:06x}{run.suite.encode().hex()[:4]}", time=day.isoformat(), records=tuple(records))


def test_one_run_has_no_change(tmp_path: Path) -> None:
    write_site(some_runs(1, 24), tmp_path / "site")
    page = (tmp_path / "site/index.html").read_text()
    assert "This is the first run of this suite on this kind of machine." in page
    assert "▲" not in page.split('class="legend"')[0]


def test_minimal_records_have_pages(tmp_path: Path) -> None:
    records = [
        {"kernel": "import", "what": "import <numscorch>", "threads": 1, "seconds": 0.1, "bar": {"at_most": 0.2}},
        {"kernel": "share", "what": "SpMV", "share": 0.9, "matrix": "cora", "nnz": 0, "threads": 1, "seconds": 0.0, "bytes": 3, "flops": 0},
        {"kernel": "share", "what": "SpMV", "share": 0.9, "matrix": "cora", "nnz": 0, "threads": 1, "seconds": 0.0},
    ]
    write_site([as_run(synthetic.results(records, 0, roofs={}, missing=[]))], tmp_path / "site")
    pages = texts(tmp_path / "site")
    assert not [name for name, text in pages.items() if Page(text).wrong]
    assert "import &lt;numscorch&gt;" in pages[f"cases/{slug('import', 'import <numscorch>')}.html"]
    assert f"cases/{slug('share', 'SpMV, cora, 1 thread (2)')}.html" in pages
    assert "has no memory measurements" in pages["memory.html"]


def test_a_peer_without_a_column_is_shown_with_its_library() -> None:
    view = views_of(some_runs(1, 24))[0]
    assert view.columns == ["torch", "torch, int64", "SciPy", "pydata/sparse", "python-graphblas"]
    case = next(case for case in view.latest.cases.values() if "SciPy CSR" not in case.peers)
    assert against(case, "SciPy") is None


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("[!_]*.py")))
def test_doctests(name: str) -> None:
    assert not doctest.testmod(importlib.import_module(f"benchmarks.dashboard.{name}"), optionflags=doctest.NORMALIZE_WHITESPACE).failed


def run(*arguments: str) -> int:
    return main(list(arguments))


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    (tmp_path / "results").mkdir()
    yield str(tmp_path / "results"), "--history", str(tmp_path / "history"), "--output", str(tmp_path / "site")


def test_an_empty_history_gives_a_page_with_instructions(folders: tuple[str, ...], tmp_path: Path) -> None:
    assert run(*folders) == 0
    assert "make bench-quick" in (tmp_path / "site/index.html").read_text()


def test_foreign_files_are_skipped_and_named(folders: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.write(tmp_path / "history/runs", synthetic.history(3, 24))
    (tmp_path / "history/runs/002.json").rename(tmp_path / "results/002.json")
    (tmp_path / "results/broken.json").write_text("{")
    (tmp_path / "results/other.json").write_text(json.dumps({"benchmarks": []}))
    (tmp_path / "results/timeless.json").write_text(json.dumps(synthetic.results([{"kernel": "spmm", "matrix": "cora", "threads": 1}], 7)))
    assert run(*folders) == 0
    out, err = capsys.readouterr()
    assert "3 runs" in out
    assert "skipped broken.json" in err and "skipped other.json" in err
    assert "skipped timeless.json: a record of spmm has no time in seconds" in err
    page = (tmp_path / "site/index.html").read_text()
    assert "broken.json can&#39;t be read as JSON" in page


def test_results_are_files_and_folders_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "of.today").mkdir()
    synthetic.write(tmp_path / "of.today", synthetic.history(2, 2))
    (tmp_path / "of.today" / "001.json").rename(tmp_path / "plain")
    runs, skipped = collect(tmp_path / "history", [tmp_path / "of.today", tmp_path / "plain", tmp_path / "nothing"])
    assert len(runs) == 2 and not skipped


def test_a_duplicate_run_counts_once(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "one", synthetic.history(1, 2))
    synthetic.write(tmp_path / "again", synthetic.history(1, 2))
    runs, skipped = collect(tmp_path / "history", [tmp_path / "one", tmp_path / "again"])
    assert len(runs) == 1 and not skipped


@pytest.mark.parametrize(
    ("text", "why"), [('{"source": "pas', "can't be read as JSON"), ("[]", "has no text under 'source'")], ids=["torn", "foreign"]
)
def test_a_damaged_kernel_of_the_history_is_named(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "history/kernels").mkdir(parents=True)
    (tmp_path / "history/kernels/kernel_0.json").write_text(text)
    _, skipped = collect(tmp_path / "history", [])
    assert list(skipped) == ["kernel_0.json"]
    assert why in skipped["kernel_0.json"]


def test_a_kernel_that_cannot_be_read_is_named(folders: tuple[str, ...], tmp_path: Path) -> None:
    results = next(iter(synthetic.history(1, 24)))
    names = sorted(results["numscorch"]["kernels"])
    results["numscorch"]["kernels"] = names
    synthetic.write(tmp_path / "history/runs", iter([results]))
    (tmp_path / "history/kernels").mkdir()
    for name in names:
        (tmp_path / f"history/kernels/{name}.json").write_text("{")
    assert run(*folders) == 0
    assert f"{results['benchmarks'][0]['extra_info']['kernels'][0]}.json can&#39;t be read" in (tmp_path / "site/index.html").read_text()


def test_a_peer_without_a_time_and_a_call_without_one(folders: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeless, instant = (next(iter(synthetic.history(1, 24))) for _ in range(2))
    del next(iter(timeless["benchmarks"][0]["extra_info"]["peers"].values()))["seconds"]
    instant["benchmarks"][0]["extra_info"]["seconds"] = 0
    synthetic.write(tmp_path / "results", iter([timeless, instant]))
    assert run(*folders) == 0
    assert "skipped 000.json: a record of spmm has no time of a peer" in capsys.readouterr().err


def test_the_latest_run_is_found_across_time_zones_and_partial_suites_come_last() -> None:
    first, second = some_runs(1, 24), some_runs(1, 24)
    east, west = (
        replace(run, time=time) for (run,), time in zip((first, second), ("2026-01-01T23:00:00+05:00", "2026-01-01T20:00:00"), strict=True)
    )
    assert views_of([east, west])[0].latest.run is west
    part = replace(east, time="2027-01-01T00:00:00", own={**east.own, "suite": "part"})
    quick = replace(east, own={**east.own, "suite": "quick"})
    assert [view.key[1] for view in views_of([part, quick])] == ["quick", "part"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(SiteError, match=r"holds files that are no dashboard: name an empty or a new folder"):
        write_site([], tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_a_site_is_replaced_completely(tmp_path: Path) -> None:
    write_site(some_runs(1, 24), tmp_path / "site")
    write_site([], tmp_path / "site")
    assert not (tmp_path / "site/cases").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_cases_that_run_no_kernel_have_no_compile_time(tmp_path: Path) -> None:
    runs = some_runs(1, 24)
    for record in runs[-1].records[:3]:
        record["compile_seconds"] = 0.0  # type: ignore[index]
    write_site(runs, tmp_path / "site")
    assert (tmp_path / "site" / "compile.html").exists()
