"""Costs besides kernel time: compile and load times, overhead of calls, and memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import plots
from .places import Place
from .templates import rendered
from .views import Case, View

LARGE = 1_000_000  # bytes of a result beyond which other growth of the process is negligible


class Compiled(NamedTuple):
    """A set of kernels, its median compile and load times, and the cases that run it."""

    names: tuple[str, ...]
    compiled: float
    loaded: float | None
    cases: list[Case]


class Peak(NamedTuple):
    """The peak memory of a kernel's cases relative to the result, and the case with the highest."""

    kernel: str
    worst: Case
    median: float
    most: float


def compile_page(view: View, place: Place, sources: Mapping[str, Any]) -> str:
    """Page of compile and load times by set of kernels, and of the overhead of calls by kernel."""
    compiled = list(_compiled(view))
    plot = plots.compile_times([(kernels.names[0], kernels.compiled, kernels.loaded) for kernels in compiled]) if compiled else None
    return rendered("compile.html", place, compiled=compiled, plot=plot, overheads=dict(_overheads(view)), sources=sources)


def _compiled(view: View) -> Iterator[Compiled]:
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in view.latest.cases.values():
        if case.record.get("compile_seconds"):  # 0 if no kernel ran
            groups.setdefault(tuple(case.record.get("kernels") or (f"{case.kernel}, {case.name}",)), []).append(case)
    for names, cases in groups.items():
        loaded = _recorded(cases, "load_seconds")
        yield Compiled(names, statistics.median(_recorded(cases, "compile_seconds")), statistics.median(loaded) if loaded else None, cases)


def _overheads(view: View) -> Iterator[tuple[str, list[float]]]:
    """Kernels, and the least, median and highest overhead of their calls."""
    for kernel, cases in view.kernels.items():
        if overheads := _recorded(cases, "overhead_seconds"):
            yield kernel, [min(overheads), statistics.median(overheads), max(overheads)]


def _recorded(cases: list[Case], key: str) -> list[float]:
    return [case.record[key] for case in cases if case.record.get(key) is not None]


def memory_page(view: View, place: Place) -> str:
    """Page of the peak memory of calls, compared with the size of their results."""
    measured = [case for case in view.latest.cases.values() if case.record.get("peak_bytes") is not None]
    return rendered("memory.html", place, measured=measured, plot=plots.peaks(measured, place.case), peaks=list(_peaks(view)))


def _peaks(view: View) -> Iterator[Peak]:
    for kernel, cases in view.kernels.items():
        beyond = [
            (case.record["peak_bytes"] / case.record["result_bytes"], case)
            for case in cases
            if case.record.get("peak_bytes") is not None and case.record.get("result_bytes", 0) >= LARGE
        ]
        if beyond:
            most, worst = max(beyond, key=lambda pair: pair[0])
            yield Peak(kernel, worst, statistics.median(share for share, _ in beyond), most)
