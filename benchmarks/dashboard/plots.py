"""Plots: history of a kernel, time against nonzeros, roofline, compile times, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from .svg import COLORS, figure_of, inline
from .views import Case, Point, Snapshot
from .wording import counted, interval, number, seconds, size, times

MARKERS = "osD^vPX*"
LINKED = 300  # maximum number of points with links to their cases; tables link the others
FEW = 25  # maximum number of commits with markers
OWN = "numscorch"

Target = Callable[[Case], str]


@dataclass(frozen=True, slots=True)
class Plot:
    """An SVG and its caption."""

    svg: str
    caption: str


def history(name: str, points: Sequence[Point], link: Callable[[Snapshot], str | None]) -> Plot:
    """Plot of the mean ratio of a kernel by commit, with its interval."""
    places, values = list(range(len(points))), [point.ratio.value for point in points]
    marker_indices = _some(len(points))

    def draw(axes: Any) -> None:
        axes.axhline(1, color=COLORS["quiet"], linewidth=1, linestyle=(0, (4, 3)))
        low, high = [p.ratio.low for p in points], [p.ratio.high for p in points]
        axes.fill_between(places, low, high, color=COLORS["s0"], alpha=0.2, linewidth=0)
        axes.plot(places, values, color=COLORS["s0"], linewidth=1.5)
        axes.plot(
            [places[m] for m in marker_indices], [values[m] for m in marker_indices], "o", color=COLORS["s0"], markersize=4.5, gid="marks"
        )
        axes.set_ylabel("ratio", labelpad=8)  # leaves room for the larger numbers on phones
        axes.set_ylim(0, max(1.15, 1.15 * max(high)))
        shown = sorted({0, len(points) // 2, len(points) - 1})
        axes.set_xticks(shown, [f"{points[at].snapshot.commit[:7]}\n{points[at].snapshot.day}" for at in shown])
        if len(shown) > 1:
            axes.get_xticklabels()[-1].set_horizontalalignment("right")  # keeps large letters within the plot, as on phones

    links = [(link(points[m].snapshot), _point_text(points[m])) for m in marker_indices]
    alt = f"{name} over {len(points)} runs, from {times(values[0])} to {times(values[-1])}"
    caption = (
        "Time of the best peer over the time of numscorch: geometric mean of the cases, with a 95 % interval. Above 1, numscorch is faster."
    )
    return Plot(inline(figure_of(draw, wide=7.6, tall=2.9), "history", alt, {"marks": links}), caption)


def _some(amount: int) -> list[int]:
    """At most ``FEW`` evenly spaced indices, including the first and the last.

    >>> _some(3), len(_some(200)), _some(200)[-1]
    ([0, 1, 2], 25, 199)
    """
    if amount <= FEW:
        return list(range(amount))
    return [round(at * (amount - 1) / (FEW - 1)) for at in range(FEW)]


def _point_text(point: Point) -> str:
    ratio = f"{times(point.ratio.value)} ({interval(point.ratio)})"
    return f"{point.snapshot.commit}, {point.snapshot.day}: {ratio}, {counted(point.cases, 'case')}"


def time_by_nnz(name: str, cases: Sequence[Case], threads: int, target: Target) -> Plot | None:
    """Plot of seconds per call against stored entries, for numscorch and all peers, on logarithmic axes."""
    subset = sorted(
        (c for c in cases if _at(c, threads) and (c.record.get("nnz") or 0) > 0 < c.record["seconds"]), key=lambda c: int(c.record["nnz"])
    )
    if not subset:
        return None
    peers = sorted({peer for case in subset for peer in case.peers})

    def draw(axes: Any) -> None:
        for peer, marker, series in zip(peers, _markers(), count(1), strict=False):
            points = [(case.record["nnz"], case.peers[peer]["seconds"]) for case in subset if peer in case.peers]
            axes.loglog(*zip(*points, strict=True), marker, color=_color(series), markersize=5, alpha=0.75, markeredgewidth=0, label=peer)
        ours = [case.record["nnz"] for case in subset], [case.record["seconds"] for case in subset]
        axes.loglog(
            *ours, "o", color=COLORS["s0"], markersize=6, markeredgecolor=COLORS["paper"], markeredgewidth=0.8, label=OWN, gid="ours"
        )
        axes.set(xlabel="stored entries", ylabel="time per call")
        _ticks(axes, x=_short, y=seconds)
        _legend(axes)

    points = [(target(case), f"{case.name}: {seconds(case.record['seconds'])}, {number(case.record['nnz'])} entries") for case in subset]
    on, beside = counted(threads, "thread"), ", ".join(peers) or "no peer"
    alt = f"Time of {name} on {on} against stored entries: {len(subset)} cases, {OWN} and {beside}"
    figure = figure_of(draw, tall=3.8, legend=(len(peers) + 2) // 2)
    return Plot(inline(figure, f"time{threads}", alt, {"ours": points}), f"{on}. Each point of {OWN} links to its case.")


def roofline(name: str, cases: Sequence[Case], roofs: Mapping[str, Mapping[str, float]], target: Target) -> Plot | None:
    """Roofline plot: operations per second against operations per byte, with the roofs measured in the same run."""
    subset = [
        c
        for c in cases
        if c.record.get("flops") and c.record.get("bytes") and c.record["seconds"] > 0 and str(c.record["threads"]) in roofs
    ]
    if not subset:
        return None
    groups = {threads: [c for c in subset if _at(c, threads)] for threads in sorted({int(c.record["threads"]) for c in subset})}
    gids = {threads: f"on{threads}" for threads in groups}
    reach = [c.record["flops"] / c.record["bytes"] for c in subset]
    ends = min(*reach, 0.05) / 2, max(*reach, 20.0) * 2

    def draw(axes: Any) -> None:
        for place, (threads, group) in enumerate(groups.items()):
            roof, color, label = roofs[str(threads)], _color(place), counted(threads, "thread")
            ridge = roof["flops_per_second"] / roof["bytes_per_second"]
            edge = sorted({ends[0], ridge, ends[1]})
            heights = [min(x * roof["bytes_per_second"], roof["flops_per_second"]) / 1e9 for x in edge]
            axes.loglog(edge, heights, color=color, linewidth=1.2, linestyle="-" if place else (0, (5, 2)))
            x, y = zip(*(_intensity(case) for case in group), strict=True)
            axes.loglog(x, y, MARKERS[place], color=color, markersize=5.5, alpha=0.8, markeredgewidth=0, label=label, gid=gids[threads])
        axes.set(xlabel="operations per byte", ylabel="Gflop/s")
        _ticks(axes, x="{:g}".format, y="{:g}".format)
        _legend(axes)

    links = {gids[threads]: [(target(c), f"{c.name}: {_intensity(c)[1]:.2f} Gflop/s") for c in group] for threads, group in groups.items()}
    alt = f"Roofline of {name}: {len(subset)} cases below the machine's bandwidth and peak"
    caption = (
        "The lines are the memory bandwidth and the throughput of multiply-adds, measured in the same run. "
        "Bytes are the least that a call moves. Cases whose operands fit in a cache may lie above the slope."
    )
    return Plot(inline(figure_of(draw, tall=4.0, legend=1), "roof", alt, links), caption)


def _intensity(case: Case) -> tuple[float, float]:
    """Operations per byte, and Gflop/s."""
    record = case.record
    return record["flops"] / record["bytes"], record["flops"] / record["seconds"] / 1e9


def _at(case: Case, threads: int) -> bool:
    return case.record.get("threads") == threads


def compile_times(rows: Sequence[tuple[str, float, float | None]]) -> Plot:
    """Plot of compile and load times of kernels, longest first."""
    ordered = sorted(rows, key=lambda row: -row[1])
    loaded = [(place, load) for place, (_, _, load) in enumerate(ordered) if load]

    def draw(axes: Any) -> None:
        axes.plot(range(len(ordered)), [row[1] for row in ordered], "o", color=COLORS["s0"], markersize=4, label="compiled", gid="compiled")
        if loaded:
            axes.plot(*zip(*loaded, strict=True), "s", color=COLORS["s1"], markersize=3.5, label="loaded from the cache")
        axes.set(yscale="log", xlabel="kernels by compile time")
        _ticks(axes, y=seconds)
        _legend(axes)

    labels = [(None, f"{name}: {seconds(taken)}") for name, taken, _ in ordered]
    alt = f"Compile and load times of {len(rows)} kernels, at most {seconds(ordered[0][1])}"
    return Plot(inline(figure_of(draw, legend=1), "compile", alt, {"compiled": labels}), "Each point is the set of kernels of a case.")


def peaks(cases: Sequence[Case], target: Target) -> Plot | None:
    """Plot of peak memory of calls against the size of their results."""
    subset = [case for case in cases if case.record.get("peak_bytes") and case.record.get("result_bytes")]
    if not subset:
        return None

    def draw(axes: Any) -> None:
        x, y = [case.record["result_bytes"] for case in subset], [case.record["peak_bytes"] for case in subset]
        ends = min(*x, *y), max(*x, *y)
        axes.loglog(ends, ends, color=COLORS["quiet"], linewidth=1, linestyle=(0, (4, 3)))
        axes.loglog(x, y, "o", color=COLORS["s0"], markersize=4.5, alpha=0.7, markeredgewidth=0, gid="peaks")
        axes.set(xlabel="size of the result", ylabel="peak memory")
        _ticks(axes, x=size, y=size)

    points = [(target(c), f"{c.kernel}, {c.name}: {size(c.record['peak_bytes'])} for {size(c.record['result_bytes'])}") for c in subset]
    alt = f"Peak memory against the size of the result, {len(subset)} cases"
    caption = "On the dashed line, the peak equals the size of the result."
    links = {"peaks": points} if len(subset) <= LINKED else {}
    return Plot(inline(figure_of(draw, tall=4.2), "peak", alt, links), caption)


def _markers() -> Iterable[str]:
    return MARKERS[1:] * 4


def _color(number: int) -> str:
    """The colour of a series."""
    return COLORS[f"s{number % 8}"]


def _ticks(axes: Any, **words: Callable[[float], str]) -> None:
    """Format the ticks of logarithmic axes: powers of ten, or 1, 2 and 5 on short axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name, said in words.items():
        axis = getattr(axes, f"{name}axis")
        low, high = getattr(axes, f"get_{name}lim")()
        axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 50 else (1.0, 2.0, 5.0), numticks=8))
        axis.set_major_formatter(FuncFormatter(lambda value, _, said=said: said(value)))
        axis.set_minor_formatter(NullFormatter())


def _short(amount: float) -> str:
    """Format a number of entries.

    >>> _short(100.0), _short(10_000.0), _short(1e6)
    ('100', '10k', '1M')
    """
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= factor:
            return f"{amount / factor:g}{letter}"
    return f"{amount:g}"


def _legend(axes: Any) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, frameon=False, borderaxespad=0, handletextpad=0.3, fontsize=10)
