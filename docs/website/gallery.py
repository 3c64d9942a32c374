"""The gallery: a page for each example, with its docstring, its picture and its source."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ("common", "datasets", "training")  # files that examples share


def examples() -> list[Path]:
    """The programs, by name."""
    return [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in SHARED]


def pages() -> dict[str, str]:
    """The Markdown of the pages by path, an index first."""
    texts = {}
    cards = []
    for path in examples():
        source = path.read_text(encoding="utf-8")
        title, _, about = (ast.get_docstring(ast.parse(source)) or path.stem).partition("\n")
        picture = f"{path.stem}.{'svg' if (ROOT / f'docs/gallery/{path.stem}.svg').exists() else 'png'}"
        title = title.rstrip(".:")
        cards.append(f"-   [![{title}]({picture})]({path.stem}.md)\n\n    [{title}]({path.stem}.md)")
        link = f"[`examples/{path.name}`](../../examples/{path.name})"
        texts[f"gallery/{path.stem}.md"] = (
            f"# {title}\n\n{about.strip()}\n\n![{title}]({picture}){{ .picture }}\n\nSource: {link}\n\n```python\n{source.rstrip()}\n```\n"
        )
    index = "# Gallery\n\nPrograms in the folder `examples`; each runs with `python examples/NAME.py`.\n\n"
    return {"gallery/index.md": f'{index}<div class="grid cards" markdown>\n\n' + "\n\n".join(cards) + "\n\n</div>\n", **texts}
