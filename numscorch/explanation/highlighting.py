"""Syntax highlighting of Python source as HTML, with the standard library's tokenizer."""

from __future__ import annotations

import builtins
import io
import keyword
import tokenize
from html import escape

KINDS = {tokenize.STRING: "string", tokenize.NUMBER: "number", tokenize.COMMENT: "comment"}
BUILT_IN = frozenset(name for name in dir(builtins) if name.islower() and not name.startswith("_"))


def highlighted(source: str) -> str:
    """The source as HTML: one span per line; keywords, function names, numbers, strings and comments are spans with CSS classes.

    Raises:
        tokenize.TokenError, SyntaxError: the source isn't Python.

    >>> print(highlighted("for i in range(3):"))
    <span class="line"><span class="keyword">for</span> i <span class="keyword">in</span> <span class="builtin">range</span>(<span class="number">3</span>):</span>
    """  # noqa: E501
    rows = source.rstrip("\n").split("\n")
    pieces = [list[str]() for _ in rows]
    row, column = 1, 0
    before = ""
    for token in tokenize.generate_tokens(io.StringIO("\n".join(rows) + "\n").readline):
        if token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            continue
        if token.start[0] > row:
            row, column = token.start[0], 0
        pieces[row - 1].append(escape(rows[row - 1][column : token.start[1]], quote=False))
        css_class = _css_class(token, before)
        for at, text in enumerate(token.string.split("\n")):  # a multi-line string gets one span per line
            escaped = escape(text, quote=False)
            pieces[token.start[0] - 1 + at].append(f'<span class="{css_class}">{escaped}</span>' if css_class and text else escaped)
        (row, column), before = token.end, token.string
    return "\n".join(f'<span class="line">{"".join(parts)}</span>' for parts in pieces)


def _css_class(token: tokenize.TokenInfo, before: str) -> str:
    if token.type in KINDS:
        return KINDS[token.type]
    if token.type != tokenize.NAME:
        return ""
    if keyword.iskeyword(token.string):
        return "keyword"
    return "function" if before == "def" else "builtin" if token.string in BUILT_IN else ""
