"""Page of a kernel of the suite: its history, times, roofline and cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from . import plots
from .cases import case_file
from .frame import Place, page
from .plots import Plot
from .ratios import ratio_of
from .tables import EMPTY, Cell, change, link, ratio_cell, table, text, time_cell
from .views import Case, Point, View
from .wording import change_cell, interval, number, times

RUNS = 20  # latest runs listed with their commits


def kernel_page(view: View, kernel: str, place: Place) -> str:
    """The page of a kernel."""
    cases = view.kernels[kernel]
    points = view.history(kernel)
    parts = [f"<h1>{escape(kernel)}</h1>", _lead(points, cases)]
    return page(kernel, [*parts, *_drawn(view, kernel, points, place), *_tables(view, kernel, points, place)], place)


def _lead(points: Sequence[Point], cases: Sequence[Case]) -> str:
    if not points:
        return '<p class="lead">These cases have no peer to be compared with: their times and shares are told as they are.</p>'
    latest = points[-1]
    since = latest.ratio.over(points[-2].ratio) if len(points) > 1 and points[-2].cases == latest.cases else None
    change_note = f", {change_cell(since)} since the run before" if since else ""
    noun = "case" if len(cases) == 1 else "cases"
    return (
        f'<p class="lead"><strong>{times(latest.ratio.value)}</strong> as fast as the best peer '
        f"<small>{interval(latest.ratio)}</small>, {len(cases)} {noun}{change_note}</p>"
    )


def _drawn(view: View, kernel: str, points: Sequence[Point], place: Place) -> Iterator[str]:
    """Plots of the kernel, with a note for a missing roofline."""
    cases = view.kernels[kernel]
    if points:
        yield "<h2>History</h2>" + figure(plots.history(kernel, points, lambda point: commit_target(point, place)))

    def target(case: Case) -> str:
        return place.home + case_file(case)

    clouds = [plot for threads in plots.measured(cases) if (plot := plots.time_by_nnz(kernel, cases, threads, target))]
    if clouds:
        yield "<h2>Time by size</h2>" + f'<div class="pair">{"".join(map(figure, clouds))}</div>'
    below = plots.roofline(kernel, cases, view.latest.run.own.get("roofs") or {}, target)
    if below:
        yield "<h2>Roofline</h2>" + figure(below)
    elif points:
        yield '<h2>Roofline</h2><p class="quiet">This run holds no bytes, operations and roofs for these cases.</p>'


def commit_target(point: Point, place: Place) -> str | None:
    """URL of a commit, or None if unknown."""
    commit = point.snapshot.run.commit[:10]
    has_link = place.repository and point.snapshot.commit != "unknown"
    return f"{str(place.repository).rstrip('/')}/commit/{commit}" if has_link else None


def figure(plot: Plot) -> str:
    """A plot with its caption."""
    return f'<figure><div class="scroll">{plot.svg}</div><figcaption>{escape(plot.caption)}</figcaption></figure>'


def _tables(view: View, kernel: str, points: Sequence[Point], place: Place) -> Iterator[str]:
    cases = view.kernels[kernel]
    peers = _names(case.peers for case in cases)
    beside = _names(case.beside for case in cases)
    head = ["case", *["best peer"] * bool(peers), "entries", "a call", *["ratio", "change"] * bool(peers), "GB/s", "Gflop/s"]
    titles = [escape(title) for title in [*head, *(f"over {peer}" for peer in peers)]] + [f"<i>over {escape(name)}</i>" for name in beside]
    rows = [[*_row(view, case, place, bool(peers)), *_ratios(case, peers, beside)] for case in cases]
    yield "<h2>Cases</h2>" + table(f"Cases of {kernel}", titles, rows, words=1 + bool(peers))
    yield from _notes(cases, beside)
    if points:
        yield "<h2>Commits</h2>" + table("Latest runs", ("commit", "day", "ratio", "cases"), _runs(points, place), sortable=False)


def _names(measured: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for of_case in measured for name in of_case})


def _row(view: View, case: Case, place: Place, compared: bool) -> Iterator[Cell]:
    record = case.record
    yield link(place.home + case_file(case), case.name)
    if compared:
        yield text(record.get("peer", ""))
    yield Cell(number(record["nnz"]), record["nnz"]) if record.get("nnz") is not None else EMPTY
    yield time_cell(record["seconds"])
    if compared:
        yield ratio_cell(case.ratio, with_interval=True)
        yield change(view.change(case))
    for amount in ("bytes", "flops"):
        is_recorded = record.get(amount) and record["seconds"] > 0
        yield Cell(f"{record[amount] / record['seconds'] / 1e9:.2f}") if is_recorded else EMPTY


def _ratios(case: Case, peers: Sequence[str], beside: Sequence[str]) -> Iterator[Cell]:
    for names, measured in ((peers, case.peers), (beside, case.beside)):
        for name in names:
            yield ratio_cell(ratio_of(measured[name])) if name in measured else EMPTY


def _notes(cases: Sequence[Case], beside: Sequence[str]) -> Iterator[str]:
    """Notes on baselines that are not peers."""
    labels = {name: label for case in cases for name, label in (case.record.get("labels") or {}).items()}
    for name in beside:
        yield f'<p class="quiet"><i>{escape(name)}</i> is no peer: {escape(labels.get(name, "it is shown for comparison"))}.</p>'


def _runs(points: Sequence[Point], place: Place) -> Iterator[tuple[Cell, ...]]:
    for point in list(reversed(points))[:RUNS]:
        snapshot = point.snapshot
        yield Cell(place.commit(snapshot)), text(snapshot.day), ratio_cell(point.ratio, with_interval=True), Cell(str(point.cases))
