"""Common frame of pages, and file names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from .views import Snapshot

_OMITTED = re.compile("</(?:t[dhr]|tbody|thead|d[dt]|li)>")  # end tags that HTML5 allows to omit; a third of the size of a table


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a page: relative paths to the root of the site, and to the overview of its view."""

    root: str = ""
    home: str = ""
    repository: str | None = None

    def below(self) -> Place:
        """The place of pages in a subfolder of the same view."""
        return Place("../" + self.root, "../" + self.home, self.repository)

    def commit(self, snapshot: Snapshot) -> str:
        """Name of a commit, as a link if the repository is known.

        For a run with uncommitted changes, shown as ``+``, the link leads to the parent commit.
        """
        if not self.repository or snapshot.commit == "unknown":
            return escape(snapshot.commit)
        return f'<a href="{escape(self.repository.rstrip("/"))}/commit/{escape(snapshot.run.commit[:10])}">{escape(snapshot.commit)}</a>'


PAGES = (("index.html", "Overview"), ("compile.html", "Compile time"), ("memory.html", "Memory"))


def page(title: str, body: Iterable[str], place: Place, *, active: str = "", up: str | None = None) -> str:
    """A complete page.

    Args:
        title: title of the window.
        body: parts of the main element, as HTML.
        place: place of the page.
        active: name of the navigation entry of this page.
        up: links to the parent pages that replace the navigation, for case and kernel pages.
    """
    links = _navigation(place, active) if up is None else up
    return _OMITTED.sub(
        "",
        (
            '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
            f'<title>{escape(title)} · numscorch</title><link rel=icon href="data:,"><link rel=stylesheet href="{place.root}style.css">'
            f'<script src="{place.root}site.js"></script><body><a class=skip href="#main">Skip to the content</a>'
            f'<header><nav aria-label=Pages><a class=brand href="{place.root}index.html">numscorch</a>{links}</nav></header>'
            f"<main id=main>{''.join(body)}</main>\n"
        ),
    )


def _navigation(place: Place, active: str) -> str:
    entries = [(place.home + name, title) for name, title in PAGES] + [(place.root + "machines.html", "Machines")]
    return "".join(f'<a href="{target}"{" aria-current=page" if name == active else ""}>{name}</a>' for target, name in entries)


def slug(*parts: str) -> str:
    """A unique file name for the parts.

    >>> slug("n:m, 16 rows")
    'n-m-16-rows-45a9d8'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", parts[0].lower()).strip("-")[:40]
    return f"{plain}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:6]}"
