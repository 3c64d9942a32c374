"""Tables that can be sorted and filtered; without JavaScript they are plain tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from .ratios import Ratio
from .wording import NOTHING, change_cell, interval, seconds, times

FEW = 8  # rows that need no filter
FILTER = '<p class="filter" hidden><label>Filter <input type="search" autocomplete="off"></label> <output aria-live="polite"></output></p>'


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell shows, as HTML, and the number it is sorted by if that isn't what it starts with."""

    html: str
    by: float | None = None


EMPTY = Cell(f'<span class="quiet">{NOTHING}</span>', -math.inf)


def text(shown: object) -> Cell:
    """A cell of text."""
    return Cell(escape(str(shown)))


def link(target: str, shown: str) -> Cell:
    """A cell that leads to another page."""
    return Cell(f'<a href="{escape(target)}">{escape(shown)}</a>')


def ratio_cell(ratio: Ratio | None, *, with_interval: bool = False) -> Cell:
    """A ratio, marked where it lies below 1."""
    if ratio is None:
        return EMPTY
    shown = times(ratio.value)
    if ratio.high < 1:
        shown = f"<b>{shown}</b>"
    return Cell(f"{shown} <small>{interval(ratio)}</small>" if with_interval else shown)


def change(ratio: Ratio | None) -> Cell:
    """A change since the run before."""
    return Cell(change_cell(ratio), ratio.value if ratio else -math.inf)


def time_cell(value: float | None) -> Cell:
    """A time."""
    return EMPTY if value is None else Cell(seconds(value), value)


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]], *, words: int = 1, sortable: bool = True) -> str:
    """A table in a frame that scrolls by itself where it is wide.

    Args:
        caption: what the rows are, which names the table; may be empty below a heading, unless rows are sorted.
        head: titles of columns.
        rows: cells, as many as titles.
        words: so many columns at the left hold words, the others numbers.
        sortable: rows may be sorted, and filtered where there are more than a few.
    """
    body = [_row(row, words, sortable) for row in rows]
    titles = "".join(f'<th scope="col"{" class=w" if sortable and at < words else ""}>{title}</th>' for at, title in enumerate(head))
    inner = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    told = escape(caption)
    if not sortable:
        return f'<div class="scroll"><table class="plain w{words}">{f"<caption>{told}</caption>" if told else ""}{inner}'
    field = FILTER if len(body) > FEW else ""
    scrolled = f'<div class="scroll" tabindex="0" role="region" aria-label="{told}">'
    return f'<section class="sortable">{field}{scrolled}<table><caption>{told}</caption>{inner}</section>'


def _row(cells: Sequence[Cell], words: int, sortable: bool) -> str:
    if not sortable:
        return f"<tr>{''.join(f'<td>{cell.html}</td>' for cell in cells)}</tr>"
    return "<tr>" + "".join(_cell(cell, at < words) for at, cell in enumerate(cells)) + "</tr>"


def _cell(cell: Cell, is_word: bool) -> str:
    """With the number that it is sorted by, unless it starts with it."""
    by = "" if cell.by is None or cell.html.startswith(f"{cell.by:.4g}") else f" data-v={cell.by:.4g}"
    return f"<td{' class=w' if is_word else ''}{by}>{cell.html}</td>"
