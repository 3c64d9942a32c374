"""Find vague names: variables, functions and classes named by a bare participle or pronoun.

    python packaging/check_names.py numscorch

``made`` could be any result; ``copy``, ``plan`` and ``message`` are specific. The script also lists classes with the same name. The exit
code is 1 if it lists anything.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

VAGUE = {"made", "told", "taken", "own", "found", "laid", "turned", "built", "gone", "got", "meant", "done", "thing", "things", "stuff"}


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names of variables, parameters, functions and classes, and their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Store()):
                yield name, node.lineno
            case ast.arg(name):
                yield name, node.lineno
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno


def main(folders: list[str]) -> int:
    """List vague names, and names shared by several classes."""
    problems, classes = list[str](), defaultdict[str, list[str]](list)
    for path in sorted(file for folder in folders for file in Path(folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        problems += [f"{path}:{line}: {name}: name what it is" for name, line in names_in(tree) if name.strip("_") in VAGUE]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path}:{node.lineno}")
    problems += [f"{', '.join(places)}: {name}: one name for {len(places)} classes" for name, places in classes.items() if len(places) > 1]
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
