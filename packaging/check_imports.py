"""Find imports of the package inside functions that do not say why they are there.

    python packaging/check_imports.py numscorch

Such an import ends with a comment, ``# deferred:`` and one of ``REASONS``. The exit code is 1 if the script lists anything.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

REASONS = ("it imports torch's compiler", "it imports Numba", "other commands do not need it")


def unexplained(text: str) -> Iterator[int]:
    """Lines of a file's imports inside functions that give none of the reasons.

    >>> list(unexplained("def f():\\n    from .plans import plan\\n    from .roofs import rates  # deferred: it imports Numba"))
    [2]
    """
    lines, allowed = text.splitlines(), tuple(f"# deferred: {reason}" for reason in REASONS)
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    imports = (node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom))
    own = {node.lineno for node in imports if node.level or (node.module or "").startswith("numscorch")}
    yield from sorted(line for line in own if not lines[line - 1].endswith(allowed))


def main(folders: list[str]) -> int:
    """List the imports."""
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    problems = [
        f"{path}:{line}: import it at the top, or end the line with '# deferred:' and one of: {'; '.join(REASONS)}"
        for path in files
        for line in unexplained(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
