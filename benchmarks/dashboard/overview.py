"""Overview page: speed of every kernel relative to every library, and changes since the previous run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import starmap

from .cases import case_file, kernel_file
from .frame import Place, page
from .machines import told_of
from .ratios import Ratio
from .tables import change, link, ratio_cell, table
from .views import BEST, Case, View, compared
from .wording import NOTHING, change_cell, interval, times

MOST = 10  # changes listed per direction
SWATCHES = (("¼×", 100, "bad"), ("½×", 50, "bad"), ("1×", 0, "good"), ("2×", 50, "good"), ("4×", 100, "good"))
LEGEND = (
    "geometric mean of the cases; below, the change since the run before, marked ▲ or ▼ where it is more than cases and turns differ. "
    "A frame marks what is slower."
)
HINT = (
    "By more than their turns differ. Processes differ by more, so that single cases stand here that nothing changed; "
    "what a commit changed is told by <code>make bench-check</code>, of several runs."
)
FULL = math.log(4)  # logarithm of the ratio with the strongest colour, in either direction


@dataclass(frozen=True, slots=True)
class Other:
    """Another view and the path of its overview."""

    view: View
    target: str


def overview(view: View, place: Place, others: Sequence[Other], skipped: Mapping[str, str]) -> str:
    """The overview page.

    Args:
        view: the view to show.
        place: the place of the page.
        others: views of other machines or suites.
        skipped: files without a valid run, and the reason.
    """
    parts = [_title(view, place), _chooser(others), _tiles(view), *_heat(view, place), _changes(view, place), *_notes(view, skipped)]
    return page("Benchmarks", parts, place, active="Overview")


def empty(place: Place, skipped: Mapping[str, str]) -> str:
    """The page for an empty history."""
    steps = "<pre>make bench-quick    # three minutes\nmake dashboard</pre>"
    body = [f"<h1>Nothing was recorded yet</h1><p class=lead>Measure, and come back:</p>{steps}", *_skipped(skipped)]
    return page("Benchmarks", body, place, active="Overview")


def _title(view: View, place: Place) -> str:
    run = view.latest.run
    changed = ", with changes that are not committed" if run.dirty else ""
    return (
        "<h1>How fast, against whom</h1>"
        '<p class="lead">The time of another library over ours, measured in turns in the same process. Above 1 we are faster.</p>'
        f'<p class="meta">{place.commit(view.latest)}{changed} · {escape(view.latest.day)} · {escape(run.suite)} suite · '
        f'<a href="{place.root}machines.html">{escape(told_of(run.own["machine"]))}</a></p>'
    )


def _chooser(others: Sequence[Other]) -> str:
    if not others:
        return ""
    links = "".join(
        f'<li><a href="{other.target}">{escape(told_of(other.view.latest.run.own["machine"]))}, {escape(other.view.key[1])} suite, '
        f"{escape(other.view.latest.day)}</a></li>"
        for other in others
    )
    return f"<details class=chooser><summary>Other machines and suites ({len(others)})</summary><ul>{links}</ul></details>"


def _tiles(view: View) -> str:
    ratios = [ratio for case in view.latest.cases.values() if (ratio := case.ratio)]
    overall = compared(view, view.latest.cases.values(), BEST)
    changes = [ratio_change for case in view.latest.cases.values() if (ratio_change := view.change(case)) and ratio_change.is_clear]
    ahead, behind = sum(ratio.low > 1 for ratio in ratios), sum(ratio.high < 1 for ratio in ratios)
    tiles = [(times(overall[0].value), f"geometric mean over the best peer, {len(ratios)} cases")] if overall else []
    tiles += [(str(ahead), "cases faster than every peer"), (str(behind), "cases slower than the best peer")]
    if view.before is not None:
        up = sum(ratio_change.value > 1 for ratio_change in changes)
        down = len(changes) - up
        tiles.append((f"▲ {up} &nbsp;▼ {down}", "cases that changed by more than their turns differ"))
    return '<dl class="facts big">' + "".join(f"<div><dt>{label}</dt><dd>{number}</dd></div>" for number, label in tiles) + "</dl>"


def _heat(view: View, place: Place) -> Iterator[str]:
    """Tables of kernels by libraries: for all cases, and for each thread count."""
    threads = sorted({int(c.record["threads"]) for c in view.latest.cases.values() if c.ratio and "threads" in c.record})
    kinds = [("all", "all cases"), *((str(t), f"{t} thread{'s' if t > 1 else ''}") for t in threads)] if len(threads) > 1 else [("all", "")]
    yield "<h2>Kernels by library</h2>"
    if len(kinds) > 1:
        inputs = (f'<label><input type=radio name=threads value="{k}"{" checked" * (k == "all")}> {title}</label>' for k, title in kinds)
        yield f'<fieldset class="choice"><legend>Threads</legend>{"".join(inputs)}</fieldset>'
        hidden = (f'main:has(.choice input[value="{k}"]:checked) .heat:not([data-threads="{k}"])' for k, _ in kinds)
        yield f"<style>{','.join(hidden)}{{display:none}}</style>"
    for kind, title in kinds:
        yield f'<div class="heat" data-threads="{kind}">{_heat_table(view, place, kind, title)}</div>'
    yield f'<p class="legend">{"".join(starmap(_swatch, SWATCHES))} {LEGEND}</p>'


def _swatch(text: str, strength: int, side: str) -> str:
    return f'<span class="swatch" style="--w:{strength}%" data-side={side}>{text}</span>'


def _heat_table(view: View, place: Place, kind: str, subtitle: str) -> str:
    columns = [BEST, *view.columns]
    rows = []
    for kernel, cases in view.kernels.items():
        selected = [case for case in cases if kind in ("all", str(case.record.get("threads")))]
        cells = [_heat_cell(view, selected, column) for column in columns]
        if any(cells):
            head = f'<th scope="row"><a href="{place.home}{kernel_file(kernel)}">{escape(kernel)}</a></th>'
            rows.append(f"<tr>{head}{''.join(cell or f'<td class=none>{NOTHING}</td>' for cell in cells)}</tr>")
    titles = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    caption = f"Ratio by kernel and library{', ' + subtitle if subtitle else ''}"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}</caption>'
        f'<thead><tr><th scope="col">kernel</th>{titles}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _heat_cell(view: View, cases: Sequence[Case], column: str) -> str:
    comparison = compared(view, cases, column)
    if comparison is None:
        return ""
    ratio, amount, since = comparison
    strength = min(abs(math.log(ratio.value)) / FULL, 1)
    side = "good" if ratio.value >= 1 else "bad"
    noun = "case" if amount == 1 else "cases"
    return (
        f'<td data-side={side} style="--w:{100 * strength:.0f}%" title="{amount} {noun}, {interval(ratio)}">{times(ratio.value)}'
        f"{f'<small>{change_cell(since)}</small>' if since else ''}</td>"
    )


def _changes(view: View, place: Place) -> str:
    """Tables of the cases with the largest changes."""
    if view.before is None:
        return "<h2>Changes</h2><p>This is the first run of this suite on this kind of machine.</p>"
    pairs = [(case, since) for case in view.latest.cases.values() if (since := view.change(case)) and since.is_clear]
    title = f"<h2>Changes since {place.commit(view.before)}</h2>"
    if not pairs:
        return f"{title}<p>No case changed by more than its turns differ.</p>"
    down = sorted((pair for pair in pairs if pair[1].value < 1), key=lambda pair: pair[1].value)
    up = sorted((pair for pair in pairs if pair[1].value > 1), key=lambda pair: -pair[1].value)
    return f'{title}<p class="quiet">{HINT}</p><div class="pair">{_changed("Slower", down, place)}{_changed("Faster", up, place)}</div>'


def _changed(title: str, pairs: Sequence[tuple[Case, Ratio]], place: Place) -> str:
    """Table of cases that changed in one direction, largest change first."""
    if not pairs:
        return ""
    rows = [
        (link(place.home + kernel_file(c.kernel), c.kernel), link(place.home + case_file(c), c.name), ratio_cell(c.ratio), change(since))
        for c, since in pairs[:MOST]
    ]
    more = f"<p class=quiet>{len(pairs) - MOST} more changed less.</p>" if len(pairs) > MOST else ""
    return f"<div><h3>{title}</h3>{table('', ('kernel', 'case', 'ratio', 'change'), rows, words=2, sortable=False)}{more}</div>"


def _notes(view: View, skipped: Mapping[str, str]) -> Iterator[str]:
    missing = view.latest.run.own.get("missing") or ()
    if missing:
        names = ", ".join(map(str, missing))
        why = "not installed where this was measured, so that columns are absent or lack cases"
        yield f"<h2>Not measured</h2><p>{escape(names)}: {why}.</p>"
    alone = [kernel for kernel, cases in view.kernels.items() if not any(case.ratio for case in cases)]
    if alone:
        names = ", ".join(f'<a href="{kernel_file(kernel)}">{escape(kernel)}</a>' for kernel in alone)
        yield f"<h2>Without peers</h2><p>{names}</p>"
    yield from _skipped(skipped)


def _skipped(skipped: Mapping[str, str]) -> Iterator[str]:
    if skipped:
        items = "".join(f"<li><code>{escape(name)}</code>: {escape(why)}</li>" for name, why in skipped.items())
        yield f"<h2>Skipped files</h2><ul>{items}</ul>"
