"""A page for each case: what was measured, every peer, the latest runs, and the kernels that ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from .frame import Place, page, slug
from .ratios import ratio_of
from .tables import Cell, change, ratio_cell, table, text, time_cell
from .views import Case, View
from .wording import number, seconds, size, times

_PLAIN = re.compile(r"[a-z0-9_]{1,60}")
RUNS = 3  # of the latest runs that are told


def case_file(case: Case) -> str:
    """Below the view's folder."""
    return f"cases/{slug(case.kernel, case.name)}.html"


def kernel_file(kernel: str) -> str:
    """Below the view's folder."""
    return f"kernels/{slug(kernel)}.html"


def source_file(name: str) -> str:
    """Below the site's root."""
    return f"sources/{name if _PLAIN.fullmatch(name) else slug(name)}.html"


def case_page(view: View, case: Case, place: Place, sources: Mapping[str, Any]) -> str:
    """The page of a case.

    Args:
        view: which it is of.
        case: of the latest run.
        place: of the page.
        sources: kernels that have a page.
    """
    up = f'<a href="{place.home}index.html">Overview</a><a href="{place.home}{kernel_file(case.kernel)}">{escape(case.kernel)}</a>'
    parts = [f"<h1>{escape(case.name)}</h1>", _facts(view, case), _peers(case), _runs(view, case, place)]
    return page(f"{case.kernel}: {case.name}", [*parts, *_kernels(case, place, sources)], place, up=up)


def _facts(view: View, case: Case) -> str:
    told = "".join(f"<div><dt>{name}</dt><dd>{shown}</dd></div>" for name, shown in _fact_list(view, case))
    return f'<dl class="facts">{told}</dl>'


def _fact_list(view: View, case: Case) -> Iterator[tuple[str, str]]:
    record = case.record
    if ratio := case.ratio:
        yield "times as fast", times(ratio.value)
    yield "a call", seconds(record["seconds"])
    if "share" in record:
        yield "share", f"{record['share']:.2f}"
    if record.get("shape"):
        yield "shape", " × ".join(map(number, record["shape"]))
    if record.get("nnz") is not None:
        yield "stored entries", number(record["nnz"])
    yield from _rates(view, record)
    named = (("at the peak", "peak_bytes", size), ("the result", "result_bytes", size), ("compiled in", "compile_seconds", seconds))
    for name, key, shown in (*named, ("loaded in", "load_seconds", seconds), ("overhead of a call", "overhead_seconds", seconds)):
        if record.get(key) is not None:
            yield name, shown(record[key])


def _rates(view: View, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What moves and is computed in a second, and which share of the machine's that is."""
    roofs = (view.latest.run.own.get("roofs") or {}).get(str(record.get("threads")), {})
    for name, unit, roof in (("bytes", "GB/s", "bytes_per_second"), ("flops", "Gflop/s", "flops_per_second")):
        if record.get(name) and record["seconds"] > 0:
            rate = record[name] / record["seconds"]
            share = f" <small>{100 * rate / roofs[roof]:.0f} % of the roof</small>" if roofs.get(roof) else ""
            yield unit, f"{rate / 1e9:.2f}{share}"


def _peers(case: Case) -> str:
    """Every peer, the fastest first, then what is no peer."""
    if not case.peers and not case.beside:
        return ""
    rows = [_peer(name, told, "") for name, told in sorted(case.peers.items(), key=lambda item: float(item[1]["seconds"]))]
    labels = case.record.get("labels") or {}
    rows += [_peer(name, told, f"no peer: {labels.get(name, 'shown for comparison')}") for name, told in case.beside.items()]
    return "<h2>Peers</h2>" + table("", ("peer", "a call", "its time over ours"), rows, sortable=False)


def _peer(name: str, told: Mapping[str, Any], note: str) -> tuple[Cell, ...]:
    shown = Cell(f"{escape(name)} <small>{escape(note)}</small>") if note else text(name)
    return shown, time_cell(told.get("seconds")), ratio_cell(ratio_of(told), with_interval=True)


def _runs(view: View, case: Case, place: Place) -> str:
    """The latest runs of the case, the newest first."""
    key = case.kernel, case.name
    found = [snapshot for snapshot in view.snapshots if key in snapshot.ratios]
    rows = []
    for at in range(len(found) - 1, max(len(found) - 1 - RUNS, -1), -1):
        ratio = found[at].ratios[key]
        since = ratio.over(found[at - 1].ratios[key]) if at else None
        rows.append((Cell(place.commit(found[at])), text(found[at].day), ratio_cell(ratio, with_interval=True), change(since)))
    return "<h2>Latest runs</h2>" + table("", ("commit", "day", "ratio", "change"), rows, sortable=False) if rows else ""


def _kernels(case: Case, place: Place, sources: Mapping[str, Any]) -> Iterator[str]:
    """The kernels that ran; their pages stand in frames, since many cases share them."""
    names = [name for name in case.record.get("kernels") or () if name in sources]
    if not names:
        yield "<h2>Kernels</h2><p>This run recorded no generated kernel for this case.</p>"
    for name in names:
        target = place.root + source_file(name)
        yield f'<h2>Kernel <a href="{target}"><code>{escape(name)}</code></a></h2>'
        yield f'<iframe src="{target}" title="{escape(name)}" loading="lazy"></iframe>'
