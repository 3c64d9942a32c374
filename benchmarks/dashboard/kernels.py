"""Page of a kernel of the suite: its history, times, roofline and cases."""

from __future__ import annotations

from collections.abc import Iterable

from . import plots
from .places import Place
from .templates import rendered
from .views import View, threads_of


def kernel_page(view: View, kernel: str, place: Place) -> str:
    """The page of a kernel."""
    cases, points = view.kernels[kernel], view.history(kernel)
    is_comparable = len(points) > 1 and points[-2].cases == points[-1].cases
    clouds = (plots.time_by_nnz(kernel, cases, threads, place.case) for threads in threads_of(cases))
    return rendered(
        "kernel.html",
        place,
        view=view,
        kernel=kernel,
        cases=cases,
        points=points,
        since=points[-1].ratio.over(points[-2].ratio) if is_comparable else None,
        history=plots.history(kernel, points, place.commit) if points else None,
        clouds=[cloud for cloud in clouds if cloud],
        roofline=plots.roofline(kernel, cases, view.latest.run.own.get("roofs") or {}, place.case),
        peers=_names(case.peers for case in cases),
        baselines=_names(case.beside for case in cases),
        labels={name: label for case in cases for name, label in case.labels.items()},
    )


def _names(measured: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for of_case in measured for name in of_case})
