"""Overview page: speed of every kernel relative to every library, and changes since the previous run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .places import Place
from .templates import rendered
from .views import BEST, Comparison, View, compared, threads_of


def overview(view: View, place: Place, others: Sequence[tuple[View, str]], skipped: Mapping[str, str]) -> str:
    """The overview page.

    Args:
        view: the view to show.
        place: the place of the page.
        others: views of other machines or suites, and the paths of their overviews.
        skipped: files without a valid run, and the reason.
    """
    cases = view.latest.cases.values()
    threads = threads_of(cases)
    changes = sorted(view.changes, key=lambda change: -abs(math.log(change[1].value)))
    return rendered(
        "overview.html",
        place,
        view=view,
        others=others,
        skipped=skipped,
        overall=compared(view, cases, BEST),
        columns=[BEST, *view.columns],
        heats={"all": _heat(view)} | ({str(count): _heat(view, count) for count in threads} if len(threads) > 1 else {}),
        slower=[change for change in changes if change[1].value < 1],
        faster=[change for change in changes if change[1].value > 1],
        missing=view.latest.run.own.get("missing") or (),
        alone=[kernel for kernel, cases in view.kernels.items() if not any(case.ratio for case in cases)],
    )


def _heat(view: View, threads: int | None = None) -> dict[str, list[Comparison | None]]:
    """Kernels compared with every library, for the cases of a thread count or for all cases; rows without a comparison are left out."""
    rows = {}
    for kernel, cases in view.kernels.items():
        selected = [case for case in cases if threads in (None, case.record.get("threads"))]
        rows[kernel] = [compared(view, selected, column) for column in (BEST, *view.columns)]
    return {kernel: cells for kernel, cells in rows.items() if any(cells)}
