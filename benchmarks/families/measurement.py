"""Cases of families timed in turns with all peers and with themselves, and the table of all families.

Ratios are times of a peer over ours, each the fastest turn; a turn is a block of calls of about a millisecond. Other load on the
machine lengthens some turns, and the fastest ones least. In each case our function also competes with itself (A/A). A difference that
is not larger than the one between the two is a tie, and a tie is no worst case.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import torch

from numscorch.measuring.comparison import check
from numscorch.measuring.peers import REFUSALS
from numscorch.measuring.turns import Function, in_turns

from ..peers import taking_turns
from ..peers.hand import HAND
from ..peers.installed import installed
from ..peers.library import Library
from ..report import table
from .comparisons import FAMILIES, Choice, Comparison, Family

AGAIN = "numscorch again"
BLOCK = 1e-3  # seconds of calls in one turn
FEW_CALLS = 5
SLOW = 4.0  # peers slower than the fastest library by this factor take no turns
HEAD = ("family", "cases", "over the best library", "over hand", "worst of either", "ties", "bars", "met")


@dataclass(frozen=True)
class Measured:
    """A case: ratios of the peers' times to ours by name, and that of our function to itself."""

    case: str
    ratios: Mapping[str, float]
    noise: float

    def is_tie(self, ratio: float) -> bool:
        """Whether a ratio differs from 1 by no more than our function differs from itself.

        >>> Measured("", {}, noise=0.95).is_tie(1.04)
        True
        """
        return abs(math.log(ratio)) <= abs(math.log(self.noise))

    @property
    def best(self) -> str | None:
        """The fastest library."""
        return min((name for name in self.ratios if name != HAND), key=lambda name: self.ratios[name], default=None)

    @property
    def contenders(self) -> Iterator[str]:
        """The fastest library, and the plain loops."""
        yield from (name for name in (self.best, HAND) if name is not None and name in self.ratios)


def measure(names: Sequence[str], threads: int, count: int | None, seconds: float) -> str:
    """Measure the families whose names contain one of the texts, and return the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    libraries, missing = installed(threads)
    choice, rows = Choice(libraries, count), []
    for family in FAMILIES:
        if not names or any(part.lower() in family.name.lower() for part in names):
            cases = [measured(family.name, comparison, threads, seconds) for comparison in family.cases(choice)]
            rows += [row(family, cases)] if cases else []
            print(" | ".join(rows[-1]) if cases else f"{family.name}: no case", file=sys.stderr, flush=True)
    return "\n".join([table(HEAD, rows), "", *remarks(libraries, missing, threads)])


def remarks(libraries: Sequence[Library], missing: Mapping[str, str], threads: int) -> Iterator[str]:
    """Lines below the table: what was measured, and what was not."""
    yield f"{threads} thread{'s' if threads > 1 else ''}. Libraries: {', '.join(library.name for library in libraries)}."
    yield from (f"{library.note}." for library in libraries if library.note)
    yield from (f"Missing: {name} ({why})." for name, why in missing.items())


def measured(family: str, comparison: Comparison, threads: int, seconds: float) -> Measured:
    """Compare the results of all functions, and time those that agree; others are reported and left out."""
    peers = racing(dict(_agreeing(family, comparison)))
    beside = {AGAIN: lambda: comparison.ours()}
    beside |= {HAND: peers.pop(HAND)} if HAND in peers else {}
    calls, ratios, best = calls_of(comparison.ours), dict[str, float](), math.inf
    for group, rest in taking_turns({**beside, **peers}, threads):
        turns = in_turns(comparison.ours, {}, beside=group, seconds=seconds, calls=calls, rest=rest)
        ratios |= {name: min(times) / min(turns.ours) for name, times in turns.beside.items()}
        best = min(best, *turns.ours)
    noise = ratios.pop(AGAIN)
    listed = ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(ratios.items(), key=lambda pair: pair[1]))
    print(f"{family}, {comparison.case}: {best * 1e6:.1f} us; A/A {noise:.2f}; {listed}", file=sys.stderr, flush=True)
    return Measured(comparison.case, ratios, noise)


def _agreeing(family: str, comparison: Comparison) -> Iterator[tuple[str, Function]]:
    """The peers whose results agree with ours."""
    ours = comparison.read(comparison.ours())
    for name, peer in comparison.peers.items():
        try:
            check(ours, comparison.read(peer()), name)
        except (AssertionError, *REFUSALS) as error:
            print(f"{family}, {comparison.case}: {name} is left out: {' '.join(str(error).split())[:120]}", file=sys.stderr, flush=True)
            continue
        yield name, peer


def racing(peers: Mapping[str, Function]) -> dict[str, Function]:
    """Peers that may be the fastest one, by few calls of each; the others would take most of the time."""
    seconds = {name: _seconds_of(peer) for name, peer in peers.items()}
    limit = SLOW * min((seconds[name] for name in seconds if name != HAND), default=math.inf)
    return {name: peer for name, peer in peers.items() if name == HAND or seconds[name] <= limit}


def calls_of(function: Function) -> int:
    """The number of calls in a block."""
    return max(1, round(BLOCK / max(_seconds_of(function), 1e-9)))


def _seconds_of(function: Function) -> float:
    """Seconds of the fastest of several calls, or of one that is longer than all blocks of a turn."""
    seconds = list[float]()
    while len(seconds) < FEW_CALLS and sum(seconds) < FEW_CALLS * BLOCK:
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def row(family: Family, cases: Sequence[Measured]) -> tuple[str, ...]:
    """A row of the table."""
    library = _mean([case.ratios[case.best] for case in cases if case.best is not None])
    hand = _mean([case.ratios[HAND] for case in cases if HAND in case.ratios])
    pairs = [(case, name) for case in cases for name in case.contenders]
    decided = [(case.ratios[name], case.case, name) for case, name in pairs if not case.is_tie(case.ratios[name])]
    worst = min(decided, default=None)
    means = {"library": (library, family.library), "hand": (hand, family.hand), "worst": (worst[0] if worst else None, family.worst)}
    missed = [name for name, (ratio, bar) in means.items() if bar is not None and ratio is not None and ratio < bar]
    bars = "; ".join("-" if bar is None else f"{bar:g}" for _, bar in means.values())
    case = f"{worst[0]:.2f} {worst[1]}, {worst[2]}" if worst else "-"
    ties = str(len(pairs) - len(decided))
    return family.name, str(len(cases)), _text(library), _text(hand), case, ties, bars, f"no: {', '.join(missed)}" if missed else "yes"


def _mean(ratios: Sequence[float]) -> float | None:
    return geometric_mean(ratios) if ratios else None


def _text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
