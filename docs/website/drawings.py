"""Draw the logo and the diagram of the compiler: ``python docs/website/drawings.py``."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
SIZE, STEP, CELL = 5, 20, 16  # the logo: cells a side, their distance and their size
FLAME = ("#ffc845", "#ff9f2e", "#f26b1d", "#d9431e", "#a82a1c")  # from the top row to the bottom row
SLATE, GREY = "#2d4059", "#7a8699"
STAGES = (
    ("einsum", "ij,jk->ik", "frontend"),
    ("index notation", "C[i,k] += A[i,j] * B[j,k]", "ir"),
    ("schedule", "parallel_forall(i, ...)", "schedule"),
    ("loops", "for pA2 in range(...)", "codegen"),
    ("Python", "for i in prange(rows)", "codegen"),
    ("machine code", "vfmadd231ps zmm0, ...", "Numba, LLVM"),
)


def is_stored(row: int, column: int) -> bool:
    """Whether the logo has a stored entry here: the pattern of an N."""
    return column in (0, row, SIZE - 1)


def logo(unstored: str, stored: tuple[str, ...] = FLAME) -> str:
    """The logo as SVG: a sparse matrix."""
    cells = "".join(
        f'<rect x="{2 + STEP * column}" y="{2 + STEP * row}" width="{CELL}" height="{CELL}" rx="4" fill="{stored[row]}"/>'
        if is_stored(row, column)
        else f'<circle cx="{10 + STEP * column}" cy="{10 + STEP * row}" r="2.5" fill="{unstored}"/>'
        for row in range(SIZE)
        for column in range(SIZE)
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100" role="img" aria-label="numscorch">{cells}</svg>\n'


def pipeline() -> str:
    """The stages between an expression and its machine code as SVG, with what each stage sees of one expression."""
    width, height, gap = 216, 84, 34
    parts = []
    for place, (title, example, package) in enumerate(STAGES):
        row, column = divmod(place, 3)
        x, y = 4 + column * (width + gap), 4 + row * (height + 52)
        accent = FLAME[min(place, 4)]
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="none" stroke="{GREY}"/>'
            f'<rect x="{x}" y="{y}" width="6" height="{height}" rx="3" fill="{accent}"/>'
            f'<text x="{x + 18}" y="{y + 26}" class="title">{title}</text>'
            f'<text x="{x + 18}" y="{y + 50}" class="code">{example}</text>'
            f'<text x="{x + 18}" y="{y + 71}" class="package">{package}</text>'
        )
        if place + 1 < len(STAGES):
            parts.append(_arrow(x, y, column, width, height, gap))
    style = (
        "text{font-family:system-ui,sans-serif;fill:#7a8699}.title{font-size:16px;font-weight:600;fill:#d9631e}"
        ".code{font-family:ui-monospace,monospace;font-size:12.5px}.package{font-size:12px}"
    )
    title = "From an expression to machine code, in six stages"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 724 228" role="img" aria-label="{title}"><title>{title}</title>'
        f"<style>{style}</style>{''.join(parts)}</svg>\n"
    )


def _arrow(x: int, y: int, column: int, width: int, height: int, gap: int) -> str:
    if column < 2:
        start, end, middle = x + width + 6, x + width + gap - 6, y + height // 2
        line = f"M{start} {middle}H{end}m-6 -5l6 5l-6 5"
    else:
        top, turn = y + height, y + height + 26
        line = f"M{x + width // 2} {top + 6}V{turn}H{4 + width // 2}V{turn + 20}m-5 -6l5 6l5 -6"
    return f'<path d="{line}" fill="none" stroke="{GREY}" stroke-width="1.5"/>'


def main() -> None:
    """Write the files."""
    for name, text in {
        "logo.svg": logo("#9aa5b1"),
        "logo-white.svg": logo("#ffffff66", ("#ffffff",) * SIZE),
        "pipeline.svg": pipeline(),
    }.items():
        (ASSETS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
