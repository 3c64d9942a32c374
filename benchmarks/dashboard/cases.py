"""Page of a case: its measurements, its peers, the latest runs, and its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .places import Place
from .ratios import Ratio
from .templates import rendered
from .views import Case, Snapshot, View

RUNS = 3  # latest runs shown


def case_page(view: View, case: Case, place: Place, sources: Mapping[str, Any]) -> str:
    """The page of a case.

    Args:
        view: the view of the case.
        case: a case of the latest run.
        place: the place of the page.
        sources: generated kernels with a page.
    """
    return rendered(
        "case.html",
        place,
        case=case,
        record=case.record,
        roofs=(view.latest.run.own.get("roofs") or {}).get(str(case.record.get("threads")), {}),
        peers=sorted(case.peers.items(), key=lambda peer: float(peer[1]["seconds"])),
        runs=_runs(view, case),
        kernels=[name for name in case.record.get("kernels") or () if name in sources],
    )


def _runs(view: View, case: Case) -> list[tuple[Snapshot, Ratio, Ratio | None]]:
    """The latest runs of the case, newest first, with its ratio and the change since the run before."""
    key = case.kernel, case.name
    found = [(snapshot, snapshot.ratios[key]) for snapshot in view.snapshots if key in snapshot.ratios]
    earlier = [None, *(ratio for _, ratio in found)]
    runs = [(snapshot, ratio, before and ratio.over(before)) for (snapshot, ratio), before in zip(found, earlier, strict=False)]
    return runs[::-1][:RUNS]
