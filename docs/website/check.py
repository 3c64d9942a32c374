"""Check a built site: links and resources exist within it, and no page loads anything from another host."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

RESOURCES = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("use", "href")}
ELSEWHERE = {"canonical", "next", "prev", "alternate", "edit", "license"}  # links of the head that load nothing


class Page(HTMLParser):
    """The references and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.references: list[tuple[str, bool]] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := named.get(key))}
        for key in ("href", "src"):
            if (value := named.get(key)) and not (tag == "link" and (named.get("rel") or "") in ELSEWHERE):
                self.references.append((value, (tag, key) in RESOURCES))


def problems(site: Path) -> list[str]:
    """What is wrong, one line each: the page, the reference, and why."""
    page = cache(Page)
    found = []
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # its links start at the root of the host
            continue
        for reference, loads in page(path).references:
            if why := _wrong(path, reference, loads, page):
                found.append(f"{path.relative_to(site)}: {reference}: {why}")
    return found


def _wrong(path: Path, reference: str, loads: bool, page: Callable[[Path], Page]) -> str:
    parts = urlsplit(reference)
    if parts.scheme in ("data", "mailto", "javascript"):
        return ""
    if parts.scheme or parts.netloc:
        return "is loaded from another host" if loads else ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if reference.startswith("/"):
        return "is absolute, so that it does not work from files"
    if not target.exists() or target.is_dir():
        return "does not exist" if not target.exists() else "is a folder"
    if parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page(target).anchors:
        return "has no such anchor"
    return ""
