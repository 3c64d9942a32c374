"""The site: its pages and their paths."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..records import Run, RunError
from .cases import case_page
from .costs import compile_page, memory_page
from .kernels import kernel_page
from .machines import machines_page
from .overview import overview
from .places import Place, case_file, kernel_file, slug, source_file
from .sources import source_page
from .templates import rendered
from .views import View, views_of

ASSETS = ("style.css", "site.js")
HERE = Path(__file__).parent
MARK = "numscorch-dashboard"  # marker file of a site; only folders with it are replaced

Pages = Iterator[tuple[str, str]]


class SiteError(Exception):
    """The site cannot be written."""


def write_site(runs: Sequence[Run], folder: Path, *, skipped: Mapping[str, str] | None = None, repository: str | None = None) -> Path:
    """Write the site atomically.

    Args:
        runs: runs in any order, of any machines and suites.
        folder: output folder; created, or replaced if it contains a site.
        skipped: files without a valid run, and the reason.
        repository: URL of the project; ``/commit/<id>`` below it shows a commit.

    Raises:
        SiteError: the folder contains other files.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise SiteError(f"{folder} holds files that are no dashboard: name an empty or a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, text in pages(runs, skipped or {}, repository):
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for name in ASSETS:
            shutil.copyfile(HERE / name, new / name)
        (new / MARK).touch()
        new.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder / "index.html"


def pages(runs: Sequence[Run], skipped: Mapping[str, str], repository: str | None) -> Pages:
    """Paths and contents of all pages. Pages of the first view are at the root, pages of other views in subfolders."""
    views = views_of(runs)
    top = Place(repository=repository)
    if not views:
        empty = rendered("empty.html", top, skipped=skipped)
        yield from ((name, empty) for name in ("index.html", "compile.html", "memory.html", "machines.html"))
        return
    folders = ["", *(slug("-".join(view.key), *view.key) + "/" for view in views[1:])]
    sources, unread = _sources(views)
    skipped = {**skipped, **unread}
    for view, folder in zip(views, folders, strict=True):
        place = Place("../" * bool(folder), "", repository)
        others = [(v, f"{place.root}{f}index.html") for v, f in zip(views, folders, strict=True) if v is not view]
        yield f"{folder}index.html", overview(view, place, others, skipped)
        yield from ((folder + name, text) for name, text in _below(view, place, sources))
    yield "machines.html", machines_page([(view, f"{folder}index.html") for view, folder in zip(views, folders, strict=True)], top)
    for name, kernel in sources.items():
        yield source_file(name), source_page(name, kernel, top.below())


def _below(view: View, place: Place, sources: Mapping[str, Any]) -> Pages:
    """Paths and contents of the pages of a view, except its overview."""
    yield "compile.html", compile_page(view, place, sources)
    yield "memory.html", memory_page(view, place)
    for kernel, cases in view.kernels.items():
        yield kernel_file(kernel), kernel_page(view, kernel, place.below())
        for case in cases:
            yield case_file(case), case_page(view, case, place.below(), sources)


def _sources(views: Sequence[View]) -> tuple[dict[str, Any], dict[str, str]]:
    """Recorded texts of the kernels in the latest runs; and the unreadable kernels, with the reason."""
    texts: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for view in views:
        recorded = view.latest.run.own.get("kernels") or {}
        names = {name for case in view.latest.cases.values() for name in case.record.get("kernels") or ()}
        for name in sorted(names):
            try:
                texts |= {name: recorded[name]} if name in recorded else {}
            except RunError as error:
                unread[name] = str(error)
    return texts, unread
