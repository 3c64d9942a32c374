"""Page of a generated kernel: its request, schedule, compiler stages and Python source."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from numscorch.explanation.page import tokens

from .places import Place
from .templates import rendered

_STAGE = re.compile(r"^(index notation|[a-z]+(?:_[a-z]+)*)(?= )", re.MULTILINE)
_STATEMENT = re.compile(r"([a-z]+(?:_[a-z]+)* +)(\S.*)")


def source_page(name: str, kernel: Mapping[str, Any], place: Place) -> str:
    """The page of a kernel."""
    source, explanation = str(kernel.get("source") or ""), str(kernel.get("explanation") or "")
    stages = _told_once(explanation.replace(source, "").strip() if source else explanation)
    return rendered(
        "source.html",
        place,
        name=name,
        request=kernel.get("request"),
        schedule=schedule_of(source),
        stages=_STAGE.split(stages) if stages else [],
        tokens=tokens(source),
    )


def _told_once(stages: str) -> str:
    """The stages, with ``unchanged`` instead of a statement that a pass does not change.

    >>> print(_told_once("tile       forall(i, S)\\n           no operand is large\\nvectorize  forall(i, S)"))
    tile       forall(i, S)
               no operand is large
    vectorize  unchanged
    """
    lines, last = stages.splitlines(), ""
    for at, line in enumerate(lines):
        if found := _STATEMENT.match(line):
            name, statement = found.groups()
            lines[at], last = (f"{name}unchanged" if statement == last else line), statement
    return "\n".join(lines)


def schedule_of(source: str) -> str:
    """The scheduled statement, from the indented lines of the source's docstring."""
    try:
        head = ast.get_docstring(ast.parse(source)) or ""
    except SyntaxError:
        return ""
    return textwrap.dedent("\n".join(line for line in head.splitlines() if line.startswith("    ")))
