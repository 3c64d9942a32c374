"""A run of ``benchmarks.paper``: comparisons, their records, and the printed tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from numscorch.measuring.comparison import check
from numscorch.measuring.turns import Function, Times, Turns, in_turns

from ..figures import against
from .tables import BARS, Bar, Sizes

TOLERANCE = 1e-4
TURN, MOST_CALLS = 0.004, 50  # duration of a turn in seconds, and its maximum number of calls
Record = dict[str, Any]


@dataclass
class Run:
    """A run with its cases and its time per case; ``records`` has one record per case and peer.

    Args:
        sizes: the cases.
        seconds: time for which the functions of a case take turns.
        tell: called with one line per case.
    """

    sizes: Sizes
    seconds: float
    tell: Callable[[str], None] = print
    records: list[Record] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def attempt(self, measure: Callable[..., None], *arguments: Any) -> None:
        """Call ``measure(self, *arguments)``; report and record any exception, so that the run continues."""
        try:
            measure(self, *arguments)
        except Exception as error:
            names = ", ".join(str(argument) for argument in arguments if isinstance(argument, str | int))
            self.failures.append(f"{getattr(measure, '__name__', measure)}({names}): {told_error(error)}")
            self.tell(f"  FAILED {self.failures[-1]}")

    def compare(
        self,
        kernel: str,
        case: str,
        ours: Function,
        peers: Mapping[str, Function],
        *,
        beside: Mapping[str, Function] | None = None,
        checked: Mapping[str, Function] | None = None,
        tolerance: float = TOLERANCE,
        rest: float = 0.0,
        **facts: Any,
    ) -> list[Record]:
        """Check that all functions agree, time them in turn, and record the best variant of each peer.

        Args:
            kernel: name by which bars select the records.
            case: name of the case.
            ours: the function of numscorch.
            peers: peer functions; for ``"torch: one way"`` and ``"torch: another way"``, the faster one is recorded as ``"torch"``.
            beside: functions that are timed and recorded but not checked, such as parts of a model.
            checked: functions to check instead of ``ours`` and peers, by name, if those are random or change their state.
            tolerance: relative tolerance.
            rest: seconds to wait before each turn.
            facts: further keys of the records, by which bars select.
        """
        stand_in = {"ours": ours, **peers, **(checked or {})}
        expected = stand_in["ours"]()
        for name in peers:
            check(expected, stand_in[name](), name, tolerance)
        turns = steady_turns(ours, peers, beside or {}, seconds=self.seconds, rest=rest)
        records = list(_records(turns, kernel=kernel, case=case, **facts))
        self.records += records
        self.tell(line(case, statistics.median(turns.ours), records))
        return records


def steady_turns(ours: Function, peers: Mapping[str, Function], beside: Mapping[str, Function], seconds: float, rest: float) -> Turns:
    """Time the functions in turn, with calls for a few milliseconds in each turn.

    A model usually runs many times. With one call per turn, a function would find caches filled by its peers; a peer that reads 100 MB
    evicts everything.
    """
    blocks = {name: _block(function) for name, function in {"ours": ours, **peers, **beside}.items()}
    calls = {name: many for name, (_, many) in blocks.items()}

    def some(names: Iterable[str]) -> dict[str, Function]:
        return {name: blocks[name][0] for name in names}

    def each(times: Mapping[str, Times]) -> dict[str, Times]:
        return {name: tuple(seconds_of_block / calls[name] for seconds_of_block in durations) for name, durations in times.items()}

    turns = in_turns(blocks["ours"][0], some(peers), beside=some(beside), seconds=seconds, patience=inf, rest=rest)
    return Turns(each({"ours": turns.ours})["ours"], each(turns.peers), each(turns.beside))


def _block(function: Function) -> tuple[Function, int]:
    """Function for consecutive calls, with each result freed before the next call, and the number of calls."""
    least = inf
    for _ in range(3):
        start = time.perf_counter()
        function()
        least = min(least, time.perf_counter() - start)
    calls = max(1, min(MOST_CALLS, round(TURN / least)))

    def several() -> None:
        for _ in range(calls):
            function()

    return (function, 1) if calls == 1 else (several, calls)


def _records(turns: Turns, **info: Any) -> Iterator[Record]:
    for peer, (variant, theirs) in _best({**turns.peers, **turns.beside}).items():
        yield {**info, "peer": peer, "variant": variant, "ours": statistics.median(turns.ours), **against(turns.ours, theirs)}


def _best(times: Mapping[str, Times]) -> dict[str, tuple[str, Times]]:
    """The variant of each peer with the smallest median.

    >>> _best({"a: x": (2.0,), "a: y": (1.0,), "b": (3.0,)})
    {'a': ('y', (1.0,)), 'b': ('', (3.0,))}
    """
    best: dict[str, tuple[str, Times]] = {}
    for name, durations in times.items():
        peer, _, variant = name.partition(": ")
        if peer not in best or statistics.median(durations) < statistics.median(best[peer][1]):
            best[peer] = (variant, durations)
    return best


def line(case: str, ours: float, records: Iterable[Record]) -> str:
    """Line for a case: the time of numscorch, and the ratios of medians and of minima per peer."""
    ratios = "   ".join(f"{r['peer']} {r['ratio']:.2f}x ({r['ratio_of_minima']:.2f}x)" for r in records)
    return f"  {case:44} {duration(ours):>9}   {ratios}"


def told_error(error: Exception) -> str:
    """Class and first line of an error.

    >>> told_error(ValueError("no\\nway"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(0.0000125), duration(0.0321), duration(2.0)
    ('12.5 us', '32.1 ms', '2 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


HEAD = ("end to end, against", "cases", "geometric mean", "bar", "worst (by minima)", "bar", "met", "the paper's")


def summary(records: Sequence[Record]) -> str:
    """Markdown table of all bars that have records."""
    rows = [_row(bar, selected) for bar in BARS if (selected := [record for record in records if bar.takes(record)])]
    if not rows:
        return ""
    lines = [HEAD, tuple("---" for _ in HEAD), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _row(bar: Bar, records: Sequence[Record]) -> tuple[str, ...]:
    mean, worst = statistics.geometric_mean(record["ratio"] for record in records), min(records, key=lambda record: record["ratio"])
    return (
        bar.title,
        str(len(records)),
        _told(mean, bar),
        _asked(bar.mean, bar),
        f"{_told(worst['ratio'], bar)} ({_told(worst['ratio_of_minima'], bar)}) {worst['case']}",
        _asked(bar.worst, bar),
        _met(bar, mean, worst["ratio"]),
        bar.paper,
    )


def _met(bar: Bar, mean: float, worst: float) -> str:
    if bar.mean is None and bar.worst is None:
        return ""
    is_far = bar.worst is None or (worst > bar.worst if bar.strictly else worst >= bar.worst)
    return "met" if is_far and (bar.mean is None or mean >= bar.mean) else "**not met**"


def _told(ratio: float, bar: Bar) -> str:
    return f"{ratio:.0%}" if bar.is_share else f"{ratio:.2f}x"


def _asked(least: float | None, bar: Bar) -> str:
    if least is None:
        return ""
    if bar.strictly:
        return "faster"
    return f"{least:.0%}" if bar.is_share else f"{least:g}x"
