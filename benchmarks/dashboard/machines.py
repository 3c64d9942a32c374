"""Page of the machines: each kind of machine with the library versions and roofs of its latest run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ..history import utc
from .frame import Place, page
from .tables import Cell, table, text
from .views import View
from .wording import size


def told_of(machine: Mapping[str, Any]) -> str:
    """Short description of a machine.

    >>> told_of({"processor": "AMD EPYC", "cores": 2, "fingerprint": "0123456789"})
    'AMD EPYC, 2 cores'
    """
    cores = int(machine.get("cores") or 0)
    named = str(machine.get("processor") or machine["fingerprint"])
    return f"{named}, {cores} core{'s' if cores != 1 else ''}" if cores else named


def machines_page(views: Sequence[tuple[View, str]], place: Place) -> str:
    """The page of the machines.

    Args:
        views: pairs of a view and the path of its overview.
        place: the place of the page.
    """
    kinds: dict[str, list[tuple[View, str]]] = {}
    for view, target in views:
        kinds.setdefault(view.key[0], []).append((view, target))
    lead = '<p class="lead">Ratios are compared among runs on one kind of machine; times of different kinds never are.</p>'
    return page(
        "Machines", ["<h1>Machines and versions</h1>", lead, *(_machine(kind) for kind in kinds.values())], place, active="Machines"
    )


def _machine(views: Sequence[tuple[View, str]]) -> str:
    newest = max((view for view, _ in views), key=lambda view: utc(view.latest.run.time)).latest.run
    machine = newest.own["machine"]
    facts = "".join(f"<div><dt>{name}</dt><dd>{escape(str(shown))}</dd></div>" for name, shown in _facts(machine))
    runs = [
        (
            Cell(f'<a href="{target}">{escape(view.key[1])}</a>'),
            Cell(str(len(view.snapshots))),
            Cell(str(len(view.latest.cases))),
            text(view.latest.day),
        )
        for view, target in views
    ]
    suites = table("", ("suite", "runs", "cases", "latest"), runs, sortable=False)
    versions = [(text(name), text(version)) for name, version in (newest.own.get("versions") or {}).items()]
    return (
        f'<section class="machine"><h2>{escape(told_of(machine))}</h2><dl class="facts">{facts}</dl><div class="pair">'
        f"<div><h3>Suites</h3>{suites}{_roofs(newest.own.get('roofs') or {})}</div>"
        f"<div><h3>Versions of the latest run</h3>{table('', ('library', 'version'), versions, sortable=False)}</div></div></section>"
    )


def _facts(machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "fingerprint", str(machine["fingerprint"])
    if machine.get("system"):
        yield "system", str(machine["system"])
    if machine.get("vector_bytes"):
        yield "vector registers", f"{machine.get('registers', '?')} of {8 * machine['vector_bytes']} bits"
    if machine.get("caches"):
        yield "caches", ", ".join(map(size, machine["caches"]))


def _roofs(roofs: Mapping[str, Mapping[str, float]]) -> str:
    """Table of the measured roofs: memory bandwidth and peak arithmetic throughput."""
    rows = [
        (text(threads), Cell(f"{roof['bytes_per_second'] / 1e9:.1f} GB/s"), Cell(f"{roof['flops_per_second'] / 1e9:.1f} Gflop/s"))
        for threads, roof in roofs.items()
    ]
    if not rows:
        return ""
    return "<h3>Roofs, measured in the latest run</h3>" + table("", ("threads", "memory", "multiply-adds"), rows, sortable=False)
