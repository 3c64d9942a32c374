"""Draw how formats store one small matrix: ``python docs/website/levels.py`` writes docs/concepts/levels/NAME.svg."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

import numscorch as ns

TARGET = Path(__file__).parents[1] / "concepts" / "levels"
MATRIX = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 5.0]])
FORMATS = {"csr": ns.CSR, "csc": ns.CSC, "dcsr": ns.DCSR, "coo": ns.COO(2), "bcsr": ns.BCSR(2, 2), "ell": ns.ELL, "dia": ns.DIA}
CELL, LINE, LEFT = 24, 34, 360  # side of a cell, height of a line of cells, start of the arrays, in pixels
STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:13px;fill:#7a8699}.n{text-anchor:middle}.s{fill:#d9631e;font-weight:600}"
    "rect{fill:none;stroke:#7a8699}.f{fill:#f26b1d;fill-opacity:.18;stroke:#d9631e}"
)


def drawing(format: ns.Format) -> str:
    """The matrix beside the levels of a format, with their arrays and the stored values, as SVG."""
    A = ns.from_torch(MATRIX, format)
    lines = list(levels(A))
    height = max(len(lines) * LINE, 4 * CELL) + 16
    parts = [*grid(8, 8), *(part for place, line in enumerate(lines) for part in row(8 + place * LINE, *line))]
    width = LEFT + 16 + CELL * max(len(cells) for _, _, cells in lines)
    name = format.name or str(format)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{name}">'
        f"<title>{name}</title><style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def levels(A: ns.SparseTensor) -> Iterator[tuple[str, str, list[str]]]:
    """Each array: the level, if it is the first of its level, the name of the array, and its numbers."""
    names = [text.strip() for text in str(A.format).partition("-> (")[2].rstrip(")").split(",")]
    texts = [*names[: len(A.format.levels) - 1], ", ".join(names[len(A.format.levels) - 1 :])]
    for text, level, arrays in zip(texts, A.format.levels, A.pattern.arrays, strict=True):
        shown = text if text.count("(") == text.count(")") else f"{text})"
        if not arrays:
            yield shown, "no array", []
        for place, (name, array) in enumerate(zip(level.arrays, arrays, strict=True)):
            yield "" if place else shown, name, [str(number) for number in array.tolist()]
    yield "", "values", [f"{number:g}" for number in A.values.tolist()]


def grid(left: int, top: int) -> Iterator[str]:
    """The matrix; entries that are 0 are empty."""
    for i, values in enumerate(MATRIX.tolist()):
        for j, value in enumerate(values):
            yield from cell(left + j * CELL, top + i * CELL, f"{value:g}" if value else "", bool(value))


def row(top: int, level: str, name: str, cells: Iterable[str]) -> Iterator[str]:
    """A line of the drawing."""
    yield f'<text class="s" x="124" y="{top + 17}">{level}</text><text x="{LEFT - 12}" y="{top + 17}" text-anchor="end">{name}</text>'
    for place, text in enumerate(cells):
        yield from cell(LEFT + place * CELL, top, text, name == "values")


def cell(x: int, y: int, text: str, filled: bool) -> Iterator[str]:
    """A box with a number."""
    kind = ' class="f"' if filled else ""
    yield f'<rect{kind} x="{x}" y="{y}" width="{CELL}" height="{CELL}"/><text class="n" x="{x + CELL // 2}" y="{y + 17}">{text}</text>'


def main() -> None:
    """Write the drawings."""
    for name, format in FORMATS.items():
        (TARGET / f"{name}.svg").write_text(drawing(format), encoding="utf-8")


if __name__ == "__main__":
    main()
