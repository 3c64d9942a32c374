"""Page of a generated kernel: its request, schedule, compiler stages and Python source."""

from __future__ import annotations

import ast
import io
import keyword
import re
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from .frame import Place, page

_STAGE = re.compile(r"^(index notation|[a-z]+(?:_[a-z]+)*)(?= )", re.MULTILINE)
_STATEMENT = re.compile(r"([a-z]+(?:_[a-z]+)* +)(\S.*)")
_TAGS = {tokenize.COMMENT: "i", tokenize.STRING: "i"}


def source_page(name: str, kernel: Mapping[str, Any], place: Place) -> str:
    """The page of a kernel."""
    source, explanation = str(kernel.get("source") or ""), str(kernel.get("explanation") or "")
    parts = [f'<h1><small>kernel</small> <code class="name">{escape(name)}</code></h1>']
    parts += [f'<p class="lead"><code>{escape(str(kernel["request"]))}</code></p>'] if kernel.get("request") else []
    schedule = schedule_of(source)
    parts += [f"<h2>Schedule</h2><pre>{escape(schedule)}</pre>"] if schedule else []
    stages = explanation.replace(source, "").strip() if source else explanation
    marked = _STAGE.sub(r"<b>\1</b>", escape(_told_once(stages)))
    parts += [f"<h2>Explained</h2><pre>{marked}</pre>"] if stages else []
    shown = f"<pre><code>{highlighted(source)}</code></pre>" if source else "<p>It was recorded without its source.</p>"
    return page(name, [*parts, "<h2>Source</h2>", shown], place, up=f'<a href="{place.root}index.html">Overview</a>')


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


def highlighted(source: str) -> str:
    """Python source as HTML, with keywords in ``<b>`` and with strings and comments in ``<i>`` for the style sheet.

    >>> highlighted("for i in range(3):  # count")
    '<b>for</b> i <b>in</b> range(3):  <i># count</i>'
    """
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    shown, done = [], 0
    for tag, (row, column), (last_row, last_column) in _marked(source):
        start, stop = starts[row - 1] + column, starts[last_row - 1] + last_column
        shown += [escape(source[done:start], quote=False), f"<{tag}>{escape(source[start:stop], quote=False)}</{tag}>"]
        done = stop
    return "".join(shown) + escape(source[done:], quote=False)


def _marked(source: str) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    """Tags and positions of highlighted tokens, up to the first syntax error."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            tag = "b" if token.type == tokenize.NAME and keyword.iskeyword(token.string) else _TAGS.get(token.type)
            if tag:
                yield tag, token.start, token.end
    except (tokenize.TokenError, SyntaxError):
        return
