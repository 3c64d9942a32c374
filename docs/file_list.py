"""The list of the package's files in ``docs/ARCHITECTURE.md``, from the first sentence of each file."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "numscorch"


def files() -> str:
    """Each package's files with what they are about; files without a docstring are left out."""
    lines: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        name = path.relative_to(PACKAGE)
        if (about := ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))) is None:
            continue
        if len(name.parts) > 1 and f"{name.parent}/" not in lines:
            lines.append(f"{name.parent}/")
        sentence = " ".join(about.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
        lines.append(f"    {name.stem:20} {sentence}")
    return "\n".join(lines)
