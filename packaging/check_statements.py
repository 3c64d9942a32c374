"""Check the size of the package: ``python packaging/check_statements.py``.

``statements.toml`` limits the number of statements of each package of ``numscorch/``; ``numscorch`` itself is the files beside the
packages. A statement is a node of Python's syntax tree, so that neither comments nor the width of lines count. The exit code is 1 if a
package has more statements than its limit, if packages and limits differ, or if a limit is above the one of the last commit without a
reason in its line. Limits that are much too high are listed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = "packaging/statements.toml"
SLACK = 10  # statements below a limit from which it should be lowered


def statements(package: Path) -> dict[str, int]:
    """The number of statements of each package, and of the files beside them under the name of the folder."""
    counts = Counter[str]()
    for path in package.rglob("*.py"):
        name = path.relative_to(package).parts[0] if path.parent != package else package.name
        counts[name] += sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return dict(counts)


def problems(counts: dict[str, int], limits: str, committed: str) -> list[str]:
    """What must be changed.

    Args:
        counts: statements by package.
        limits: text of the limits.
        committed: their text in the last commit, or an empty text.

    >>> problems({"ir": 12, "nn": 5}, "ir = 10", "")
    ['ir has 12 statements, 2 more than its limit: make it smaller, or raise the limit and give the reason in its line', 'nn has no limit']
    >>> problems({"ir": 12}, "ir = 12", "ir = 10")
    ['the limit of ir rose from 10 to 12: give the reason in its line']
    >>> problems({"ir": 12}, "ir = 12  # levels of a user", "ir = 10")
    []
    """
    now, before = tomllib.loads(limits), tomllib.loads(committed)
    reasons = {line.partition("=")[0].strip() for line in limits.splitlines() if line.partition("#")[2].strip()}
    texts = []
    for name, count in sorted(counts.items()):
        if name not in now:
            texts.append(f"{name} has no limit")
        elif count > now[name]:
            excess = count - now[name]
            texts.append(
                f"{name} has {count} statements, {excess} more than its limit: "
                "make it smaller, or raise the limit and give the reason in its line"
            )
        elif now[name] > before.get(name, now[name]) and name not in reasons:
            texts.append(f"the limit of {name} rose from {before[name]} to {now[name]}: give the reason in its line")
    return texts + [f"{name} has a limit but no statements" for name in sorted(now.keys() - counts.keys())]


def notes(counts: dict[str, int], limits: str) -> list[str]:
    """Limits that can be lowered.

    >>> notes({"ir": 12, "nn": 80}, "ir = 13\\nnn = 100")
    ['nn has 80 statements: lower its limit of 100']
    """
    now = tomllib.loads(limits)
    return [
        f"{name} has {count} statements: lower its limit of {now[name]}"
        for name, count in sorted(counts.items())
        if now.get(name, 0) - count > SLACK
    ]


def main(root: Path = ROOT) -> int:
    """Print what must and what can be changed."""
    counts, limits = statements(root / "numscorch"), (root / LIMITS).read_text(encoding="utf-8")
    shown = subprocess.run(["git", "show", f"HEAD:{LIMITS}"], cwd=root, capture_output=True, text=True, check=False)
    wrong = problems(counts, limits, "" if shown.returncode else shown.stdout)
    for line in (*wrong, *notes(counts, limits)):
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
