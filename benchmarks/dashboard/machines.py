"""Page of the machines: each kind of machine with the library versions and roofs of its latest run."""

from __future__ import annotations

from collections.abc import Sequence

from ..history import utc
from .places import Place
from .templates import rendered
from .views import View


def machines_page(views: Sequence[tuple[View, str]], place: Place) -> str:
    """The page of the machines.

    Args:
        views: pairs of a view and the path of its overview.
        place: the place of the page.
    """
    kinds: dict[str, list[tuple[View, str]]] = {}
    for view, target in views:
        kinds.setdefault(view.key[0], []).append((view, target))
    latest = [max((view.latest.run for view, _ in kind), key=lambda run: utc(run.time)) for kind in kinds.values()]
    return rendered("machines.html", place, kinds=list(zip(latest, kinds.values(), strict=True)))
