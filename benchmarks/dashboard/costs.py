"""Costs besides kernel time: compile and load times, overhead of calls, and memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from . import plots
from .cases import case_file, kernel_file, source_file
from .frame import Place, page
from .kernels import figure
from .tables import Cell, link, table, time_cell
from .views import Case, View
from .wording import size, times

LARGE = 1_000_000  # bytes of a result beyond which other growth of the process is negligible
NONE = "<p>The latest run holds none of these numbers.</p>"


def compile_page(view: View, place: Place, sources: Mapping[str, Any]) -> str:
    """Page of compile and load times by set of kernels, and of the overhead of calls by kernel."""
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in view.latest.cases.values():
        if case.record.get("compile_seconds"):  # 0 if no kernel ran
            groups.setdefault(tuple(case.record.get("kernels") or (f"{case.kernel}, {case.name}",)), []).append(case)
    lead = '<p class="lead">A kernel is compiled once on a machine, and from then on loaded from the cache.</p>'
    parts = ["<h1>Compile time</h1>", lead, *(_compiled(groups, place, sources) if groups else [NONE]), *_overheads(view, place)]
    return page("Compile time", parts, place, active="Compile time")


def _compiled(groups: Mapping[tuple[str, ...], Sequence[Case]], place: Place, sources: Mapping[str, Any]) -> Iterator[str]:
    times_by_name = [(names[0], *_times(cases)) for names, cases in groups.items()]
    yield figure(plots.compile_times(times_by_name))
    rows = []
    for (names, cases), (_, compiled, loaded) in zip(groups.items(), times_by_name, strict=True):
        families = ", ".join(f'<a href="{kernel_file(name)}">{escape(name)}</a>' for name in dict.fromkeys(c.kernel for c in cases))
        shown = ", ".join(_kernel(name, place, sources) for name in names)
        listed = Cell(f"<span class=list>{shown}</span>")
        rows.append((Cell(families), listed, time_cell(compiled), time_cell(loaded), Cell(str(len(cases)))))
    yield "<h2>Kernels</h2>"
    yield table("Generated kernels", ("kernel", "generated as", "compiled in", "loaded in", "cases"), rows, words=2)


def _times(cases: Sequence[Case]) -> tuple[float, float | None]:
    """Median compile and load times of cases that run the same kernels."""
    loaded = [c.record["load_seconds"] for c in cases if c.record.get("load_seconds") is not None]
    return statistics.median(c.record["compile_seconds"] for c in cases), statistics.median(loaded) if loaded else None


def _kernel(name: str, place: Place, sources: Mapping[str, Any]) -> str:
    shown = f"<code>{escape(name)}</code>"
    return f'<a href="{place.root}{source_file(name)}">{shown}</a>' if name in sources else shown


def _overheads(view: View, place: Place) -> Iterator[str]:
    rows = []
    for kernel, cases in view.kernels.items():
        overheads = [c.record["overhead_seconds"] for c in cases if c.record.get("overhead_seconds") is not None]
        if overheads:
            rows.append(
                (link(place.home + kernel_file(kernel), kernel), *(time_cell(of(overheads)) for of in (min, statistics.median, max)))
            )
    if rows:
        yield "<h2>Overhead of a call</h2><p>What a call takes outside of its kernels.</p>"
        yield table("Overhead of a call", ("kernel", "least", "median", "most"), rows)


def memory_page(view: View, place: Place) -> str:
    """Page of the peak memory of calls, compared with the size of their results."""
    measured = [case for case in view.latest.cases.values() if case.record.get("peak_bytes") is not None]
    lead = "How much the process grows by during a call. It is less than the result where that shares an operand's arrays."
    return page(
        "Memory",
        ["<h1>Memory</h1>", f'<p class="lead">{lead}</p>', *(_memory(view, measured, place) if measured else [NONE])],
        place,
        active="Memory",
    )


def _memory(view: View, measured: Sequence[Case], place: Place) -> Iterator[str]:
    scatter = plots.peaks(measured, lambda case: place.home + case_file(case))
    if scatter:
        yield figure(scatter)
    rows = []
    for kernel in view.kernels:
        cases = [case for case in measured if case.kernel == kernel and case.record.get("result_bytes", 0) >= LARGE]
        if cases:
            beyond = {case.name: case.record["peak_bytes"] / case.record["result_bytes"] for case in cases}
            worst = max(cases, key=lambda case: beyond[case.name])
            middle, most = statistics.median(beyond.values()), beyond[worst.name]
            rows.append(
                (
                    link(place.home + kernel_file(kernel), kernel),
                    link(place.home + case_file(worst), worst.name),
                    *(Cell(times(value), value) for value in (middle, most)),
                    *(Cell(size(worst.record[key]), worst.record[key]) for key in ("peak_bytes", "result_bytes")),
                )
            )
    head = ("kernel", "case that takes most", "peak over result, median", "most", "peak", "result")
    yield "<h2>Kernels</h2>" + table("Memory by kernel", head, rows, words=2)
