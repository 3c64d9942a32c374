"""Views: the runs of one suite on one kind of machine. Ratios are compared only within a view."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from ..history import utc
from ..records import SUITES, UNKNOWN, Record, Run, case_of
from .ratios import Ratio, mean, mean_change, ratio_of

BEST = "best peer"
_LIBRARY = re.compile(r"[\w/-]+")


@dataclass(frozen=True, slots=True)
class Case:
    """A record with a name that identifies it across runs."""

    kernel: str
    name: str
    record: Record

    @property
    def ratio(self) -> Ratio | None:
        """Ratio to the best peer."""
        return ratio_of(self.record)

    @property
    def peers(self) -> Mapping[str, Mapping[str, Any]]:
        """Measurements by peer."""
        return self.record.get("peers") or {}

    @property
    def beside(self) -> Mapping[str, Mapping[str, Any]]:
        """Measurements of baselines that are not peers."""
        return self.record.get("beside") or {}

    @property
    def labels(self) -> Mapping[str, str]:
        """Remarks on baselines that are not peers."""
        return self.record.get("labels") or {}

    def rate(self, amount: str) -> float | None:
        """``"bytes"`` or ``"flops"`` in units of 10^9 per second, if recorded."""
        count, seconds = self.record.get(amount), self.record["seconds"]
        return count / seconds / 1e9 if count and seconds > 0 else None


@dataclass(frozen=True)
class Snapshot:
    """A run with its cases by kernel and name."""

    run: Run

    @cached_property
    def cases(self) -> dict[tuple[str, str], Case]:
        """Cases in the order of the run; repeated names are numbered."""
        cases_by_name: dict[tuple[str, str], Case] = {}
        for record in self.run.records:
            kernel, name = str(record["kernel"]), name_of(record)
            number = 1
            while (kernel, unique_name := name if number == 1 else f"{name} ({number})") in cases_by_name:
                number += 1
            cases_by_name[kernel, unique_name] = Case(kernel, unique_name, record)
        return cases_by_name

    @cached_property
    def ratios(self) -> dict[tuple[str, str], Ratio]:
        """Ratios of the cases that have peers."""
        return {key: ratio for key, case in self.cases.items() if (ratio := case.ratio)}

    @property
    def commit(self) -> str:
        """Short hash, with ``+`` for uncommitted changes."""
        return "unknown" if self.run.commit == UNKNOWN else self.run.commit[:10] + ("+" if self.run.dirty else "")

    @property
    def day(self) -> str:
        """Date of the measurement."""
        return self.run.time[:10]


@dataclass(frozen=True, slots=True)
class Point:
    """Mean ratio of a kernel in a run, over the cases that the latest run shares."""

    snapshot: Snapshot
    ratio: Ratio
    cases: int


class Comparison(NamedTuple):
    """Mean ratio of cases to a library, the number of cases, and the change since the previous run."""

    ratio: Ratio
    cases: int
    change: Ratio | None

    @property
    def strength(self) -> float:
        """Percentage of the colour of a table cell: 0 for a ratio of 1, and 100 for 4 or 1/4 and beyond."""
        return 100 * min(abs(math.log(self.ratio.value, 4)), 1)


@dataclass(frozen=True)
class View:
    """Comparable runs, oldest first."""

    snapshots: tuple[Snapshot, ...]

    @property
    def latest(self) -> Snapshot:
        """The latest run, shown on the pages."""
        return self.snapshots[-1]

    @property
    def before(self) -> Snapshot | None:
        """The previous run, if any."""
        return self.snapshots[-2] if len(self.snapshots) > 1 else None

    @property
    def key(self) -> tuple[str, str]:
        """The kind of machine, and the suite."""
        return self.latest.run.fingerprint, self.latest.run.suite

    @cached_property
    def kernels(self) -> dict[str, list[Case]]:
        """Cases of the latest run by kernel."""
        grouped: dict[str, list[Case]] = {}
        for case in self.latest.cases.values():
            grouped.setdefault(case.kernel, []).append(case)
        return grouped

    @cached_property
    def columns(self) -> list[str]:
        """Libraries with peers in any case, most frequent first."""
        counts: dict[str, int] = {}
        for case in self.latest.cases.values():
            for name in {library_of(peer) for peer in case.peers}:
                counts[name] = counts.get(name, 0) + 1
        return sorted(counts, key=lambda name: (-counts[name], name))

    def change(self, case: Case) -> Ratio | None:
        """Change of a case's ratio since the previous run."""
        if self.before is None:
            return None
        new, old = self.latest.ratios.get((case.kernel, case.name)), self.before.ratios.get((case.kernel, case.name))
        return new.over(old) if new and old else None

    @cached_property
    def changes(self) -> list[tuple[Case, Ratio]]:
        """Cases that changed significantly since the previous run."""
        return [(case, change) for case in self.latest.cases.values() if (change := self.change(case)) and change.is_clear]

    def history(self, kernel: str) -> list[Point]:
        """Points of a kernel, for every run with some of its cases."""
        keys = [(kernel, case.name) for case in self.kernels[kernel]]
        points = []
        for snapshot in self.snapshots:
            ratios = [snapshot.ratios[key] for key in keys if key in snapshot.ratios]
            if ratios:
                points.append(Point(snapshot, mean(ratios), len(ratios)))
        return points


def name_of(record: Record) -> str:
    """Name of a record within its kernel, with or instead of the matrix if the record has a ``what``.

    >>> name_of({"kernel": "import", "what": "import numscorch, after torch", "threads": 1})
    'import numscorch, after torch'
    """
    what = record.get("what")
    if "matrix" in record and "threads" in record:
        return case_of(record) if what is None or "what" in record.get("variant", ()) else f"{what}, {case_of(record)}"
    return str(what or record.get("matrix") or "the only case")


def library_of(peer: str) -> str:
    """Column of a peer: its library. Peers with 64-bit indices, the default of torch, have a separate column.

    >>> library_of("torch.index_add"), library_of("SciPy x @ CSR"), library_of("torch CSR int64")
    ('torch', 'SciPy', 'torch, int64')
    """
    match = _LIBRARY.match(peer)
    name = match.group() if match else peer
    return f"{name}, int64" if peer.endswith("int64") else name


def against(case: Case, column: str) -> Ratio | None:
    """Ratio of a case to the fastest peer of a library, or to the best peer for ``BEST``."""
    if column == BEST:
        return case.ratio
    ratios = [ratio for peer, measurement in case.peers.items() if library_of(peer) == column and (ratio := ratio_of(measurement))]
    return min(ratios, key=lambda ratio: ratio.value, default=None)


def compared(view: View, cases: Iterable[Case], column: str) -> Comparison | None:
    """Compare cases with a library; None if it is no peer of any of them."""
    new = {(case.kernel, case.name): ratio for case in cases if (ratio := against(case, column))}
    if not new:
        return None
    earlier = view.before.cases if view.before else {}
    pairs = ((ratio, against(earlier[key], column)) for key, ratio in new.items() if key in earlier)
    changes = [ratio.over(old) for ratio, old in pairs if old]
    return Comparison(mean(list(new.values())), len(new), mean_change(changes) if changes else None)


def threads_of(cases: Iterable[Case]) -> list[int]:
    """Thread counts of cases with ratios."""
    return sorted({int(case.record["threads"]) for case in cases if "threads" in case.record and case.ratio})


def views_of(runs: Sequence[Run]) -> list[View]:
    """Views by machine and suite, starting with the view of the index page.

    Views of the most recently used machine come first, with the full suite before the quick suite and partial runs; other views
    follow in the same order of suites. Views of equal rank are sorted by their latest run, newest first.
    """
    grouped: dict[tuple[str, str], dict[tuple[str, str], Run]] = {}
    for run in sorted(runs, key=_time):
        if run.records:
            grouped.setdefault((run.fingerprint, run.suite), {})[run.commit, run.time] = run
    views = [View(tuple(Snapshot(run) for run in group.values())) for group in grouped.values()]
    views.sort(key=lambda view: _time(view.latest.run), reverse=True)
    if views:
        here = views[0].key[0]
        views.sort(key=lambda view: (view.key[0] != here, SUITES.index(view.key[1])))
    return views


def _time(run: Run) -> datetime:
    return utc(run.time)
