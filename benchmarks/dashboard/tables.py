"""Sortable and filterable tables; without JavaScript they are plain tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from .ratios import Ratio
from .wording import NOTHING, change_cell, interval, seconds, times

FEW = 8  # maximum number of rows without a filter
FILTER = '<p class="filter" hidden><label>Filter <input type="search" autocomplete="off"></label> <output aria-live="polite"></output></p>'


@dataclass(frozen=True, slots=True)
class Cell:
    """HTML of a cell, and its sort key if it differs from the leading number."""

    html: str
    by: float | None = None


EMPTY = Cell(f'<span class="quiet">{NOTHING}</span>', -math.inf)


def text(shown: object) -> Cell:
    """A cell of text."""
    return Cell(escape(str(shown)))


def link(target: str, shown: str) -> Cell:
    """A cell with a link to another page."""
    return Cell(f'<a href="{escape(target)}">{escape(shown)}</a>')


def ratio_cell(ratio: Ratio | None, *, with_interval: bool = False) -> Cell:
    """A cell with a ratio, in bold if it is below 1."""
    if ratio is None:
        return EMPTY
    html = times(ratio.value)
    if ratio.high < 1:
        html = f"<b>{html}</b>"
    return Cell(f"{html} <small>{interval(ratio)}</small>" if with_interval else html)


def change(ratio: Ratio | None) -> Cell:
    """A cell with a change since the previous run."""
    return Cell(change_cell(ratio), ratio.value if ratio else -math.inf)


def time_cell(value: float | None) -> Cell:
    """A cell with a time."""
    return EMPTY if value is None else Cell(seconds(value), value)


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]], *, words: int = 1, sortable: bool = True) -> str:
    """A table in a horizontally scrolling frame.

    Args:
        caption: name of the table; may be empty below a heading if the table is not sortable.
        head: titles of the columns.
        rows: one cell per title in each row.
        words: number of leading text columns; the other columns are numeric.
        sortable: whether rows can be sorted, and filtered if there are more than a few.
    """
    body = [_row(row, words, sortable) for row in rows]
    titles = "".join(f'<th scope="col"{" class=w" if sortable and at < words else ""}>{title}</th>' for at, title in enumerate(head))
    inner = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    caption_html = escape(caption)
    if not sortable:
        return f'<div class="scroll"><table class="plain w{words}">{f"<caption>{caption_html}</caption>" if caption_html else ""}{inner}'
    field = FILTER if len(body) > FEW else ""
    scrolled = f'<div class="scroll" tabindex="0" role="region" aria-label="{caption_html}">'
    return f'<section class="sortable">{field}{scrolled}<table><caption>{caption_html}</caption>{inner}</section>'


def _row(cells: Sequence[Cell], words: int, sortable: bool) -> str:
    if not sortable:
        return f"<tr>{''.join(f'<td>{cell.html}</td>' for cell in cells)}</tr>"
    return "<tr>" + "".join(_cell(cell, at < words) for at, cell in enumerate(cells)) + "</tr>"


def _cell(cell: Cell, is_word: bool) -> str:
    """HTML of a cell, with its sort key unless the text starts with it."""
    by = "" if cell.by is None or cell.html.startswith(f"{cell.by:.4g}") else f" data-v={cell.by:.4g}"
    return f"<td{' class=w' if is_word else ''}{by}>{cell.html}</td>"
