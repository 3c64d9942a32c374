"""What is drawn: a kernel's history, times against nonzeros, the roofline, and what compiling and memory take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from .ratios import ratio_of
from .svg import COLORS, figure_of, inline
from .views import Case, Point
from .wording import interval, number, seconds, size, times

MARKERS = "osD^vPX*"
LINKED = 300  # points that lead to their cases; the tables do for more
FEW = 25  # commits that have a marker each; more are drawn as a line with markers at some
OWN = "numscorch"

Target = Callable[[Case], str]


@dataclass(frozen=True, slots=True)
class Plot:
    """An SVG, and the sentence below it."""

    svg: str
    caption: str


def history(name: str, points: Sequence[Point], link: Callable[[Point], str | None]) -> Plot:
    """The mean ratio of a kernel, commit by commit, with its interval."""
    places, values = list(range(len(points))), [point.ratio.value for point in points]
    marked = _some(len(points))

    def draw(axes: Any) -> None:
        axes.axhline(1, color=COLORS["quiet"], linewidth=1, linestyle=(0, (4, 3)))
        low, high = [p.ratio.low for p in points], [p.ratio.high for p in points]
        axes.fill_between(places, low, high, color=COLORS["s0"], alpha=0.2, linewidth=0)
        axes.plot(places, values, color=COLORS["s0"], linewidth=1.5)
        axes.plot([places[m] for m in marked], [values[m] for m in marked], "o", color=COLORS["s0"], markersize=4.5, gid="marks")
        axes.set(ylabel="times as fast", ylim=(0, max(1.15, 1.15 * max(high))))
        shown = sorted({0, len(points) // 2, len(points) - 1})
        axes.set_xticks(shown, [f"{points[at].snapshot.commit[:7]}\n{points[at].snapshot.day}" for at in shown])
        if len(shown) > 1:
            axes.get_xticklabels()[-1].set_horizontalalignment("right")  # within the plot where letters are larger, as on phones

    told = [(link(points[m]), _point_text(points[m])) for m in marked]
    alt = f"{name} over {len(points)} runs, from {times(values[0])} to {times(values[-1])}"
    caption = "The best peer's time over ours: geometric mean of the cases, with a 95 % interval. Above the dashed line we are faster."
    return Plot(inline(figure_of(draw, wide=7.6, tall=2.9), "history", alt, {"marks": told}), caption)


def _some(amount: int) -> list[int]:
    """At most ``FEW`` places, the first and the last among them.

    >>> _some(3), len(_some(200)), _some(200)[-1]
    ([0, 1, 2], 25, 199)
    """
    if amount <= FEW:
        return list(range(amount))
    return [round(at * (amount - 1) / (FEW - 1)) for at in range(FEW)]


def _point_text(point: Point) -> str:
    told = "case" if point.cases == 1 else "cases"
    return f"{point.snapshot.commit}, {point.snapshot.day}: {times(point.ratio.value)} ({interval(point.ratio)}), {point.cases} {told}"


def time_by_nnz(name: str, cases: Sequence[Case], threads: int, target: Target) -> Plot | None:
    """Seconds of a call against stored entries, ours and every peer's, on logarithmic axes."""
    own = sorted(
        (c for c in cases if _at(c, threads) and (c.record.get("nnz") or 0) > 0 < c.record["seconds"]), key=lambda c: int(c.record["nnz"])
    )
    if not own:
        return None
    peers = sorted({peer for case in own for peer in case.peers})

    def draw(axes: Any) -> None:
        for peer, marker, series in zip(peers, _markers(), count(1), strict=False):
            told = [(case.record["nnz"], case.peers[peer]["seconds"]) for case in own if peer in case.peers]
            axes.loglog(*zip(*told, strict=True), marker, color=_color(series), markersize=5, alpha=0.75, markeredgewidth=0, label=peer)
        ours = [case.record["nnz"] for case in own], [case.record["seconds"] for case in own]
        axes.loglog(
            *ours, "o", color=COLORS["s0"], markersize=6, markeredgecolor=COLORS["paper"], markeredgewidth=0.8, label=OWN, gid="ours"
        )
        axes.set(xlabel="stored entries", ylabel="time of a call")
        _ticks(axes, x=_short, y=seconds)
        _legend(axes)

    told = [(target(case), f"{case.name}: {seconds(case.record['seconds'])}, {number(case.record['nnz'])} entries") for case in own]
    plural = "s" if threads > 1 else ""
    alt = f"Time of {name} on {threads} thread{plural} against stored entries: {len(own)} cases, {OWN} and {', '.join(peers) or 'no peer'}"
    figure = figure_of(draw, tall=3.8, legend=(len(peers) + 2) // 2)
    return Plot(inline(figure, f"time{threads}", alt, {"ours": told}), f"{threads} thread{plural}. Each of our points leads to its case.")


def roofline(name: str, cases: Sequence[Case], roofs: Mapping[str, Mapping[str, float]], target: Target) -> Plot | None:
    """Operations a second against operations a byte, below what the machine reached in the same run."""
    own = [
        c
        for c in cases
        if c.record.get("flops") and c.record.get("bytes") and c.record["seconds"] > 0 and str(c.record["threads"]) in roofs
    ]
    if not own:
        return None
    groups = {threads: [c for c in own if _at(c, threads)] for threads in sorted({int(c.record["threads"]) for c in own})}
    gids = {threads: f"on{threads}" for threads in groups}
    reach = [c.record["flops"] / c.record["bytes"] for c in own]
    ends = min(*reach, 0.05) / 2, max(*reach, 20.0) * 2

    def draw(axes: Any) -> None:
        for place, (threads, group) in enumerate(groups.items()):
            roof, color, told = roofs[str(threads)], _color(place), f"{threads} thread{'s' if threads > 1 else ''}"
            ridge = roof["flops_per_second"] / roof["bytes_per_second"]
            edge = sorted({ends[0], ridge, ends[1]})
            heights = [min(x * roof["bytes_per_second"], roof["flops_per_second"]) / 1e9 for x in edge]
            axes.loglog(edge, heights, color=color, linewidth=1.2, linestyle="-" if place else (0, (5, 2)))
            x, y = zip(*(_intensity(case) for case in group), strict=True)
            axes.loglog(x, y, MARKERS[place], color=color, markersize=5.5, alpha=0.8, markeredgewidth=0, label=told, gid=gids[threads])
        axes.set(xlabel="operations a byte that has to be moved", ylabel="Gflop/s")
        _ticks(axes, x="{:g}".format, y="{:g}".format)
        _legend(axes)

    links = {gids[threads]: [(target(c), f"{c.name}: {_intensity(c)[1]:.2f} Gflop/s") for c in group] for threads, group in groups.items()}
    alt = f"Roofline of {name}: {len(own)} cases below the machine's bandwidth and peak"
    caption = (
        "The lines are what this machine reached in the same run: memory's bandwidth on the left, multiply-adds on the right. "
        "Bytes are what has to be moved at least; operands that fit in a cache may lie above the slope."
    )
    return Plot(inline(figure_of(draw, tall=4.0, legend=1), "roof", alt, links), caption)


def _intensity(case: Case) -> tuple[float, float]:
    """Operations a byte, and Gflop/s."""
    record = case.record
    return record["flops"] / record["bytes"], record["flops"] / record["seconds"] / 1e9


def _at(case: Case, threads: int) -> bool:
    return case.record.get("threads") == threads


def compile_times(rows: Sequence[tuple[str, float, float | None]]) -> Plot:
    """Seconds to compile kernels and to load them, the longest first."""
    ordered = sorted(rows, key=lambda row: -row[1])
    loaded = [(place, load) for place, (_, _, load) in enumerate(ordered) if load]

    def draw(axes: Any) -> None:
        axes.plot(range(len(ordered)), [row[1] for row in ordered], "o", color=COLORS["s0"], markersize=4, label="compiled", gid="compiled")
        if loaded:
            axes.plot(*zip(*loaded, strict=True), "s", color=COLORS["s1"], markersize=3.5, label="loaded from the cache")
        axes.set(yscale="log", xlabel="kernels, the longest to compile first")
        _ticks(axes, y=seconds)
        _legend(axes)

    told = [(None, f"{name}: {seconds(taken)}") for name, taken, _ in ordered]
    alt = f"Compile and load times of {len(rows)} kernels, at most {seconds(ordered[0][1])}"
    return Plot(
        inline(figure_of(draw, legend=1), "compile", alt, {"compiled": told}), "Each point is a set of kernels that some case runs."
    )


def peaks(cases: Sequence[Case], target: Target) -> Plot | None:
    """What a call takes at most against what it returns."""
    own = [case for case in cases if case.record.get("peak_bytes") and case.record.get("result_bytes")]
    if not own:
        return None

    def draw(axes: Any) -> None:
        x, y = [case.record["result_bytes"] for case in own], [case.record["peak_bytes"] for case in own]
        ends = min(*x, *y), max(*x, *y)
        axes.loglog(ends, ends, color=COLORS["quiet"], linewidth=1, linestyle=(0, (4, 3)))
        axes.loglog(x, y, "o", color=COLORS["s0"], markersize=4.5, alpha=0.7, markeredgewidth=0, gid="peaks")
        axes.set(xlabel="the result", ylabel="at the peak")
        _ticks(axes, x=size, y=size)

    told = [(target(c), f"{c.kernel}, {c.name}: {size(c.record['peak_bytes'])} for {size(c.record['result_bytes'])}") for c in own]
    alt = f"Peak memory against the result's of {len(own)} cases"
    caption = "On the dashed line a call takes no more than its result."
    links = {"peaks": told} if len(own) <= LINKED else {}
    return Plot(inline(figure_of(draw, tall=4.2), "peak", alt, links), caption)


def _markers() -> Iterable[str]:
    return MARKERS[1:] * 4


def _color(number: int) -> str:
    """The colour of a series."""
    return COLORS[f"s{number % 8}"]


def _ticks(axes: Any, **words: Callable[[float], str]) -> None:
    """Say numbers on logarithmic axes in words, at powers of ten, or within the only one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name, said in words.items():
        axis = getattr(axes, f"{name}axis")
        low, high = getattr(axes, f"get_{name}lim")()
        axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 50 else (1.0, 2.0, 5.0), numticks=8))
        axis.set_major_formatter(FuncFormatter(lambda value, _, said=said: said(value)))
        axis.set_minor_formatter(NullFormatter())


def _short(amount: float) -> str:
    """A number of entries.

    >>> _short(100.0), _short(10_000.0), _short(1e6)
    ('100', '10k', '1M')
    """
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= factor:
            return f"{amount / factor:g}{letter}"
    return f"{amount:g}"


def _legend(axes: Any) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, frameon=False, borderaxespad=0, handletextpad=0.3, fontsize=10)


def measured(cases: Iterable[Case]) -> list[int]:
    """Thread counts."""
    return sorted({int(case.record["threads"]) for case in cases if "threads" in case.record and ratio_of(case.record)})
