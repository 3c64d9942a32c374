"""Page of a case: its measurements, its peers, the latest runs, and its kernels."""

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
RUNS = 3  # latest runs shown


def case_file(case: Case) -> str:
    """Path of the page of a case, relative to the folder of the view."""
    return f"cases/{slug(case.kernel, case.name)}.html"


def kernel_file(kernel: str) -> str:
    """Path of the page of a kernel, relative to the folder of the view."""
    return f"kernels/{slug(kernel)}.html"


def source_file(name: str) -> str:
    """Path of the page of a generated kernel, relative to the root of the site."""
    return f"sources/{name if _PLAIN.fullmatch(name) else slug(name)}.html"


def case_page(view: View, case: Case, place: Place, sources: Mapping[str, Any]) -> str:
    """The page of a case.

    Args:
        view: the view of the case.
        case: a case of the latest run.
        place: the place of the page.
        sources: generated kernels with a page.
    """
    up = f'<a href="{place.home}index.html">Overview</a><a href="{place.home}{kernel_file(case.kernel)}">{escape(case.kernel)}</a>'
    parts = [f"<h1>{escape(case.name)}</h1>", _facts(view, case), _peers(case), _runs(view, case, place)]
    return page(f"{case.kernel}: {case.name}", [*parts, *_kernels(case, place, sources)], place, up=up)


def _facts(view: View, case: Case) -> str:
    items = "".join(f"<div><dt>{name}</dt><dd>{shown}</dd></div>" for name, shown in _fact_list(view, case))
    return f'<dl class="facts">{items}</dl>'


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
    """Bandwidth and arithmetic throughput of a record, and their shares of the machine's roofs."""
    roofs = (view.latest.run.own.get("roofs") or {}).get(str(record.get("threads")), {})
    for name, unit, roof in (("bytes", "GB/s", "bytes_per_second"), ("flops", "Gflop/s", "flops_per_second")):
        if record.get(name) and record["seconds"] > 0:
            rate = record[name] / record["seconds"]
            share = f" <small>{100 * rate / roofs[roof]:.0f} % of the roof</small>" if roofs.get(roof) else ""
            yield unit, f"{rate / 1e9:.2f}{share}"


def _peers(case: Case) -> str:
    """Table of peers, fastest first, followed by baselines that are not peers."""
    if not case.peers and not case.beside:
        return ""
    rows = [_peer(name, measurement, "") for name, measurement in sorted(case.peers.items(), key=lambda item: float(item[1]["seconds"]))]
    labels = case.record.get("labels") or {}
    rows += [_peer(name, measurement, f"no peer: {labels.get(name, 'shown for comparison')}") for name, measurement in case.beside.items()]
    return "<h2>Peers</h2>" + table("", ("peer", "a call", "its time over ours"), rows, sortable=False)


def _peer(name: str, measurement: Mapping[str, Any], note: str) -> tuple[Cell, ...]:
    title = Cell(f"{escape(name)} <small>{escape(note)}</small>") if note else text(name)
    return title, time_cell(measurement.get("seconds")), ratio_cell(ratio_of(measurement), with_interval=True)


def _runs(view: View, case: Case, place: Place) -> str:
    """Table of the latest runs of the case, newest first."""
    key = case.kernel, case.name
    snapshots = [snapshot for snapshot in view.snapshots if key in snapshot.ratios]
    rows = []
    for at in range(len(snapshots) - 1, max(len(snapshots) - 1 - RUNS, -1), -1):
        ratio = snapshots[at].ratios[key]
        since = ratio.over(snapshots[at - 1].ratios[key]) if at else None
        rows.append((Cell(place.commit(snapshots[at])), text(snapshots[at].day), ratio_cell(ratio, with_interval=True), change(since)))
    return "<h2>Latest runs</h2>" + table("", ("commit", "day", "ratio", "change"), rows, sortable=False) if rows else ""


def _kernels(case: Case, place: Place, sources: Mapping[str, Any]) -> Iterator[str]:
    """Kernels of the case, with their pages in frames, since many cases share a kernel."""
    names = [name for name in case.record.get("kernels") or () if name in sources]
    if not names:
        yield "<h2>Kernels</h2><p>This run recorded no generated kernel for this case.</p>"
    for name in names:
        target = place.root + source_file(name)
        yield f'<h2>Kernel <a href="{target}"><code>{escape(name)}</code></a></h2>'
        yield f'<iframe src="{target}" title="{escape(name)}" loading="lazy"></iframe>'
