"""A run of ``benchmarks.paper``: what its sections compare, what they found, and the tables that are printed of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from numscorch.measuring.agreement import check
from numscorch.measuring.turns import Function, Times, Turns, in_turns

from .figures import against
from .paper_tables import BARS, Bar, Sizes

TOLERANCE = 1e-4
TURN, MOST_CALLS = 0.004, 50  # seconds that the calls of a turn take together, and how many they are at most
Record = dict[str, Any]


@dataclass
class Run:
    """What is measured, and for how long; ``records`` has one record for each case and peer.

    Args:
        sizes: the cases.
        seconds: how long the functions of a case take turns.
        tell: is called with a line for each case.
    """

    sizes: Sizes
    seconds: float
    tell: Callable[[str], None] = print
    records: list[Record] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def attempt(self, measure: Callable[..., None], *arguments: Any) -> None:
        """Call ``measure(self, *arguments)``; whatever it raises is told and kept, so that other cases are measured all the same."""
        try:
            measure(self, *arguments)
        except Exception as error:
            told = ", ".join(str(own) for own in arguments if isinstance(own, str | int))
            self.failures.append(f"{getattr(measure, '__name__', measure)}({told}): {told_error(error)}")
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
        """Check that all compute the same, time them in turn, and record the best variant of each peer.

        Args:
            kernel: what bars know the records by.
            case: its name.
            ours: our function.
            peers: theirs; of ``"torch: one way"`` and ``"torch: another way"`` the faster one counts, as ``"torch"``.
            beside: what is timed and recorded without being compared: parts of a model.
            checked: what is compared in place of ``ours`` and peers, by their names, where those change their state or are random.
            tolerance: the relative one.
            rest: seconds to wait before each turn.
            facts: enter the records, for bars to choose by.
        """
        stand_in = {"ours": ours, **peers, **(checked or {})}
        expected = stand_in["ours"]()
        for name in peers:
            check(expected, stand_in[name](), name, tolerance)
        turns = steady_turns(ours, peers, beside or {}, seconds=self.seconds, rest=rest)
        made = list(_records(turns, kernel=kernel, case=case, **facts))
        self.records += made
        self.tell(line(case, statistics.median(turns.ours), made))
        return made


def steady_turns(ours: Function, peers: Mapping[str, Function], beside: Mapping[str, Function], seconds: float, rest: float) -> Turns:
    """Turns of about as many calls as fill a few milliseconds, as a model is run many times.

    Call by call, a function would mostly be measured with caches that its peers have filled, of which one that reads 100 MB leaves nothing.
    """
    blocks = {name: _block(function) for name, function in {"ours": ours, **peers, **beside}.items()}
    calls = {name: many for name, (_, many) in blocks.items()}

    def some(names: Iterable[str]) -> dict[str, Function]:
        return {name: blocks[name][0] for name in names}

    def each(times: Mapping[str, Times]) -> dict[str, Times]:
        return {name: tuple(own / calls[name] for own in taken) for name, taken in times.items()}

    turns = in_turns(blocks["ours"][0], some(peers), beside=some(beside), seconds=seconds, patience=inf, rest=rest)
    return Turns(each({"ours": turns.ours})["ours"], each(turns.peers), each(turns.beside))


def _block(function: Function) -> tuple[Function, int]:
    """Some calls one after the other, each of whose results is freed before the next one, and how many they are."""
    taken = inf
    for _ in range(3):
        start = time.perf_counter()
        function()
        taken = min(taken, time.perf_counter() - start)
    calls = max(1, min(MOST_CALLS, round(TURN / taken)))

    def several() -> None:
        for _ in range(calls):
            function()

    return (function, 1) if calls == 1 else (several, calls)


def _records(turns: Turns, **info: Any) -> Iterator[Record]:
    for peer, (variant, theirs) in _best({**turns.peers, **turns.beside}).items():
        yield {**info, "peer": peer, "variant": variant, "ours": statistics.median(turns.ours), **against(turns.ours, theirs)}


def _best(times: Mapping[str, Times]) -> dict[str, tuple[str, Times]]:
    """Of each peer the variant with the least median.

    >>> _best({"a: x": (2.0,), "a: y": (1.0,), "b": (3.0,)})
    {'a': ('y', (1.0,)), 'b': ('', (3.0,))}
    """
    best: dict[str, tuple[str, Times]] = {}
    for name, taken in times.items():
        peer, _, variant = name.partition(": ")
        if peer not in best or statistics.median(taken) < statistics.median(best[peer][1]):
            best[peer] = (variant, taken)
    return best


def line(case: str, ours: float, records: Iterable[Record]) -> str:
    """A case: our time, and each peer's ratio of medians and of minima."""
    told = "   ".join(f"{r['peer']} {r['ratio']:.2f}x ({r['ratio_of_minima']:.2f}x)" for r in records)
    return f"  {case:44} {duration(ours):>9}   {told}"


def told_error(error: Exception) -> str:
    """An error's class and the first line of its text.

    >>> told_error(ValueError("no\\nway"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0000125), duration(0.0321), duration(2.0)
    ('12.5 us', '32.1 ms', '2 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


HEAD = ("end to end, against", "cases", "geometric mean", "bar", "worst (by minima)", "bar", "met", "the paper's")


def summary(records: Sequence[Record]) -> str:
    """Every bar that something was measured for, as Markdown."""
    rows = [_row(bar, taken) for bar in BARS if (taken := [own for own in records if bar.takes(own)])]
    if not rows:
        return ""
    lines = [HEAD, tuple("---" for _ in HEAD), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _row(bar: Bar, taken: Sequence[Record]) -> tuple[str, ...]:
    mean, worst = statistics.geometric_mean(own["ratio"] for own in taken), min(taken, key=lambda own: own["ratio"])
    return (
        bar.title,
        str(len(taken)),
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
