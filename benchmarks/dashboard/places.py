"""Paths of pages, and addresses of commits."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from .views import Case, Snapshot

_PLAIN = re.compile(r"[a-z0-9_]{1,60}")


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a page: relative paths to the root of the site, and to the folder of its view."""

    root: str = ""
    home: str = ""
    repository: str | None = None

    def below(self) -> Place:
        """The place of pages in a subfolder of the same view."""
        return Place("../" + self.root, "../" + self.home, self.repository)

    def case(self, case: Case) -> str:
        """Path from here to the page of a case."""
        return self.home + case_file(case)

    def kernel(self, kernel: str) -> str:
        """Path from here to the page of a kernel."""
        return self.home + kernel_file(kernel)

    def source(self, name: str) -> str:
        """Path from here to the page of a generated kernel."""
        return self.root + source_file(name)

    def commit(self, snapshot: Snapshot) -> str | None:
        """URL of the commit of a run, or of the parent commit if the run has uncommitted changes; None if it is unknown."""
        is_known = self.repository and snapshot.commit != "unknown"
        return f"{str(self.repository).rstrip('/')}/commit/{snapshot.run.commit[:10]}" if is_known else None


def case_file(case: Case) -> str:
    """Path of the page of a case, relative to the folder of the view."""
    return f"cases/{slug(case.kernel, case.name)}.html"


def kernel_file(kernel: str) -> str:
    """Path of the page of a kernel, relative to the folder of the view."""
    return f"kernels/{slug(kernel)}.html"


def source_file(name: str) -> str:
    """Path of the page of a generated kernel, relative to the root of the site."""
    return f"sources/{name if _PLAIN.fullmatch(name) else slug(name)}.html"


def slug(*parts: str) -> str:
    """A unique file name for the parts.

    >>> slug("n:m, 16 rows")
    'n-m-16-rows-45a9d8'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", parts[0].lower()).strip("-")[:40]
    return f"{plain}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:6]}"
